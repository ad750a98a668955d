"""Networks of layers that know their derivatives, differentiated in NumPy.

A minibatch of 64 steps is little arithmetic, and torch spends most of its time between operations:
by hand, the same gradient takes a fraction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flame_rl.nets.heads import RawOutput
from flame_rl.nets.kinds import LAYERS
from flame_rl.nets.layers import DenseLayer, LayerByHand, NormalizeLayer
from flame_rl.nets.network import Samples, Slope

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

    def describe(self) -> list[Any]:
        """The layer without its parameters, for JSON."""
        others = [name for name in self.layer.arrays if name not in self.layer.learned]
        constants = {name: vars(self.layer)[name].tolist() for name in others}
        return [self.layer.kind, self.places, constants]


def placed_layers(descriptions: Sequence[list[Any]], flat: np.ndarray) -> list[PlacedLayer]:
    """The inverse of `PlacedLayer.describe`, on flat parameters, float32 [P]."""
    layers = []
    for kind, places, constants in descriptions:
        made = tuple(
            ArrayPlace(start, tuple(shape), tuple(strides)) for start, shape, strides in places
        )
        arrays = {name: np.array(array, np.float32) for name, array in constants.items()}
        views = dict(zip(LAYERS[kind].learned, (place.of(flat) for place in made), strict=True))
        layers.append(PlacedLayer(LAYERS[kind](**views, **arrays), made))
    return layers


class NetworkByHand:
    """See `Network`. Layers that know their derivatives, and a head after them.

    Attributes:
        layers: from the inputs to the output.
        output: what a loss sees.
        parameters: P, the length of the flat gradient.
    """

    remembers = False
    frames = 1
    parallel = True

    def __init__(
        self,
        layers: Sequence[PlacedLayer],
        output: RawOutput,
        places: tuple[ArrayPlace, ...] = (),
        normalizer: NormalizeLayer | None = None,
    ) -> None:
        """
        Args:
            layers: the first one is a `DenseLayer`.
            output: the head.
            places: the places of the arrays of `output.learned`.
            normalizer: normalises observations before the layers.
        """
        self._placed, self._normalizer = layers, normalizer
        self.layers = [each.layer for each in layers]
        self.output = output
        self._places = [*(each.places for each in layers), places]
        self._gradients: tuple[np.ndarray | None, list[list[np.ndarray]]] = (None, [])
        self.parameters = sum(math.prod(p.shape) for each in self._places for p in each)
        shapes = [layer.weight.shape for layer in self.layers if isinstance(layer, DenseLayer)]
        widest = max(map(max, shapes))
        self.slice_rows = max(_LEAST_ROWS, _SLICE_BYTES // (4 * widest))

    def describe(self) -> list[list[Any]]:
        """The layers as `placed_layers` takes them."""
        return [each.describe() for each in self._placed]

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        observations = np.asarray(observations)
        if self._normalizer is None:
            return observations
        return self._normalizer.normalize(observations)

    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        x = samples["inputs"]
        for layer in self.layers:
            x, _ = layer.forward(x)
        return self.output.forward(x, samples)[0]

    def forward(self, samples: Samples) -> PassByHand:
        return PassByHand(self, samples)

    def gradients_in(self, gradient: np.ndarray) -> list[list[np.ndarray]]:
        """The arrays of each layer in a flat gradient, and after them those of the output."""
        # It is nearly always the same one, that of Adam. Read once, because of other threads.
        known, views = self._gradients
        if known is not gradient:
            views = [[place.of(gradient) for place in each] for each in self._places]
            self._gradients = gradient, views
        return views


class PassByHand:
    """See `Pass`."""

    def __init__(self, network: NetworkByHand, samples: Samples) -> None:
        self._network = network
        # What each layer keeps for the backward pass.
        self._kept = []
        x = samples["inputs"]
        for layer in network.layers:
            x, kept = layer.forward(x)
            self._kept.append(kept)
        self.outputs, self._back = network.output.forward(x, samples)

    def to_parameters(self, slopes: tuple[Slope, ...], gradient: np.ndarray) -> None:
        layers, gradients = self._network.layers, self._network.gradients_in(gradient)
        slope = self._back(slopes, *gradients[-1])
        for number in reversed(range(len(layers))):
            layer, kept, own = layers[number], self._kept[number], gradients[number]
            if own:
                layer.to_parameters(kept, slope, *own)
            if number:
                slope = layer.to_inputs(kept, slope)

    def to_inputs(self, slopes: tuple[Slope, ...]) -> np.ndarray:
        slope = self._back(slopes)
        for layer, kept in zip(reversed(self._network.layers), reversed(self._kept), strict=True):
            slope = layer.to_inputs(kept, slope)
        return slope
