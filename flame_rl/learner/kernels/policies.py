"""A Gaussian policy as machine code: layers and head in one call, and with a loss its gradient."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
from llvmlite import ir

from flame_rl.learner.kernels import engine
from flame_rl.learner.kernels.emit import LANES, Array, Function, Index, Vector, padded
from flame_rl.learner.kernels.layers import CompiledLayers, contiguous
from flame_rl.learner.kernels.network import Stage, passes_of
from flame_rl.nets.by_hand import NetworkByHand
from flame_rl.nets.network import ElementwiseLoss, Loss, Samples

_ARRAYS = "workspace", "weights", "x", "actions", "log_std", "gradient", "room", "totals"

_COUNT = itertools.count()


class CompiledGaussian(NetworkByHand):
    """See `Network`. Compiled layers and a Gaussian head, with which elementwise losses are
    compiled."""

    layers: CompiledLayers

    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        layers = self.layers
        x = layers.inputs_of(samples["inputs"])
        rows, width = len(x), layers.stages[-1].outputs
        workspace, actions = layers.workspace(rows), contiguous(samples["actions"], rows, width)
        mean, (log_probs, entropies) = np.empty_like(actions), np.empty((2, rows), np.float32)
        _outputs(layers.stages)(
            *(workspace, layers.weights, x, actions, self.output.log_std),
            *(mean, log_probs, entropies, rows),
        )
        return log_probs, entropies

    def differentiate(self, loss: Loss, samples: Samples, gradient: np.ndarray) -> dict[str, float]:
        if not isinstance(loss, ElementwiseLoss):
            return super().differentiate(loss, samples, gradient)
        names = tuple(name for name in loss.columns if name in samples)
        layers, (place,) = self.layers, self.places
        results, function = _gradient(layers.stages, loss, names, place.start // 4)
        x = layers.inputs_of(samples["inputs"])
        rows, width = len(x), layers.stages[-1].outputs
        whole = padded(rows)
        totals = np.zeros((len(results), LANES), np.float32)
        room = np.empty(2 * (whole + rows * width), np.float32)
        workspace, actions = layers.workspace(rows), contiguous(samples["actions"], rows, width)
        function(
            *(workspace, layers.weights, x, actions, self.output.log_std, gradient, room, totals),
            *(contiguous(samples[name], rows) for name in names),
            *(rows, whole),
        )
        return dict(zip(results, np.add.reduce(totals, axis=1).tolist(), strict=True))


class _Head:
    """A Gaussian head that is being written.

    Attributes:
        masks: of the vectors that hold the numbers of an action.
        starts: the first number in each of these vectors.
        inverses: 1 / std, in vectors like these.
        entropy: of the policy, in all lanes.
    """

    def __init__(
        self, f: Function, width: int, mean: Array, actions: Array, log_std: Array
    ) -> None:
        """`width` is A; mean and actions are [rows, A], log_std is [A]."""
        self._f, self._width, self._mean, self._actions = f, width, mean, actions
        self.starts = range(0, width, LANES)
        self.masks = [f.first_lanes(width - start) for start in self.starts]
        log_stds = [
            (log_std + start).load(mask)
            for start, mask in zip(self.starts, self.masks, strict=True)
        ]
        self.inverses = [(-each).exp() for each in log_stds]
        total = f.vector(0.0)
        for each in log_stds:
            total = total + each
        self._constant = total.sum() + 0.5 * math.log(2 * math.pi) * width
        self.entropy = self._constant + 0.5 * width

    def z(self, row: Index) -> list[Vector]:
        """(action - mean) / std of a row."""
        vectors = []
        for start, mask, inverse in zip(self.starts, self.masks, self.inverses, strict=True):
            at = row * self._width + start
            vectors.append(
                ((self._actions + at).load(mask) - (self._mean + at).load(mask)) * inverse
            )
        return vectors

    def write_log_probs(self, log_probs: Array, rows: Index) -> None:
        """Those of the actions, [rows]."""
        one = self._f.first_lanes(1)
        with self._f.loop(rows) as row:
            squares = self._f.vector(0.0)
            for z in self.z(row):
                squares = z.times_plus(z, squares)
            (log_probs + row).store(squares.sum() * -0.5 - self._constant, one)


@engine.compiled_once
def _outputs(stages: tuple[Stage, ...]) -> Callable[..., None]:
    """Compile log-probabilities and entropies.

    Returns:
        A function of arrays and an integer: workspace, weights, x, actions and log_std as in
        `_gradient`, mean [rows, A], log_probs and entropies [rows], rows.
    """
    passes = passes_of(stages).name
    arrays = "workspace", "weights", "x", "actions", "log_std", "mean", "log_probs", "entropies"
    kinds = dict.fromkeys(arrays, "array") | {"rows": "integer"}
    name = f"{passes}_outputs"
    f = Function(ir.Module(), name, **kinds)
    workspace, weights, x, actions, log_std, mean, log_probs, entropies, rows = f.arguments
    f.call(f"{passes}_forward", workspace, weights, mean, x, rows)
    head = _Head(f, stages[-1].outputs, mean, actions, log_std)
    head.write_log_probs(log_probs, rows)
    for i, mask in f.vectors(rows):
        (entropies + i).store(head.entropy, mask)
    f.end(for_python=True)
    engine.load(f.module)
    return engine.function(name, [*kinds.values()])


@engine.compiled_once
def _gradient(
    stages: tuple[Stage, ...], loss: ElementwiseLoss, columns: tuple[str, ...], place: int
) -> tuple[tuple[str, ...], Callable[..., None]]:
    """Compile the gradient of a loss, summed over the samples.

    Args:
        stages: of the network.
        loss: of log-probabilities and entropies.
        columns: those that the samples have of the loss's.
        place: where the gradient of the logarithms of the standard deviations begins.

    Returns:
        The names of the loss's numbers, and a function of arrays and integers:
            workspace, weights: see `Passes`.
            x: float32 [rows, D].
            actions: float32 [rows, A].
            log_std: float32 [A].
            gradient: float32 [P], overwritten.
            room: for 2 A numbers of each row, and two columns.
            totals: of the loss's numbers in shares, float32 [numbers, LANES]; 0 at first.
            the columns: float32 [rows] each.
            rows, whole: their number, and in whole vectors.
    """
    passes = passes_of(stages).name
    name = f"{passes}_gradient{next(_COUNT)}"
    kinds = dict.fromkeys((*_ARRAYS, *columns), "array")
    kinds |= {"rows": "integer", "whole": "integer"}
    f = Function(ir.Module(), name, **kinds)
    workspace, weights, x, actions, log_std, gradient, room, totals = f.arguments[:8]
    *given, rows, whole = f.arguments[8:]
    width = stages[-1].outputs
    log_probs, slopes = room, room + whole
    mean, mean_slopes = slopes + whole, slopes + (whole + rows * width)
    f.call(f"{passes}_forward", workspace, weights, mean, x, rows)

    head = _Head(f, width, mean, actions, log_std)
    head.write_log_probs(log_probs, rows)

    results: tuple[str, ...] = ()
    zero = f.vector(0.0)
    with f.loop_with(rows, [zero], LANES, whole=False) as (i, (rest,), following):
        mask = f.first_lanes(rows - i)
        samples = {c: (array + i).load(mask) for c, array in zip(columns, given, strict=True)}
        own, (of_log_probs, of_entropies) = loss(samples, (log_probs + i).load(mask), head.entropy)
        results = tuple(own)
        for number, column in enumerate(results):
            total = totals + number * LANES
            total.store(total.load() + f.vector(own[column]).only(mask))
        of_log_probs = f.vector(of_log_probs)
        (slopes + i).store(of_log_probs)
        both = (f.vector(of_entropies) - of_log_probs).only(mask)
        following.append(rest + both)

    # With z = (a - mean) / std: d log p / d mean = z / std, d log p / d log std = z^2 - 1, and
    # d entropy / d log std = 1.
    with f.loop_with(rows, [zero] * len(head.masks)) as (row, sums, following):
        slope = (slopes + row).number()
        for place_of, z in enumerate(head.z(row)):
            at = mean_slopes + (row * width + head.starts[place_of])
            at.store(slope * z * head.inverses[place_of], head.masks[place_of])
            following.append((slope * z).times_plus(z, sums[place_of]))
    for start, mask, own_sum in zip(head.starts, head.masks, sums, strict=True):
        (gradient + (place + start)).store(own_sum + rest.sum(), mask)
    arrays = mean, x, mean_slopes, gradient
    f.call(f"{passes}_to_parameters", workspace, weights, *arrays, rows)
    f.end(for_python=True)
    engine.load(f.module)
    return results, engine.function(name, [*kinds.values()])
