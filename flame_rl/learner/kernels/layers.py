"""Layers of a network by hand as machine code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from flame_rl.learner.kernels.elementwise import ACTIVATIONS
from flame_rl.learner.kernels.network import ARRAYS, Stage, passes_of
from flame_rl.learner.training.slices import at_once
from flame_rl.nets.by_hand import Kept, PlacedLayer
from flame_rl.nets.layers import DenseLayer, LayerNormLayer, SelectLayer

# The numbers of a workspace that stays in a core's own cache.
_WORKSPACE = 1 << 17
# The least rows of a slice, so that transposes and Python cost little in wide networks.
_LEAST_ROWS = 64


class CompiledLayers:
    """See `flame_rl.nets.by_hand.Layers`. Dense layers, each perhaps with a normalisation and an
    activation after it; the last one has no normalisation.

    Attributes:
        stages: see `Stage`.
        slice_rows: the number of rows that is computed at once for best speed.
        select: what comes before the first stage, if anything does.
        weights: the table of addresses that `Passes` describes.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        arrays: Sequence[Sequence[np.ndarray]],
        select: SelectLayer | None,
    ) -> None:
        """
        Args:
            stages: see `Stage`.
            arrays: of each stage; they may change, but stay where they are.
            select: what comes before the first stage.
        """
        self.stages = tuple(stages)
        self._passes = passes_of(self.stages)
        self.slice_rows = max(_LEAST_ROWS, _WORKSPACE // self._passes.per_row)
        self._inputs, self._outputs = stages[0].inputs, stages[-1].outputs
        self.select, self._arrays = select, arrays
        self.weights = np.zeros((len(stages), ARRAYS), np.int64)
        for row, own in zip(self.weights, arrays, strict=True):
            row[: len(own)] = [array.ctypes.data for array in own]

    def inputs_of(self, x: np.ndarray) -> np.ndarray:
        """What the first stage gets, float32 [rows, inputs]."""
        if self.select is not None:
            x, _ = self.select.forward(x)
        return contiguous(x, len(x), self._inputs)

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Kept]:
        x = self.inputs_of(x)
        rows = len(x)
        workspace = self.workspace(rows)
        output = np.empty((rows, self._outputs), np.float32)
        self._passes.forward(workspace, self.weights, output, x, rows)
        return output, (output, x, workspace)

    def workspace(self, rows: int) -> np.ndarray:
        """Memory for passes; see `Passes`."""
        return np.empty(self._passes.fixed + rows * self._passes.per_row, np.float32)

    def to_parameters(
        self, kept: Kept, slope: np.ndarray, gradient: np.ndarray, halves: bool = False
    ) -> None:
        output, x, workspace = kept
        rows = len(x)
        slope = contiguous(slope, rows, self._outputs)

        def write(gradient: np.ndarray, first: int, end: int) -> None:
            arrays = workspace, self.weights, output, x, slope, gradient
            self._passes.to_parameters(*arrays, rows, first, end)

        if not halves:
            write(gradient, 0, rows)
            return
        # Places of a head's parameters are not written.
        other, middle = np.zeros_like(gradient), rows // 2
        at_once([partial(write, gradient, 0, middle), partial(write, other, middle, rows)])
        gradient += other

    def to_inputs(
        self, kept: Kept, slope: np.ndarray, rows: np.ndarray | None = None
    ) -> np.ndarray:
        if rows is not None:
            kept, slope = self._of_rows(kept, rows), slope.take(rows, axis=0)
        output, x, workspace = kept
        slope = contiguous(slope, len(x), self._outputs)
        result = np.empty((len(x), self._inputs), np.float32)
        self._passes.to_inputs(workspace, self.weights, output, result, slope, len(x))
        return result if self.select is None else self.select.to_inputs((), result)

    def _of_rows(self, kept: Kept, rows: np.ndarray) -> Kept:
        """What the backward pass of these rows alone needs."""
        output, x, workspace = kept
        count, fixed, own = len(x), self._passes.fixed, self.workspace(len(rows))
        for begin, end in self._passes.kept:
            whole, part = (
                memory[fixed + begin * each : fixed + end * each].reshape(each, end - begin)
                for memory, each in ((workspace, count), (own, len(rows)))
            )
            whole.take(rows, axis=0, out=part, mode="clip")
        return output.take(rows, axis=0), x.take(rows, axis=0), own


def compiled_layers(layers: Sequence[PlacedLayer]) -> CompiledLayers | None:
    """The layers as machine code; None where there is none for their kinds or their order."""
    layers = list(layers)
    select = None
    if type(layers[0].layer) is SelectLayer:
        select = layers.pop(0).layer
    stages, arrays = [], []
    while layers:
        dense = layers.pop(0)
        if type(dense.layer) is not DenseLayer:
            return None
        weight, bias = dense.layer.weight, dense.layer.bias
        if weight.strides != (4, 4 * len(weight)):  # not as torch keeps it
            return None
        places = [place.start // 4 for place in dense.places]
        own = [weight, bias]
        if layers and type(layers[0].layer) is LayerNormLayer:
            norm = layers.pop(0)
            places += [place.start // 4 for place in norm.places]
            own += [norm.layer.weight, norm.layer.bias, norm.layer.epsilon]
        activation = ""
        if layers and layers[0].layer.kind in ACTIVATIONS:
            activation = layers.pop(0).layer.kind
        inputs, outputs = weight.shape
        stages.append(Stage(inputs, outputs, tuple(places), activation))
        arrays.append(own)
    if stages[-1].normalized or stages[-1].keeps_input:
        return None
    return CompiledLayers(stages, arrays, select)


def contiguous(array: np.ndarray, *shape: int) -> np.ndarray:
    """The array as machine code takes it. Raises ValueError for another number of numbers, which it
    would not notice."""
    return np.ascontiguousarray(array, np.float32).reshape(shape)
