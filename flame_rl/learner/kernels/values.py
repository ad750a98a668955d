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
    *("workspace", "weights", "gradient", "parameters", "first", "second"),
    *("inputs", "rows", "targets", "order", "minibatch", "factors", "losses"),
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
        workspace = layers.workspace(epochs.largest)
        minibatch = np.empty(epochs.largest * (inputs.shape[1] + 3) + LANES, np.float32)
        losses = np.empty((count, LANES), np.float32)
        first, second = adam.sums
        for order in orders.reshape(-1, steps):
            end_if_stopped()
            factors = np.array(adam.factors(count, epochs.learning_rate), np.float32)
            self._epoch(
                *(workspace, layers.weights),
                *(adam.gradient, adam.parameters, first, second),
                *(inputs, rows, targets, order, minibatch, factors, losses),
                *(steps, count, epochs.largest, adam.parameters.size),
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
            gradient, parameters, first, second: of the network and of Adam, float32 [P].
            inputs: float32 [..., D].
            rows: the row of each step in `inputs`, int64 [N].
            targets: float32 [N].
            order: of the steps, int64 [N].
            minibatch: room for D + 3 numbers of each row of the largest minibatch.
            factors: epsilon and rate of Adam for each minibatch, float32 [minibatches, 2].
            losses: the sum of the losses of each minibatch in shares, float32 [minibatches, LANES].
            steps, minibatches, largest, size: N, their number, the rows of the largest, and P.
            scale, max_norm: of the output, and of the gradient.
    """
    name = f"{passes_of(stages).name}_epoch"
    kinds = dict.fromkeys(_ARRAYS, "array")
    kinds |= dict.fromkeys(("steps", "minibatches", "largest", "size"), "integer")
    kinds |= dict.fromkeys(("scale", "max_norm"), "number")
    module = ir.Module()
    f = Function(module, name, **kinds)
    workspace, weights, gradient, *adam = f.arguments[:6]
    inputs, rows, targets, order, minibatch, factors, losses = f.arguments[6:13]
    steps, minibatches, largest, size, scale, max_norm = f.arguments[13:]
    width = stages[0].inputs
    # The minibatch, its values, their slopes, and its targets.
    x, value, slope = minibatch, minibatch + largest * width, minibatch + largest * (width + 1)
    target = minibatch + largest * (width + 2)
    with f.loop(minibatches) as number:
        first = (steps * number).divided(minibatches)
        count = (steps * (number + 1)).divided(minibatches) - first
        with f.loop(count) as i:
            step = order.integer(first + i)
            row = inputs + rows.integer(step) * width
            for start in range(0, width, LANES):
                mask = f.first_lanes(width - start)
                (x + (i * width + start)).store((row + start).load(mask), mask)
            (target + i).store((targets + step).number(), f.first_lanes(1))
        f.call(f"{passes_of(stages).name}_forward", workspace, weights, value, x, count)

        zero = [f.vector(0.0)]
        with f.loop_with(count, zero, LANES, whole=False) as (i, (total,), results):
            mask = f.first_lanes(count - i)
            samples = {"targets": (target + i).load(mask)}
            numbers, (own,) = loss(scale)(samples, (value + i).load(mask) * scale)
            (slope + i).store(own * scale, mask)
            results.append(total + numbers["loss"].only(mask))
        (losses + number * LANES).store(total)

        passes = f"{passes_of(stages).name}_to_parameters"
        f.call(passes, workspace, weights, value, x, slope, gradient, count)
        f.call("squared_norm", minibatch, gradient, size)
        mean = 1.0 / count.number()
        norm = minibatch.load().sum().sqrt() * mean
        factor = mean.unless(norm > max_norm, mean * max_norm / norm)
        epsilon, rate = ((factors + (number * 2 + of)).number() for of in (0, 1))
        f.call("adam", adam[0], gradient, *adam[1:], factor, epsilon, rate, size)
    f.end(for_python=True)
    engine.load(module)
    return engine.function(name, [*kinds.values()])
