"""Networks as machine code: layers and head in one call, and with a loss its gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from llvmlite import ir

from flame_rl.learner.kernels import engine
from flame_rl.learner.kernels.emit import LANES, Array, Function, Index, padded
from flame_rl.learner.kernels.heads import HEADS, Given, Head
from flame_rl.learner.kernels.layers import CompiledLayers, contiguous
from flame_rl.learner.kernels.library import library
from flame_rl.learner.kernels.network import Stage, passes_of
from flame_rl.nets.by_hand import NetworkByHand
from flame_rl.nets.network import ElementwiseLoss, Loss, Samples
from flame_rl.wire.masks import ACTION_MASKS

_COUNT = itertools.count()


class CompiledNetwork(NetworkByHand):
    """See `Network`. Compiled layers and a head of `HEADS`, with which elementwise losses are
    compiled."""

    layers: CompiledLayers

    @cached_property
    def head(self) -> tuple[Head, np.ndarray]:
        """The head as machine code, and its own array."""
        return HEADS[type(self.output)](self.output, self.places)

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        layer = self.normalizer
        if layer is None:
            return super().prepare(observations)
        width = layer.mean.size
        x = contiguous(observations, *np.shape(observations)[:-1], width)
        result = np.empty_like(x)
        library()["normalize"](result, x, layer.mean, layer.std, x.size // width, width)
        return result

    def compiles(self, loss: Loss, samples: Samples) -> bool:
        """Whether the gradient of the loss is machine code."""
        return isinstance(loss, ElementwiseLoss) and ACTION_MASKS not in samples

    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        if ACTION_MASKS in samples:
            return super().outputs(samples)
        layers, (head, own) = self.layers, self.head
        x = layers.inputs_of(samples["inputs"])
        rows = len(x)
        seen = np.empty((head.seen, rows), np.float32)
        output = np.empty((rows, layers.stages[-1].outputs), np.float32)
        columns = [contiguous(samples[name], rows, w) for name, w in head.columns.items()]
        workspace = layers.workspace(rows)
        outputs_of(layers.stages, head)(
            workspace, layers.weights, x, own, output, *seen, *columns, rows
        )
        return tuple(seen)

    def differentiate(self, loss: Loss, samples: Samples, gradient: np.ndarray) -> dict[str, float]:
        if not self.compiles(loss, samples):
            return super().differentiate(loss, samples, gradient)
        layers, (head, own) = self.layers, self.head
        compiled = gradient_of(layers.stages, head, loss, names_of(loss, samples))
        x = layers.inputs_of(samples["inputs"])
        rows = len(x)
        totals = np.zeros((len(compiled.numbers), LANES), np.float32)
        columns = [contiguous(samples[name], rows, width) for name, width in compiled.columns]
        workspace, room = layers.workspace(rows), np.empty(compiled.room(rows), np.float32)
        compiled.function(workspace, layers.weights, x, own, gradient, room, totals, *columns, rows)
        return dict(zip(compiled.numbers, np.add.reduce(totals, axis=1).tolist(), strict=True))


def names_of(loss: ElementwiseLoss, samples: Samples) -> tuple[str, ...]:
    """The columns of the loss that the samples have."""
    return tuple(name for name in loss.columns if name in samples)


@engine.compiled_once
def outputs_of(stages: tuple[Stage, ...], head: Head) -> Callable[..., None]:
    """Compile what a loss sees.

    Returns:
        A function of arrays and an integer: workspace, weights, x, own as in `Gradient`, output
        [rows, outputs], what a loss sees, [rows] each, the head's columns, rows.
    """
    passes = passes_of(stages).name
    seen = [f"seen{number}" for number in range(head.seen)]
    arrays = "workspace", "weights", "x", "own", "output", *seen, *head.columns
    kinds = dict.fromkeys(arrays, "array") | {"rows": "integer"}
    name = f"{passes}_outputs{next(_COUNT)}"
    f = Function(ir.Module(), name, **kinds)
    workspace, weights, x, own, output, *others, rows = f.arguments
    f.call(f"{passes}_forward", workspace, weights, output, x, rows)
    given = Given(f, output, own, tuple(others[head.seen :]), rows)
    head.write_forward(given, others[: head.seen])
    f.end(for_python=True)
    engine.load(f.module)
    return engine.function(name, [*kinds.values()])


@dataclass(frozen=True)
class Gradient:
    """The gradient of a loss, summed over the samples, as machine code.

    Attributes:
        name: of the function.
        function: of arrays and an integer:
            workspace, weights: see `Passes`.
            x: float32 [rows, D].
            own: the head's array.
            gradient: float32 [P], overwritten.
            room: see `room`.
            totals: of the loss's numbers in shares, float32 [numbers, LANES], added to.
            the columns: float32 [rows, their width] each.
            rows: their number.
        numbers: the names of the loss's numbers.
        columns: those that the samples must have, and the width of each; first the head's, then the
            loss's.
        width: of the network's output.
        seen: see `Head`.
    """

    name: str
    function: Callable[..., None]
    numbers: tuple[str, ...]
    columns: tuple[tuple[str, int], ...]
    width: int
    seen: int

    def room(self, rows: int) -> int:
        """The numbers that the function needs room for."""
        return 2 * (self.seen * padded(rows) + rows * self.width)


@engine.compiled_once
def gradient_of(
    stages: tuple[Stage, ...], head: Head, loss: ElementwiseLoss, names: tuple[str, ...]
) -> Gradient:
    """Compile the gradient of a loss of samples that have these of its columns."""
    passes = passes_of(stages).name
    name = f"{passes}_gradient{next(_COUNT)}"
    columns = (*head.columns.items(), *((own, 1) for own in names))
    numbered = [f"column{number}" for number in range(len(columns))]
    arrays = "workspace", "weights", "x", "own", "gradient", "room", "totals", *numbered
    kinds = dict.fromkeys(arrays, "array") | {"rows": "integer"}
    f = Function(ir.Module(), name, **kinds)
    workspace, weights, x, own, gradient, room, totals, *others, rows = f.arguments
    of_head, of_loss = others[: len(head.columns)], others[len(head.columns) :]
    width, whole = stages[-1].outputs, f.padded(rows)
    seen, slopes = (
        [room + whole * (number + first) for number in range(head.seen)] for first in (0, head.seen)
    )
    output = room + whole * (2 * head.seen)
    output_slopes = output + rows * width

    f.call(f"{passes}_forward", workspace, weights, output, x, rows)
    given = Given(f, output, own, tuple(of_head), rows)
    head.write_forward(given, seen)
    numbers = _write_loss(
        f, loss, dict(zip(names, of_loss, strict=True)), seen, slopes, totals, rows
    )
    head.write_backward(given, slopes, output_slopes, gradient)
    arguments = workspace, weights, output, x, output_slopes, gradient, rows, 0, rows
    f.call(f"{passes}_to_parameters", *arguments)
    f.end(for_python=True)
    engine.load(f.module)
    function = engine.function(name, [*kinds.values()])
    return Gradient(name, function, numbers, columns, width, head.seen)


def _write_loss(
    f: Function,
    loss: ElementwiseLoss,
    columns: dict[str, Array],
    seen: list[Array],
    slopes: list[Array],
    totals: Array,
    rows: Index,
) -> tuple[str, ...]:
    """Add the loss's numbers to the totals, and write its slopes; returns the numbers' names."""
    with f.loop(rows, step=LANES, whole=False) as i:
        mask = f.first_lanes(rows - i)
        samples = {name: (array + i).load(mask) for name, array in columns.items()}
        numbers, of_seen = loss(samples, *((array + i).load(mask) for array in seen))
        for place, number in enumerate(numbers.values()):
            total = totals + place * LANES
            total.store(total.load() + f.vector(number).only(mask))
        for array, slope in zip(slopes, of_seen, strict=True):
            (array + i).store(f.vector(slope))
    return tuple(numbers)
