"""Passes through stacks of dense layers, with their normalisations and activations.

A pass works in a piece of memory, its workspace: first the transposed weights, then what each stage
keeps for the backward pass, and two slopes. All rows in it are padded to whole vectors with zeros.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from flame_rl.learner.kernels import engine
from flame_rl.learner.kernels.elementwise import ACTIVATIONS
from flame_rl.learner.kernels.emit import LANES, Array, Function, Index, padded
from flame_rl.learner.kernels.library import library
from flame_rl.learner.kernels.products import write_row_sums

# The arrays of a stage: weight and bias of the dense layer, then those of the normalisation.
_WEIGHT, _BIAS, _NORM_WEIGHT, _NORM_BIAS, _EPSILON = range(5)
ARRAYS = 5
# Numbers. Rows that lie a multiple of this apart share few places of a cache.
_ALIASED = 128
_NETWORKS = itertools.count()


@dataclass(frozen=True)
class Stage:
    """A dense layer and what follows it.

    Attributes:
        inputs, outputs: its width.
        places: where the gradients of its weight and bias begin in the flat gradient, in numbers,
            and those of a normalisation that follows, if one does.
        activation: a key of `ACTIVATIONS`, or empty.
    """

    inputs: int
    outputs: int
    places: tuple[int, ...]
    activation: str = ""

    @property
    def normalized(self) -> bool:
        return len(self.places) > 2

    @property
    def transposed_row(self) -> int:
        """The numbers from one row of the transposed weights to the next: whole vectors, and one
        more where rows would push each other out of the cache."""
        row = padded(self.outputs)
        return row + LANES if row % _ALIASED == 0 else row

    @property
    def keeps_input(self) -> bool:
        """Whether the derivative of the activation needs its input."""
        return bool(self.activation) and ACTIVATIONS[self.activation].keeps_input


@dataclass(frozen=True)
class Passes:
    """Machine code for stages; the last one has no normalisation, and an activation at most whose
    derivative follows from what it gives. Arrays are float32; `weights` is a table of addresses,
    int64 [stages, ARRAYS]: of each stage's weight [outputs, inputs] and bias, and of weight, bias
    and epsilon of its normalisation. The slope for the output, [rows, outputs], may be overwritten.

    Attributes:
        name: what the names of its functions begin with.
        fixed: the numbers in a workspace that do not depend on the rows.
        per_row: those of each row.
        kept: where the arrays of a workspace begin and end that passes back need, in numbers per
            row after the fixed ones.
        forward: (workspace, weights, output [rows, outputs], x [rows, inputs], rows).
        to_parameters: (workspace, weights, output, x, slope, gradient, rows, first, end): writes
            the gradients of all parameters, summed over the rows from `first` to `end`, to their
            places. Passes of other rows may go on at the same time.
        to_inputs: (workspace, weights, output, result [rows, inputs], slope, rows).
    """

    name: str
    fixed: int
    per_row: int
    kept: tuple[tuple[int, int], ...]
    forward: Callable[..., None]
    to_parameters: Callable[..., None]
    to_inputs: Callable[..., None]


@engine.compiled_once
def passes_of(stages: tuple[Stage, ...]) -> Passes:
    """Compile the passes."""
    library()
    name, places = f"network{next(_NETWORKS)}", _Places(stages)
    writers = {
        "forward": (_write_forward, "output x", "rows"),
        "to_parameters": (_write_to_parameters, "output x slope gradient", "rows first end"),
        "to_inputs": (_write_to_inputs, "output result slope", "rows"),
    }
    compiled = engine.functions(
        {
            f"{name}_{own}": (
                partial(_write_pass, write, stages),
                f"workspace weights {arrays}",
                rows,
            )
            for own, (write, arrays, rows) in writers.items()
        }
    )
    kept = tuple(itertools.pairwise(places.kept))
    passes = dict(zip(writers, compiled.values(), strict=True))
    return Passes(name, places.fixed, places.per_row, kept, **passes)


class _Places:
    """Where the arrays of a workspace begin, in numbers: those of the whole, and those of each row,
    which are to be multiplied by the number of rows."""

    def __init__(self, stages: tuple[Stage, ...]) -> None:
        """
        Attributes:
            transposed: the weights [inputs, outputs] of each stage.
            z: per row, what each dense layer gives; the normalisation works in place.
            inverse: per row, the factors of a normalisation, if there is one.
            x: per row, what each activation gets.
            y: per row, what each stage gives.
            kept: per row, where all of those begin, and where the last one ends.
            slopes: per row, two slopes that take turns; each has room for `widest` numbers.
        """
        sizes = [stage.inputs * stage.transposed_row for stage in stages]
        *self.transposed, self.fixed = itertools.accumulate(sizes, initial=0)
        self.z, self.inverse, self.x, self.y = [], [], [], []
        end = 0
        for stage in stages[:-1]:
            width = padded(stage.outputs)
            self.z.append(end)
            end += width
            self.inverse.append(end)
            if stage.normalized:
                end += LANES + width
            self.x.append(end - width)
            if stage.keeps_input:
                end += width
            self.y.append(end - width)
        self.kept = sorted({*self.z, *self.inverse, *self.x, *self.y, end})
        self.widest = max(padded(stage.inputs) for stage in stages)
        self.slopes = end, end + self.widest
        self.per_row = end + 2 * self.widest


class _Pass:
    """A pass that is being written.

    Attributes:
        f: the function.
        stages: of the network.
        rows: the number of those that it computes.
        first: the first of these.
    """

    def __init__(
        self,
        f: Function,
        stages: tuple[Stage, ...],
        workspace: Array,
        weights: Array,
        all_rows: Index,
        first: Index | int = 0,
        end: Index | None = None,
    ) -> None:
        self.f, self.stages, self.first = f, stages, f.integer(first)
        self.rows = all_rows if end is None else end - first
        self._all_rows = all_rows
        self._workspace, self._weights, self._places = workspace, weights, _Places(stages)

    def weight(self, number: int, which: int) -> Array:
        """One of a stage's arrays."""
        return self._weights.address(ARRAYS * number + which)

    def transposed(self, number: int) -> Array:
        return self._workspace + self._places.transposed[number]

    def kept(self, name: str, number: int) -> Array:
        """An array with a row for each sample, from the first row on; see `_Places`."""
        places = self._places
        place = self._all_rows * getattr(places, name)[number] + places.fixed
        widths = {"inverse": LANES, "slopes": places.widest}
        width = widths.get(name) or padded(self.stages[number].outputs)
        return self._workspace + (place + self.first * width)

    def from_first(self, array: Array, width: int) -> Array:
        """The rows of an array from the first one on."""
        return array + self.first * width

    def output_back(self, output: Array, slope: Array) -> int:
        """In place, the slope before the last stage's activation; returns the length of its
        rows."""
        last = self.stages[-1]
        if last.activation:
            self.f.call(f"{last.activation}_slope", slope, output, self.rows * last.outputs)
        return last.outputs

    def back(self, number: int, slope: Array, slope_row: int) -> tuple[Array, int]:
        """The slope for the dense layer before a stage's, and the length of its rows, given those
        of the stage's."""
        f, rows = self.f, self.rows
        stage, before = self.stages[number], self.stages[number - 1]
        result, width = self.kept("slopes", number % 2), padded(stage.inputs)
        self.to_inputs(number, result, width, slope, slope_row)
        if before.activation:
            kept = self.kept("x" if before.keeps_input else "y", number - 1)
            f.call(f"{before.activation}_slope", result, kept, rows * width)
        return result, width

    def normalization_back(self, number: int, slope: Array) -> None:
        """In place, the slope before a stage's normalisation, given the one after it."""
        stage = self.stages[number]
        kept = self.kept("z", number), self.kept("inverse", number)
        weight = self.weight(number, _NORM_WEIGHT)
        self.f.call("norm_slope", slope, *kept, weight, self.rows, stage.outputs)

    def to_inputs(
        self, number: int, result: Array, result_row: int, slope: Array, slope_row: int
    ) -> None:
        """The slope for what a stage's dense layer gets, given that for what it gives."""
        stage = self.stages[number]
        arrays = result, slope, self.weight(number, _WEIGHT), self.f.constants(0.0)
        strides = result_row, slope_row, 1, stage.inputs, 0
        self.f.call("product", *arrays, *strides, self.rows, stage.outputs, stage.inputs)


def _write_pass(
    write_statements: Callable[..., None], stages: tuple[Stage, ...], f: Function, *arguments: Any
) -> None:
    """Write a pass, given its arguments in the order of `Passes`."""
    workspace, weights, *arrays = (each for each in arguments if isinstance(each, Array))
    rows = (each for each in arguments if isinstance(each, Index))
    write_statements(_Pass(f, stages, workspace, weights, *rows), *arrays)


def _write_forward(p: _Pass, output: Array, x: Array) -> None:
    f, rows = p.f, p.rows
    x_row = p.stages[0].inputs
    for number, stage in enumerate(p.stages):
        weight, bias = p.weight(number, _WEIGHT), p.weight(number, _BIAS)
        last, across = number == len(p.stages) - 1, padded(stage.outputs)
        transposed, transposed_row = p.transposed(number), stage.transposed_row
        f.call("transpose", transposed, weight, transposed_row, stage.outputs, stage.inputs)
        z, z_row = (output, stage.outputs) if last else (p.kept("z", number), across)
        strides = z_row, x_row, 1, transposed_row, 1
        sizes = rows, stage.inputs, stage.outputs
        f.call("product", z, x, transposed, bias, *strides, *sizes)
        x, x_row = z, z_row
        if stage.normalized:
            x, inverse = p.kept("x", number), p.kept("inverse", number)
            own = [p.weight(number, which) for which in (_NORM_WEIGHT, _NORM_BIAS, _EPSILON)]
            f.call("norm_value", x, z, inverse, *own, rows, stage.outputs)
        if stage.activation:
            y = output if last else p.kept("y", number)
            f.call(f"{stage.activation}_value", y, x, rows * z_row)
            x = y


def _write_to_parameters(p: _Pass, output: Array, x: Array, slope: Array, gradient: Array) -> None:
    f, rows = p.f, p.rows
    width = p.stages[-1].outputs
    output, slope = p.from_first(output, width), p.from_first(slope, width)
    x = p.from_first(x, p.stages[0].inputs)
    slope_row = p.output_back(output, slope)
    for number in reversed(range(len(p.stages))):
        stage = p.stages[number]
        weight, bias, *of_norm = (gradient + place for place in stage.places)
        if of_norm:
            f.call("norm_gradient", of_norm[0], slope, p.kept("z", number), rows, stage.outputs)
            write_row_sums(f, of_norm[1], slope, slope_row, rows, stage.outputs)
            p.normalization_back(number, slope)
        before, before_row = x, stage.inputs
        if number:
            before, before_row = p.kept("y", number - 1), padded(stage.inputs)
        strides = stage.inputs, 1, slope_row, before_row, 0
        sizes = stage.outputs, rows, stage.inputs
        f.call("product", weight, slope, before, f.constants(0.0), *strides, *sizes)
        write_row_sums(f, bias, slope, slope_row, rows, stage.outputs)
        if number:
            slope, slope_row = p.back(number, slope, slope_row)


def _write_to_inputs(p: _Pass, output: Array, result: Array, slope: Array) -> None:
    slope_row = p.output_back(output, slope)
    for number in reversed(range(len(p.stages))):
        if p.stages[number].normalized:
            p.normalization_back(number, slope)
        if number:
            slope, slope_row = p.back(number, slope, slope_row)
    p.to_inputs(0, result, p.stages[0].inputs, slope, slope_row)
