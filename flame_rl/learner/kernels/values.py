"""An epoch of a value network as machine code, so that it needs no Python, and another thread may
train the policy meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir

from flame_rl.learner.kernels import engine
from flame_rl.learner.kernels.emit import LANES, Function
from flame_rl.learner.kernels.layers import CompiledLayers, contiguous
from flame_rl.learner.kernels.network import Stage, passes_of
from flame_rl.nets.network import Loss
from flame_rl.system.signals import end_if_stopped

if TYPE_CHECKING:
    from flame_rl.learner.on_policy.value_epochs import ValueEpochs
    from flame_rl.learner.training.adam import Adam

_ARRAYS = (
    *("workspace", "weights", "gradient", "of_slice", "parameters", "first", "second"),
    *("inputs", "rows", "targets", "order", "samples", "factors", "losses"),
)


class CompiledEpochs:
    """Trains a value network by whole epochs."""

    def __init__(self, layers: CompiledLayers, loss: Callable[..., Loss]) -> None:
        """`loss` makes a loss of the value and its "targets", given the scale of the output."""
        self._layers = layers
        self._epoch = _epoch(layers.stages, loss)

    def fit(self, adam: Adam, epochs: ValueEpochs) -> float:
        """See `flame_rl.learner.on_policy.value_epochs.fit`."""
        layers, count, steps = self._layers, epochs.minibatches, len(epochs.rows)
        inputs = layers.inputs_of(epochs.inputs)
        rows, orders = (np.ascontiguousarray(a, np.int64) for a in (epochs.rows, epochs.orders))
        targets = contiguous(epochs.targets, steps)
        slice_rows = min(epochs.largest, layers.slice_rows)
        workspace, of_slice = layers.workspace(slice_rows), np.empty_like(adam.gradient)
        samples = np.empty(slice_rows * (inputs.shape[1] + 3) + LANES, np.float32)
        losses = np.empty((count, LANES), np.float32)
        first, second = adam.sums
        for order in orders.reshape(-1, steps):
            end_if_stopped()
            factors = np.array(adam.factors(count, epochs.learning_rate), np.float32)
            self._epoch(
                *(workspace, layers.weights),
                *(adam.gradient, of_slice, adam.parameters, first, second),
                *(inputs, rows, targets, order, samples, factors, losses),
                *(steps, count, slice_rows, adam.parameters.size),
                *(epochs.scale, epochs.max_grad_norm),
            )
            adam.steps += count
        sizes = np.diff(np.arange(count + 1) * steps // count)
        return float((losses.sum(axis=1, dtype=np.float64) / sizes).mean())


@engine.compiled_once
def _epoch(stages: tuple[Stage, ...], loss: Callable[..., Loss]) -> Callable[..., None]:
    """Compile an epoch.

    Args:
        stages: of the network, whose output is a single number.
        loss: see `CompiledEpochs`.

    Returns:
        A function of arrays, integers and numbers:
            workspace, weights: see `Passes`.
            gradient, of_slice, parameters, first, second: of the network and of Adam, and the
                gradient of a slice, float32 [P].
            inputs: float32 [..., D].
            rows: the row of each step in `inputs`, int64 [N].
            targets: float32 [N].
            order: of the steps, int64 [N].
            samples: room for D + 3 numbers of each row of a slice.
            factors: epsilon and rate of Adam for each minibatch, float32 [minibatches, 2].
            losses: the sum of the losses of each minibatch in shares, float32 [minibatches, LANES].
            steps, minibatches, slice_rows, size: N, their number, the most rows of a slice, and P.
            scale, max_norm: of the output, and of the gradient.
    """
    name = f"{passes_of(stages).name}_epoch"
    kinds = dict.fromkeys(_ARRAYS, "array")
    kinds |= dict.fromkeys(("steps", "minibatches", "slice_rows", "size"), "integer")
    kinds |= dict.fromkeys(("scale", "max_norm"), "number")
    module = ir.Module()
    f = Function(module, name, **kinds)
    workspace, weights, gradient, of_slice, *adam = f.arguments[:7]
    inputs, rows, targets, order, samples, factors, losses = f.arguments[7:14]
    steps, minibatches, slice_rows, size, scale, max_norm = f.arguments[14:]
    width, passes = stages[0].inputs, passes_of(stages).name
    # The inputs of a slice, its values, their slopes, and its targets.
    x, value, slope = samples, samples + slice_rows * width, samples + slice_rows * (width + 1)
    target = samples + slice_rows * (width + 2)
    with f.loop(minibatches) as number:
        first = (steps * number).divided(minibatches)
        count = (steps * (number + 1)).divided(minibatches) - first
        slices = (count + (slice_rows - 1)).divided(slice_rows)
        loss_sum = losses + number * LANES
        loss_sum.store(f.vector(0.0))
        with f.loop(slices) as part:
            begin = (count * part).divided(slices)
            own_count = (count * (part + 1)).divided(slices) - begin
            with f.loop(own_count) as i:
                step = order.integer(first + begin + i)
                row = inputs + rows.integer(step) * width
                for start in range(0, width, LANES):
                    mask = f.first_lanes(width - start)
                    (x + (i * width + start)).store((row + start).load(mask), mask)
                (target + i).store((targets + step).number(), f.first_lanes(1))
            f.call(f"{passes}_forward", workspace, weights, value, x, own_count)

            zero = [f.vector(0.0)]
            with f.loop_with(own_count, zero, LANES, whole=False) as (i, (total,), results):
                mask = f.first_lanes(own_count - i)
                known = {"targets": (target + i).load(mask)}
                numbers, (own,) = loss(scale)(known, (value + i).load(mask) * scale)
                (slope + i).store(own * scale, mask)
                results.append(total + numbers["loss"].only(mask))
            loss_sum.store(loss_sum.load() + total)

            arguments = workspace, weights, value, x, slope
            with f.if_first(part) as (alone, others):
                with alone:
                    f.call(f"{passes}_to_parameters", *arguments, gradient, own_count)
                with others:
                    f.call(f"{passes}_to_parameters", *arguments, of_slice, own_count)
                    f.call("add", gradient, of_slice, size)
        f.call("squared_norm", samples, gradient, size)
        mean = 1.0 / count.number()
        norm = samples.load().sum().sqrt() * mean
        factor = mean.unless(norm > max_norm, mean * max_norm / norm)
        epsilon, rate = ((factors + (number * 2 + of)).number() for of in (0, 1))
        f.call("adam", adam[0], gradient, *adam[1:], factor, epsilon, rate, size)
    f.end(for_python=True)
    engine.load(module)
    return engine.function(name, [*kinds.values()])
