"""A policy that acts: its layers and its head in NumPy, and what the layers remember."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flame_rl.nets.heads import NOTHING, Columns, HeadKind
from flame_rl.nets.kinds import HEADS, LAYERS
from flame_rl.nets.layers import ROW_BLOCK, Act, InputsLayer, LayerKind
from flame_rl.wire.messages import MAX_LAYERS, Layer, PolicySnapshot
from flame_rl.wire.packing import WireError

Rows = slice | np.ndarray  # slots: a slice, or their numbers, some perhaps more than once


class ActingPolicy:
    """A snapshot ready to act. `observation_dim`: D. `output_dim`: the width of the output, which
    `head` turns into actions. `remembers`: whether these depend on the episode so far."""

    def __init__(self, snapshot: PolicySnapshot) -> None:
        """Raises WireError, naming layer and array, if layers are unknown, or do not fit."""
        layers, shapes, self.observation_dim, self.output_dim = _check_layers(snapshot.layers)
        self.head = _check_head(snapshot.head, self.output_dim)
        self._shapes = [shape for shape in shapes if shape is not None]
        self.remembers = len(self._shapes) > 0
        # How each layer acts, in which type, the place of its state among all states, None without
        # one, and which input it acts on, see `Layer.input`.
        self._layers: list[tuple[Act, str, int | None, int | None]] = []
        dtype = "float64"
        for sent, layer, shape in zip(snapshot.layers, layers, shapes, strict=True):
            dtype = layer.dtype or dtype
            # C order always: BLAS sums a transposed matrix in another order.
            arrays = {
                name: np.array(array, None if name in layer.integers else dtype, order="C")
                for name, array in sent.arrays.items()
            }
            before = sum(state is not None for _, _, state, _ in self._layers)
            state = None if shape is None else before
            self._layers.append((type(layer)(**arrays).make_act(), dtype, state, sent.input))

    def states(self, slots: int) -> States:
        """New states for `slots` slots, before their episodes begin."""
        return States(self._shapes, slots)

    def forward(
        self, observations: np.ndarray, states: States | None = None, rows: Rows = slice(None)
    ) -> np.ndarray:
        """The network's output, logits, action values or means: float32 or uint8 [B, D], with B a
        multiple of `ROW_BLOCK`, -> float64 [B, output_dim]. `states`: the layers', which take one
        step; None where the policy does not remember. `rows`: the slot of each observation; one
        that occurs twice must have equal observations."""
        if len(observations) % ROW_BLOCK:
            raise ValueError(f"observations: {len(observations)} rows, no multiple of {ROW_BLOCK}")
        if states is None and self.remembers:
            raise ValueError("states: None, and this policy remembers; give it those of `states`")
        # A copy, because layers may overwrite what they take.
        x = observations.astype(self._layers[0][1]).reshape(-1, ROW_BLOCK, self.observation_dim)
        inputs = [x]  # one array, but after `InputsLayer` one for each input
        # Once for all layers: it takes as long as a small one.
        with np.errstate(over="ignore"):
            for layer, dtype, state, number in self._layers:
                if number is None and len(inputs) > 1:
                    inputs = [_side_by_side(inputs)]
                number = number or 0
                x = inputs[number].astype(dtype, copy=False)
                y = layer(x) if state is None else states.apply(state, layer, x, rows)
                if isinstance(y, list):
                    inputs = y
                else:
                    inputs[number] = y
        x = _side_by_side(inputs)
        return x.astype(np.float64, copy=False).reshape(-1, self.output_dim)

    def act(
        self,
        observations: np.ndarray,
        noise: np.ndarray | None,
        states: States | None = None,
        rows: Rows = slice(None),
        seen: Columns = NOTHING,
    ) -> np.ndarray:
        """One action for each row, [B, ...], of the head's type and shape. `noise`: float64 [B,
        noise_width], to sample with; None: see `HeadKind.greedy`. `seen`: what else comes with the
        observations, such as masks. The others are as in `forward`."""
        output = self.forward(observations, states, rows)
        if noise is None:
            return self.head.greedy(output, seen)
        return self.head.sample(output, noise, seen)

    def draw_noise(
        self, generator: np.random.Generator, steps: int, before: np.ndarray | None = None
    ) -> np.ndarray:
        """The noise of an episode's next steps, float64 [steps, noise_width], whose bits do not
        depend on how many are drawn. `generator` is the episode's own, and `before`, float64
        [noise_width], the noise of the step before; None: a first step."""
        head = self.head
        # One number more says whether a step repeats the one before.
        shape = steps, head.noise_width + (head.noise_repeat > 0)
        draw = generator.standard_normal if head.noise == "normal" else generator.random
        noise = draw(shape)
        if head.noise_carry:
            last = np.zeros(head.noise_width) if before is None else before
            for row in noise:
                row += head.noise_carry * last
                last = row
        if head.noise_repeat:
            noise, repeats = noise[:, :-1], noise[:, -1] < head.noise_repeat
            last = before
            for row, repeat in zip(noise, repeats, strict=True):
                if repeat and last is not None:
                    row[:] = last
                last = row
        return noise


def _side_by_side(inputs: list[np.ndarray]) -> np.ndarray:
    return inputs[0] if len(inputs) == 1 else np.concatenate(inputs, axis=-1)


class States:
    """The state of each layer with a memory, for each slot: that of the slot's episode. It is
    float32 between steps, whatever type a layer computes in, so that a recorded state is the one
    that acted. `arrays`: float32 [W, ...], one for each layer with a memory, in order."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], slots: int) -> None:
        self.arrays = [np.zeros((slots, *shape), np.float32) for shape in shapes]

    def begin(self, slots: np.ndarray) -> None:
        """Episodes begin in these slots, int [n]: their states become 0."""
        for array in self.arrays:
            array[slots] = 0

    def apply(self, place: int, layer: Act, x: np.ndarray, rows: Rows) -> np.ndarray:
        """Apply a layer to x, [blocks, ROW_BLOCK, inputs] -> [blocks, ROW_BLOCK, outputs], and
        advance its state, `arrays[place]`, in the slots `rows`, one for each row of x; a slot that
        occurs twice must have equal inputs."""
        array = self.arrays[place]
        before = array[rows].astype(x.dtype, copy=False)
        y, state = layer(x, before.reshape(*x.shape[:2], *array.shape[1:]))
        array[rows] = state.reshape(-1, *array.shape[1:])
        return y


def _check_layers(
    given: Sequence[Layer],
) -> tuple[list[LayerKind], list[tuple[int, ...] | None], int, int]:
    """The layers, the shapes of their states, and the widths of observation and output. Raises
    WireError as `ActingPolicy` does."""
    if len(given) > MAX_LAYERS:
        raise WireError(
            f"a policy of {len(given)} layers, activations among them; at most {MAX_LAYERS} can act"
        )
    observation_dim = width = None
    # The width of each input, where the last layer that acts on all of them divides them.
    widths: list[int] = []
    layers: list[LayerKind] = []
    states: list[tuple[int, ...] | None] = []
    for place, layer in enumerate(given):
        where = f"layer {place} ({layer.kind[:40]})"
        if layer.kind not in LAYERS:
            raise WireError(f"{where}: none of {', '.join(LAYERS)}")
        kind = LAYERS[layer.kind]
        if layer.input is not None:
            if not 0 <= layer.input < len(widths) or kind is InputsLayer:
                raise WireError(f"{where}: input: {layer.input} of {len(widths)} inputs")
            width = widths[layer.input]
        elif widths:
            width, widths = sum(widths), []
        sizes = _check_arrays(where, layer, kind, width)
        try:
            layers.append(kind(**layer.arrays))
            for name, size in layers[-1].sizes().items():
                if sizes.setdefault(name, size) != size:
                    raise WireError(f"{size} numbers, not the {sizes[name]} of the layer before")
        except WireError as error:
            raise WireError(f"{where}: {error}") from error
        observation_dim = observation_dim or sizes.get("in")
        width = sizes.get("out", sizes.get("in"))
        if layer.input is not None:
            widths[layer.input] = width
        if kind is InputsLayer:
            widths = layers[-1].widths.tolist()
        state = kind.state
        states.append(None if state is None else tuple(sizes.get(size, size) for size in state))
    width = sum(widths) if widths else width
    if observation_dim is None or width is None:
        raise WireError("a policy without a layer that says how wide an observation is")
    return layers, states, observation_dim, width


def _check_head(given: Layer, width: int) -> HeadKind:
    """The head for an output of this width. Raises WireError as `ActingPolicy` does."""
    where = f"head ({given.kind[:40]})"
    if given.kind not in HEADS:
        raise WireError(f"{where}: none of {', '.join(HEADS)}")
    head = HEADS[given.kind]
    _check_arrays(where, given, head, width)
    try:
        return head(width, **given.arrays)
    except WireError as error:
        raise WireError(f"{where}: {error}") from error


def _check_arrays(
    where: str, layer: Layer, kind: type[LayerKind] | type[HeadKind], width: int | None
) -> dict[str | int, int]:
    """Compare arrays with the declaration of their kind; returns the named sizes."""
    declared = {name: ("float32", shape) for name, shape in kind.arrays.items()}
    declared |= {name: ("int32", shape) for name, shape in kind.integers.items()}
    if layer.arrays.keys() != declared.keys():
        raise WireError(f"{where}: arrays {sorted(layer.arrays)[:10]} and not {sorted(declared)}")
    # A number stands for itself.
    sizes: dict[str | int, int] = {
        size: size for _, shape in declared.values() for size in shape if isinstance(size, int)
    }
    if width is not None:
        sizes["in"] = width
    for name, (dtype, shape) in declared.items():
        array = layer.arrays[name]
        if array.dtype != dtype or array.ndim != len(shape):
            raise WireError(
                f"{where}: {name}: {array.dtype} of shape {array.shape} where {dtype} of "
                f"{len(shape)} dimensions is expected"
            )
        for size, dimension in zip(array.shape, shape, strict=True):
            if size == 0 or sizes.setdefault(dimension, size) != size:
                expected = tuple(sizes[dimension] for dimension in shape if dimension in sizes)
                raise WireError(f"{where}: {name}: shape {array.shape}, and not {expected}")
    return sizes
