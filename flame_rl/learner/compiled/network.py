"""Networks in training whose passes, losses and epochs are compiled; see core.c."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import POINTER, byref, cast
from dataclasses import dataclass

import numpy as np

import flame_rl.learner.training.network as plain
from flame_rl.learner.compiled.library import (
    COLUMNS,
    NUMBERS,
    Epoch,
    Head,
    Layer,
    Loss,
    Network,
    Optimizer,
    Samples,
    Target,
    Transitions,
    library,
)
from flame_rl.learner.training.adam import Adam
from flame_rl.learner.training.epoch import Epoch as Steps
from flame_rl.learner.training.epoch import StepConfig
from flame_rl.nets.layers import NormalizeLayer
from flame_rl.system.signals import end_if_stopped

ACTIVATIONS = {"": 0, "tanh": 1, "relu": 2, "silu": 3}
HEADS = {"raw": 0, "value": 1, "gaussian": 2, "categorical": 3}
LOSSES = {"policy_gradient": 0, "clipped": 1, "squared_error": 2}
# Numbers of a workspace that stays in a core's own cache, and the least rows of a slice, so that
# transposing weights costs little.
_WORKSPACE, _LEAST_ROWS = 1 << 17, 64
# Samples times parameters of one call, which takes about a tenth of a second; between two calls
# the user may stop the run.
_ONE_CALL = 1 << 30


@dataclass(frozen=True)
class CompiledHead:
    """What a loss sees of the output.

    Attributes:
        kind: a key of `HEADS`.
        log_std: where the parameters of that name begin among all, of a Gaussian.
        choices: int32 [F], of a categorical distribution the number of choices of each factor.
        scale: float32 [], of values.
    """

    kind: str
    log_std: int = 0
    choices: np.ndarray | None = None
    scale: np.ndarray | None = None


@dataclass(frozen=True)
class QTarget:
    """The target network of action values.

    Attributes:
        parameters: float32 [P], in the order of those in training; they change in place.
        double: whether the network in training chooses the actions that this one values.
        period: it moves after every that many gradient steps.
        tau: the share by which it moves.
    """

    parameters: np.ndarray
    double: bool
    period: int
    tau: float


class CompiledNetwork(plain.Network):
    """See `flame_rl.learner.training.network.Network`."""

    remembers = False
    frames = 1
    parallel = True

    def __init__(
        self,
        layers: Sequence[dict[str, float]],
        head: CompiledHead,
        parameters: np.ndarray,
        select: np.ndarray | None = None,
        normalizer: NormalizeLayer | None = None,
    ) -> None:
        """
        Args:
            layers: the fields of each `Layer`, from the inputs to the output.
            head: what a loss sees.
            parameters: all of them, float32 [P], which change in place.
            select: the numbers of an observation that the first layer gets; None: all.
            normalizer: of observations, whose arrays change in place; None: they are taken as they
                are.
        """
        self._library = library()
        self._layers = (Layer * len(layers))(*(Layer(**layer) for layer in layers))
        self._head, self._parameters = head, parameters
        self._select, self._normalizer = select, normalizer
        self._inputs, self._outputs = self._layers[0].inputs, self._layers[-1].outputs
        choices, scale = head.choices, head.scale
        own = Head(HEADS[head.kind], head.log_std, 0 if choices is None else len(choices))
        own.choices, own.scale = (a if a is None else a.ctypes.data for a in (choices, scale))
        layers_pointer = cast(self._layers, POINTER(Layer))
        self._network = Network(len(layers), layers_pointer, own)
        self._address = byref(self._network)
        per_row = sum(2 * each.outputs for each in self._layers) + 2 * max(
            max(each.inputs, each.outputs) for each in self._layers
        )
        self.slice_rows = max(_LEAST_ROWS, _WORKSPACE // per_row)

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        if self._normalizer is None:
            return np.asarray(observations)
        return self._normalizer.normalize(np.asarray(observations, np.float32))

    def outputs(self, samples: plain.Samples) -> tuple[np.ndarray, ...]:
        return self.forward(samples).outputs

    def forward(self, samples: plain.Samples) -> CompiledPass:
        rows = plain.rows_of(samples)
        columns = self._columns(samples, ("actions", "action_masks"), rows)
        policy = self._head.kind in ("gaussian", "categorical")
        shape = (rows, self._outputs) if self._head.kind == "raw" else (rows,)
        outputs = tuple(np.empty(shape, np.float32) for _ in range(1 + policy))
        workspace = self._workspace(rows)
        second = outputs[1].ctypes.data if policy else None
        self._library.forward(
            *(self._address, self._parameters.ctypes.data, byref(columns.struct)),
            *(rows, workspace.ctypes.data, outputs[0].ctypes.data, second),
        )
        return CompiledPass(self, columns, workspace, outputs, samples["inputs"].shape[-1])

    def differentiate(
        self, loss: plain.Loss, samples: plain.Samples, gradient: np.ndarray
    ) -> dict[str, float]:
        if not isinstance(loss, plain.NativeLoss):
            return super().differentiate(loss, samples, gradient)
        rows = plain.rows_of(samples)
        columns = self._columns(samples, COLUMNS, rows)
        numbers, workspace = np.zeros(len(NUMBERS)), self._workspace(rows)
        gradient.fill(0)
        self._library.add_gradient(
            *(self._address, self._parameters.ctypes.data, byref(_loss(loss))),
            *(byref(columns.struct), rows, workspace.ctypes.data),
            *(gradient.ctypes.data, numbers.ctypes.data),
        )
        return dict(zip(loss.numbers, numbers.tolist(), strict=False))

    def has_epochs(self, loss: plain.Loss) -> bool:
        return isinstance(loss, plain.NativeLoss)

    def run_epoch(
        self, loss: plain.NativeLoss, adam: Adam, epoch: Steps, config: StepConfig
    ) -> list[dict[str, float]]:
        """See `flame_rl.learner.training.epoch.descend`."""
        steps, count = epoch.steps, epoch.count
        slice_rows = self._even(epoch.largest)
        columns = self._columns(epoch.columns | {"inputs": epoch.inputs}, COLUMNS, steps)
        rows, order = (np.ascontiguousarray(each, np.int64) for each in (epoch.rows, epoch.order))
        addresses = (each.ctypes.data for each in (rows, order))
        steps_struct = Epoch(columns.struct, *addresses, steps, count, slice_rows)
        optimizer, own_loss = _optimizer(adam, config), _loss(loss)
        room = np.empty(slice_rows * sum(columns.struct.bytes) + 64 * len(COLUMNS), np.uint8)
        factors = np.array(adam.factors(count, config.learning_rate))
        numbers, workspace = np.zeros((count, len(NUMBERS) + 1)), self._workspace(slice_rows)
        structs = map(byref, (own_loss, steps_struct, optimizer))
        arguments = self._address, *structs
        done = 0
        for begin, end in _calls(count, epoch.largest, adam):
            addresses = (each.ctypes.data for each in (factors, workspace, room, numbers))
            taken = self._library.epoch(*arguments, begin, end, *addresses)
            adam.steps += taken
            done = begin + taken
            if done < end:
                done += 1  # one that exceeded the limit has numbers, too
                break
        names = (*loss.numbers, "gradient_norm")
        kept = [*range(len(loss.numbers)), len(NUMBERS)]
        return [dict(zip(names, row, strict=True)) for row in numbers[:done, kept].tolist()]

    def q_steps(
        self, samples: plain.Samples, adam: Adam, target: QTarget, config: StepConfig
    ) -> dict[str, np.ndarray]:
        """Gradient steps down `q_loss`, on K minibatches; the target network follows.

        Args:
            samples: as `flame_rl.learner.off_policy.replay.views.n_step` returns them, but
                [K, B, ...]; perhaps with "weights".
            adam: of the network, whose output is [B, A].
            target: the network of the targets.
            config: has no KL limit.

        Returns:
            The numbers of `q_loss`, [K, B] each.
        """
        count, rows = samples["rewards"].shape
        columns = {
            name: _array(self._selected(samples[name]), np.float32, count * rows, self._inputs)
            for name in ("observations", "next_observations")
        }
        for name in ("rewards", "discounts", "weights"):
            if name in samples:
                columns[name] = _array(samples[name], np.float32, count * rows)
        columns["actions"] = _array(samples["actions"], np.int32, count * rows)
        mask_bytes = -(-self._outputs // 8)
        if "next_action_masks" in samples:
            masks = samples["next_action_masks"]
            columns["next_masks"] = _array(masks, np.uint8, count * rows, mask_bytes)
        transitions = Transitions(**{name: each.ctypes.data for name, each in columns.items()})
        slice_rows = self._even(rows)
        transitions.rows, transitions.mask_bytes = rows, mask_bytes
        transitions.slice_rows = slice_rows
        parameters = target.parameters.ctypes.data
        follower = Target(parameters, target.period, target.double, target.tau)
        structs = map(byref, (transitions, _optimizer(adam, config), follower))
        arguments = self._address, *structs
        factors = np.array(adam.factors(count, config.learning_rate))
        numbers = np.empty((count, 3, rows), np.float32)
        arrays = factors, self._workspace(slice_rows), np.empty(2 * slice_rows, np.int64), numbers
        addresses = [each.ctypes.data for each in arrays]
        for begin, end in _calls(count, rows, adam):
            self._library.q_steps(*arguments, adam.steps - begin, begin, end, *addresses)
            adam.steps += end - begin
        return dict(zip(("loss", "td_error", "value"), numbers.swapaxes(0, 1), strict=True))

    def _even(self, rows: int) -> int:
        """The rows of a slice, of slices of even size: none is so small that transposing weights
        takes most of its time."""
        return -(-rows // -(-rows // self.slice_rows))

    def _selected(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x) if self._select is None else x.take(self._select, axis=-1)

    def _workspace(self, rows: int) -> np.ndarray:
        return np.empty(self._library.workspace_size(self._address, rows), np.float32)

    def _columns(self, samples: plain.Samples, names: Sequence[str], rows: int) -> _Columns:
        """The inputs and the columns of these names, where they are there."""
        # Those of actions are for a policy's head; the others' losses may have some of any shape.
        ignored = {"gaussian": {"action_masks"}, "categorical": set()}
        ignored = ignored.get(self._head.kind, {"actions", "action_masks"})
        names = [name for name in names if name not in ignored]
        x = self._selected(samples["inputs"])
        arrays = [_array(x, np.float32, len(x), self._inputs)]
        for name in names:
            column = samples.get(name)
            if name == "inputs" or column is None:
                continue
            choice = name == "actions" and self._head.kind == "categorical"
            widths = {"actions": len(self._head.choices) if choice else self._outputs}
            widths["action_masks"] = -(-self._outputs // 8)
            dtype = np.int32 if choice else COLUMNS[name]
            arrays.append(_array(column, dtype, rows, widths.get(name, 1)))
        present = ["inputs", *(n for n in names if n != "inputs" and samples.get(n) is not None)]
        struct = Samples()
        for name, array in zip(present, arrays, strict=True):
            place = list(COLUMNS).index(name)
            struct.data[place], struct.bytes[place] = array.ctypes.data, array[:1].nbytes
        return _Columns(struct, arrays)

    def _backward(
        self,
        forward: CompiledPass,
        gradients: tuple[plain.Gradient, ...],
        gradient: np.ndarray | None,
        of_inputs: np.ndarray | None,
    ) -> None:
        of_outputs = [
            _array(np.broadcast_to(each, output.shape), np.float32, *output.shape)
            for each, output in zip(gradients, forward.outputs, strict=True)
        ]
        arrays = (*(*of_outputs, None)[:2], gradient, of_inputs)
        self._library.backward(
            *(self._address, self._parameters.ctypes.data, byref(forward.columns.struct)),
            *(len(forward.outputs[0]), forward.workspace.ctypes.data),
            *(each if each is None else each.ctypes.data for each in arrays),
        )


@dataclass(frozen=True)
class _Columns:
    """Columns as core.c takes them, and the arrays that they point to."""

    struct: Samples
    arrays: list[np.ndarray]


@dataclass(frozen=True)
class CompiledPass:
    """See `flame_rl.learner.training.network.Pass`; it can go back once. `width` is that of the
    samples' inputs."""

    network: CompiledNetwork
    columns: _Columns
    workspace: np.ndarray
    outputs: tuple[np.ndarray, ...]
    width: int

    def backward(self, gradients: tuple[plain.Gradient, ...], gradient: np.ndarray) -> None:
        gradient.fill(0)
        self.network._backward(self, gradients, gradient, None)

    def backward_inputs(self, gradients: tuple[plain.Gradient, ...]) -> np.ndarray:
        result = np.empty_like(self.columns.arrays[0])
        self.network._backward(self, gradients, None, result)
        if self.network._select is None:
            return result
        whole = np.zeros((len(result), self.width), np.float32)
        np.add.at(whole, (slice(None), self.network._select), result)
        return whole


def _loss(loss: plain.NativeLoss) -> Loss:
    return Loss(LOSSES[loss.kind], loss.clip_range, loss.entropy_coefficient)


def _optimizer(adam: Adam, config: StepConfig) -> Optimizer:
    arrays = adam.parameters, adam.gradient, *adam.sums
    limits = adam.parameters.size, config.max_grad_norm, config.max_kl
    return Optimizer(*(each.ctypes.data for each in arrays), *limits)


def _calls(count: int, rows: int, adam: Adam) -> Iterator[tuple[int, int]]:
    """The first and the last minibatch of each call, of `count` minibatches of `rows` samples.
    Raises Interrupted if the user asks to stop."""
    at_once = max(1, _ONE_CALL // (rows * adam.parameters.size))
    for begin in range(0, count, at_once):
        end_if_stopped()
        yield begin, min(begin + at_once, count)


def _array(array: np.ndarray, dtype: type, *shape: int) -> np.ndarray:
    """The array as core.c takes it. Raises ValueError for another number of numbers, which it would
    not notice."""
    return np.ascontiguousarray(array, dtype).reshape(shape)
