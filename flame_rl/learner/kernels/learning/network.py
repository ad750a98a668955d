"""Networks whose layers and head are machine code."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, partial

import numpy as np

from flame_rl.learner.kernels.emit import LANES
from flame_rl.learner.kernels.layers import CompiledLayers, contiguous
from flame_rl.learner.kernels.learning.epochs import run_epoch
from flame_rl.learner.kernels.learning.gradients import columns_in, gradient_of, outputs_of
from flame_rl.learner.kernels.learning.heads import HEADS, Head
from flame_rl.learner.kernels.library import library
from flame_rl.nets.by_hand import NetworkByHand
from flame_rl.nets.network import ElementwiseLoss, EpochFunction, Loss, Samples, rows_of, split
from flame_rl.wire.masks import ACTION_MASKS

# One call of `outputs` computes at most this number of slices.
_OUTPUT_SLICES = 4


class CompiledNetwork(NetworkByHand):
    """See `Network`. Compiled layers and a head of `HEADS`, with which elementwise losses are
    compiled."""

    layers: CompiledLayers

    @cached_property
    def head(self) -> tuple[Head, np.ndarray]:
        """The head as machine code, and its own array."""
        return HEADS[type(self.output)](self.output, self.places)

    @property
    def output_rows(self) -> int:
        # Machine code goes from slice to slice, and threads seldom wait for Python's lock.
        return _OUTPUT_SLICES * self.slice_rows

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        layer = self.normalizer
        if layer is None:
            return super().prepare(observations)
        width = layer.mean.size
        x = contiguous(observations, *np.shape(observations)[:-1], width)
        result = np.empty_like(x)
        library()["normalize"](result, x, layer.mean, layer.std, x.size // width, width)
        return result

    def _compiles(self, loss: Loss, samples: Samples) -> bool:
        """Whether the gradient of the loss is machine code."""
        return isinstance(loss, ElementwiseLoss) and ACTION_MASKS not in samples

    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        stages, (head, _) = self.layers.stages, self.head
        rows, most = rows_of(samples), self.slice_rows
        if ACTION_MASKS in samples:
            slices = split(samples, max(1, -(-rows // most)))
            columns = zip(*map(super().outputs, slices), strict=True)
            return tuple(map(np.concatenate, columns))
        arrays, columns = self._arguments(samples, head.columns.items(), min(rows, most))
        seen = np.empty((head.seen, rows), np.float32)
        output = np.empty((min(rows, most), stages[-1].outputs), np.float32)
        outputs_of(stages, head)(*arrays, output, *seen, *columns, rows, most)
        return tuple(seen)

    def differentiate(self, loss: Loss, samples: Samples, gradient: np.ndarray) -> dict[str, float]:
        if not self._compiles(loss, samples):
            return super().differentiate(loss, samples, gradient)
        names, rows = columns_in(loss, samples), rows_of(samples)
        compiled = gradient_of(self.layers.stages, self.head[0], loss, names)
        arrays, columns = self._arguments(samples, compiled.columns, rows)
        totals = np.zeros((len(compiled.numbers), LANES), np.float32)
        room = np.empty(compiled.room(rows), np.float32)
        compiled.function(*arrays, gradient, room, totals, *columns, rows)
        return dict(zip(compiled.numbers, np.add.reduce(totals, axis=1).tolist(), strict=True))

    def _arguments(
        self, samples: Samples, columns: Iterable[tuple[str, int]], at_once: int
    ) -> tuple[tuple[np.ndarray, ...], list[np.ndarray]]:
        """The first arguments of machine code, which are a workspace for `at_once` rows, weights,
        inputs and the head's array; and the samples' columns, given their names and widths."""
        layers, (_, own) = self.layers, self.head
        arrays = layers.workspace(at_once), layers.weights, layers.inputs_of(samples["inputs"]), own
        rows = rows_of(samples)
        return arrays, [contiguous(samples[name], rows, width) for name, width in columns]

    def epochs_by_itself(self, loss: Loss, columns: Samples) -> EpochFunction | None:
        if not self._compiles(loss, columns):
            return None
        return partial(run_epoch, self.layers, *self.head, loss)
