"""Networks of layers that know their derivatives.

A minibatch of 64 steps is little arithmetic, and torch spends most of its time between operations:
by hand, the same gradient takes a fraction. `PlainLayers` is NumPy; the learner has machine code
for the usual kinds (learner/kernels/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from flame_rl.nets.heads import RawOutput
from flame_rl.nets.layers import DenseLayer, LayerByHand, NormalizeLayer
from flame_rl.nets.network import Network, Samples, Slope, spread

# The C library keeps the memory of arrays up to about this size for the next ones; memory for
# larger ones comes from the kernel each time, which takes longer than the arithmetic.
_SLICE_BYTES = 300_000
# The least rows of a slice, so that Python costs little in wide networks.
_LEAST_ROWS = 32


class ArrayPlace(NamedTuple):
    """Where an array lies in the flat parameters, and its gradient in the flat gradient.

    Attributes:
        start: of its first number, in bytes.
        shape: of the array.
        strides: of the array, in bytes.
    """

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, flat: np.ndarray) -> np.ndarray:
        """The view of a flat array, float32 [P]."""
        return np.ndarray(self.shape, np.float32, flat, self.start, self.strides)


@dataclass(frozen=True)
class PlacedLayer:
    """A layer, and the place of each array of `LayerByHand.learned`."""

    layer: LayerByHand
    places: tuple[ArrayPlace, ...]


# What layers keep from the forward pass for the backward pass.
Kept = tuple[Any, ...]


class Layers(Protocol):
    """The layers of a network from the inputs to the output, [B, inputs] -> [B, outputs].

    Attributes:
        slice_rows: see `Network`.
    """

    slice_rows: int

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Kept]:
        """The output, float32, and what the backward pass needs."""
        ...

    def to_parameters(
        self, kept: Kept, slope: np.ndarray, gradient: np.ndarray, halves: bool = False
    ) -> None:
        """Write the gradients of the layers' parameters to their places in the flat gradient,
        float32 [P], given the slope for the output, which may be overwritten. For `halves` see
        `Pass`."""
        ...

    def to_inputs(
        self, kept: Kept, slope: np.ndarray, rows: np.ndarray | None = None
    ) -> np.ndarray:
        """The slope for the inputs, of all rows or of these, int64 [K], given that for the output
        of all rows, which may be overwritten."""
        ...


class PlainLayers:
    """See `Layers`. One layer after another, in NumPy."""

    def __init__(self, layers: Sequence[PlacedLayer]) -> None:
        self._placed = layers
        self._layers = [each.layer for each in layers]
        self.slice_rows = _rows_in_cache(layers)

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Kept]:
        kept = []
        for layer in self._layers:
            x, own = layer.forward(x)
            kept.append(own)
        return x, tuple(kept)

    def to_parameters(
        self, kept: Kept, slope: np.ndarray, gradient: np.ndarray, halves: bool = False
    ) -> None:
        for number in reversed(range(len(self._layers))):
            layer, places = self._layers[number], self._placed[number].places
            if places:
                layer.to_parameters(kept[number], slope, *(place.of(gradient) for place in places))
            if number:
                slope = layer.to_inputs(kept[number], slope)

    def to_inputs(
        self, kept: Kept, slope: np.ndarray, rows: np.ndarray | None = None
    ) -> np.ndarray:
        for layer, own in zip(reversed(self._layers), reversed(kept), strict=True):
            slope = layer.to_inputs(own, slope)
        return slope if rows is None else slope.take(rows, axis=0)


class NetworkByHand(Network):
    """See `Network`. Layers that know their derivatives, and a head after them.

    Attributes:
        layers: from the inputs to the output.
        output: what a loss sees.
        places: where the gradients of its arrays lie.
        normalizer: normalises observations before the layers; None: nothing does.
    """

    remembers = False
    frames = 1
    parallel = True

    def __init__(
        self,
        layers: Layers,
        output: RawOutput,
        places: tuple[ArrayPlace, ...] = (),
        normalizer: NormalizeLayer | None = None,
    ) -> None:
        """
        Args:
            layers: computes the output.
            output: the head.
            places: the places of the arrays of `output.learned`.
            normalizer: see above.
        """
        self.layers, self.slice_rows, self.output = layers, layers.slice_rows, output
        self.places, self.normalizer = places, normalizer

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        observations = np.asarray(observations)
        if self.normalizer is None:
            return observations
        return self.normalizer.normalize(observations)

    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        output, _ = self.layers.forward(samples["inputs"])
        return self.output.forward(output, samples)[0]

    def forward(self, samples: Samples) -> PassByHand:
        return PassByHand(self, samples)

    def gradients_in(self, gradient: np.ndarray) -> list[np.ndarray]:
        """The arrays of the head in a flat gradient."""
        return [place.of(gradient) for place in self.places]


class PassByHand:
    """See `Pass`."""

    def __init__(self, network: NetworkByHand, samples: Samples) -> None:
        self._network = network
        output, self._kept = network.layers.forward(samples["inputs"])
        self.outputs, self._back = network.output.forward(output, samples)

    def to_parameters(
        self, slopes: tuple[Slope, ...], gradient: np.ndarray, halves: bool = False
    ) -> None:
        slope = self._back(slopes, *self._network.gradients_in(gradient))
        self._network.layers.to_parameters(self._kept, slope, gradient, halves)

    def to_inputs(self, slopes: tuple[Slope, ...], rows: np.ndarray | None = None) -> np.ndarray:
        if rows is not None:
            slopes = spread(slopes, rows, len(self.outputs[0]))
        return self._network.layers.to_inputs(self._kept, self._back(slopes), rows)


def _rows_in_cache(layers: Sequence[PlacedLayer]) -> int:
    """The rows of a slice for best speed."""
    shapes = [each.layer.weight.shape for each in layers if isinstance(each.layer, DenseLayer)]
    return max(_LEAST_ROWS, _SLICE_BYTES // (4 * max(map(max, shapes))))
