"""An epoch of gradient steps as machine code, so that it needs no Python, and another thread may
train another network meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flame_rl.learner.kernels import engine
from flame_rl.learner.kernels.emit import LANES, Array, Function, Index
from flame_rl.learner.kernels.layers import CompiledLayers, contiguous
from flame_rl.learner.kernels.learning.gradients import Gradient, columns_in, gradient_of
from flame_rl.learner.kernels.learning.heads import Head
from flame_rl.learner.kernels.network import Stage
from flame_rl.nets.network import ElementwiseLoss
from flame_rl.system.signals import end_if_stopped

if TYPE_CHECKING:
    from flame_rl.learner.training.adam import Adam
    from flame_rl.learner.training.minibatches import Descent, Epoch

# Samples times parameters of one call, which takes about a tenth of a second; between two calls
# the user may stop the run.
_AT_ONCE = 1 << 30
_ARRAYS = (
    "workspace weights own gradient of_slice parameters first second "
    "inputs rows order samples room factors totals ends state"
)
_INTEGERS = "begin end steps minibatches slice_rows size"


def run_epoch(
    layers: CompiledLayers,
    head: Head,
    own: np.ndarray,
    loss: ElementwiseLoss,
    adam: Adam,
    epoch: Epoch,
    descent: Descent,
) -> list[dict[str, float]]:
    """See `flame_rl.learner.training.minibatches.descend`; `own` is the head's array."""
    names = columns_in(loss, epoch.columns)
    gradient, function = _epoch(layers.stages, head, loss, names)
    inputs, steps, count = layers.inputs_of(epoch.inputs), epoch.steps, epoch.count
    rows, order = (np.ascontiguousarray(array, np.int64) for array in (epoch.rows, epoch.order))
    columns = [contiguous(epoch.columns[name], steps, width) for name, width in gradient.columns]
    slice_rows = min(epoch.largest, layers.slice_rows)
    widths = inputs.shape[1] + sum(width for _, width in gradient.columns)
    samples, room = (
        np.empty(size, np.float32) for size in (slice_rows * widths, gradient.room(slice_rows))
    )
    workspace, of_slice = layers.workspace(slice_rows), np.empty_like(adam.gradient)
    factors = np.array(adam.factors(count, descent.learning_rate), np.float32)
    totals = np.zeros((count, len(gradient.numbers), LANES), np.float32)
    ends, state = np.full((count, 2), -1, np.float32), np.zeros(2 * LANES, np.float32)
    at_once = max(1, _AT_ONCE // (epoch.largest * adam.parameters.size))
    done = 0
    for begin in range(0, count, at_once):
        end_if_stopped()
        function(
            *(workspace, layers.weights, own, adam.gradient, of_slice, adam.parameters, *adam.sums),
            *(inputs, rows, order, samples, room, factors, totals, ends, state, *columns),
            *(begin, min(begin + at_once, count), steps, count, slice_rows, adam.parameters.size),
            *(descent.max_grad_norm, descent.max_kl),
        )
        before, done = done, int(np.count_nonzero(ends[:, 0] != -1))
        too_far = not state[0] <= np.float32(descent.max_kl)
        adam.steps += done - before - too_far
        if too_far:
            break
    sizes = np.diff(np.arange(done + 1) * steps // count)
    means = totals[:done].sum(axis=2, dtype=np.float64) / sizes[:, None]
    if "kl" in gradient.numbers:  # as it was compared
        means[:, gradient.numbers.index("kl")] = ends[:done, 1]
    named = (*gradient.numbers, "gradient_norm")
    rows_of_numbers = np.column_stack([means, ends[:done, 0]]).tolist()
    return [dict(zip(named, numbers, strict=True)) for numbers in rows_of_numbers]


@engine.compiled_once
def _epoch(
    stages: tuple[Stage, ...], head: Head, loss: ElementwiseLoss, names: tuple[str, ...]
) -> tuple[Gradient, Callable[..., None]]:
    """Compile an epoch of a loss of samples that have these of its columns.

    Returns:
        The gradient, and a function of arrays, integers and numbers:
            workspace, weights, own, room: see `Gradient`.
            gradient, of_slice, parameters, first, second: of the network and of Adam, and the
                gradient of a slice, float32 [P].
            inputs: float32 [..., D].
            rows: the row of each step in `inputs`, int64 [N].
            order: of the steps, int64 [N].
            samples: room for the inputs and columns of each row of a slice.
            factors: epsilon and rate of Adam for each minibatch, float32 [minibatches, 2].
            totals: of the loss's numbers of each minibatch in shares, float32 [minibatches,
                numbers, LANES]; 0 at first.
            ends: of each minibatch the gradient's norm and the mean of "kl", float32 [minibatches,
                2]; -1 at first, and where the epoch has ended before.
            state: the mean of "kl" in all lanes, 0 without one, and room for a vector, float32 [2,
                LANES]; 0 at first.
            the columns: float32 [N, their width] each.
            begin, end: the minibatches that are learned from are those from one to the other.
            steps, minibatches, slice_rows, size: N, their number, the most rows of a slice, and P.
            max_norm, max_kl: see `Descent`.
    """
    gradient = gradient_of(stages, head, loss, names)
    name = f"{gradient.name}_epoch"
    arrays = " ".join((_ARRAYS, *(f"column{number}" for number in range(len(gradient.columns)))))
    write = partial(_write_epoch, gradient, stages[0].inputs)
    compiled = engine.functions({name: (write, arrays, _INTEGERS, "max_norm max_kl")})
    return gradient, compiled[name]


def _write_epoch(compiled: Gradient, width: int, f: Function, *arguments: Any) -> None:
    """See `_epoch`; `width` is that of the inputs."""
    workspace, weights, own, gradient, of_slice, parameters, *sums = arguments[:8]
    inputs, rows, order, samples, room, factors, totals, ends, state = arguments[8:17]
    widths = [across for _, across in compiled.columns]
    given, numbers = arguments[17 : 17 + len(widths)], arguments[17 + len(widths) :]
    begin, end, steps, minibatches, slice_rows, size, max_norm, max_kl = numbers
    kept = len(compiled.numbers) * LANES
    # The inputs of a slice, and its columns.
    places = itertools.accumulate((width, *widths[:-1]))
    x, columns = samples, [samples + slice_rows * place for place in places]

    def write_minibatch(number: Index) -> None:
        first = (steps * number).divided(minibatches)
        count = (steps * (number + 1)).divided(minibatches) - first
        own_totals = totals + number * kept
        with f.slices(count, slice_rows) as (part, start, rows_of_slice):
            with f.loop(rows_of_slice) as i:
                step = order.integer(first + start + i)
                _copy(f, x + i * width, inputs + rows.integer(step) * width, width)
                for column, source, across in zip(columns, given, widths, strict=True):
                    _copy(f, column + i * across, source + step * across, across)
            others = room, own_totals, *columns, rows_of_slice
            with f.if_first(part) as (alone, added):
                with alone:
                    f.call(compiled.name, workspace, weights, x, own, gradient, *others)
                with added:
                    f.call(compiled.name, workspace, weights, x, own, of_slice, *others)
                    f.call("add", gradient, of_slice, size)
        squares = state + LANES
        f.call("squared_norm", squares, gradient, size)
        mean = 1.0 / count.number()
        norm = squares.load().sum().sqrt() * mean
        (ends + number * 2).store(norm, f.first_lanes(1))
        if "kl" in compiled.numbers:
            kl = own_totals + compiled.numbers.index("kl") * LANES
            state.store(kl.load().sum() * mean)
            (ends + (number * 2 + 1)).store(state.load(), f.first_lanes(1))
        factor = mean.unless(norm > max_norm, mean * max_norm / norm)
        epsilon, rate = ((factors + (number * 2 + of)).number() for of in (0, 1))
        with f.when(state.number() <= max_kl):
            f.call("adam", parameters, gradient, *sums, factor, epsilon, rate, size)

    with f.loop(end, first=begin) as number, f.when(state.number() <= max_kl):
        write_minibatch(number)


def _copy(f: Function, target: Array, source: Array, width: int) -> None:
    for start in range(0, width, LANES):
        mask = f.first_lanes(width - start)
        (target + start).store((source + start).load(mask), mask)
