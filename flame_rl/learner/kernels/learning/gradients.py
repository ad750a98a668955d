"""Networks as machine code: layers and head in one call, and with a loss its gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flame_rl.learner.kernels import engine
from flame_rl.learner.kernels.emit import LANES, Array, Function, Index, padded
from flame_rl.learner.kernels.learning.heads import Given, Head
from flame_rl.learner.kernels.network import Stage, passes_of
from flame_rl.nets.network import ElementwiseLoss, Samples

_COUNT = itertools.count()


def columns_in(loss: ElementwiseLoss, samples: Samples) -> tuple[str, ...]:
    """The columns of the loss that the samples have."""
    return tuple(name for name in loss.columns if name in samples)


@engine.compiled_once
def outputs_of(stages: tuple[Stage, ...], head: Head) -> Callable[..., None]:
    """Compile what a loss sees.

    Returns:
        A function of arrays and integers: workspace, weights, x, own as in `Gradient`, room for
        the output of a slice, what a loss sees, [rows] each, the head's columns, rows, and the most
        rows of a slice. Workspace and output have room for a slice.
    """
    passes, width = passes_of(stages).name, stages[0].inputs

    def write(f: Function, *arguments: Any) -> None:
        workspace, weights, x, own, output, *others, rows, most = arguments
        seen, columns = others[: head.seen], others[head.seen :]
        with f.slices(rows, most) as (_, start, count):
            f.call(f"{passes}_forward", workspace, weights, output, x + start * width, count)
            own_columns = (
                column + start * across
                for column, across in zip(columns, head.columns.values(), strict=True)
            )
            given = Given(f, output, own, tuple(own_columns), count)
            head.write_forward(given, [each + start for each in seen])

    name, seen = f"{passes}_outputs{next(_COUNT)}", (f"seen{i}" for i in range(head.seen))
    arrays = " ".join(("workspace weights x own output", *seen, *head.columns))
    return engine.functions({name: (write, arrays, "rows most")})[name]


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
    width = stages[-1].outputs
    numbers: list[str] = []  # filled when the function is written

    def write(f: Function, *arguments: Any) -> None:
        workspace, weights, x, own, gradient, room, totals, *others, rows = arguments
        of_head, of_loss = others[: len(head.columns)], others[len(head.columns) :]
        whole = f.padded(rows)
        places = [room + whole * number for number in range(2 * head.seen)]
        seen, slopes = places[: head.seen], places[head.seen :]
        output = room + whole * (2 * head.seen)
        output_slopes = output + rows * width
        f.call(f"{passes}_forward", workspace, weights, output, x, rows)
        given = Given(f, output, own, tuple(of_head), rows)
        head.write_forward(given, seen)
        samples = dict(zip(names, of_loss, strict=True))
        numbers.extend(_write_loss(f, loss, samples, seen, slopes, totals, rows))
        head.write_backward(given, slopes, output_slopes, gradient)
        passed = workspace, weights, output, x, output_slopes, gradient, rows, 0, rows
        f.call(f"{passes}_to_parameters", *passed)

    numbered = (f"column{number}" for number in range(len(columns)))
    arrays = " ".join(("workspace weights x own gradient room totals", *numbered))
    compiled = engine.functions({name: (write, arrays, "rows")})
    return Gradient(name, compiled[name], tuple(numbers), columns, width, head.seen)


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
