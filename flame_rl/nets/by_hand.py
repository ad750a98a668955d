"""Networks of dense layers, differentiated by hand in NumPy.

A minibatch of 64 steps is little arithmetic, and torch spends most of its time between operations:
by hand, the same gradient takes a fraction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flame_rl.nets.learning_heads import Head
from flame_rl.nets.learning_layers import Activation, Dense, Layer
from flame_rl.nets.network import Samples, Slope

# The C library keeps the memory of arrays up to about this size for the next ones; memory for
# larger ones comes from the kernel each time, which takes longer than the arithmetic.
_SLICE_BYTES = 300_000
# So that Python costs little in wide networks.
_LEAST_ROWS = 32

# Mean and standard deviation, float32 [D] each, and the greatest size of a normalised number.
Moments = tuple[np.ndarray, np.ndarray, float]


def normalized(observations: np.ndarray, moments: Moments) -> np.ndarray:
    """Observations, float32 [..., D], at mean 0 and standard deviation 1, clipped."""
    mean, std, limit = moments
    x = observations - mean
    x /= std
    return np.clip(x, -limit, limit, out=x)


class NetworkByHand:
    """See `Network`. Dense layers, with layer norms and activations between them, and a head.

    Attributes:
        layers: from the inputs to the head.
        parameters: P, the length of the flat gradient.
        input_dim: the width of "inputs".
    """

    remembers = False
    frames = 1
    parallel = True

    def __init__(self, layers: Sequence[Layer], head: Head, moments: Moments | None = None) -> None:
        """
        Args:
            layers: the first one is a `Dense`.
            head: turns the output of the last layer into the outputs that a loss sees.
            moments: mean, standard deviation and limit of the normalisation before the layers.
        """
        self.layers = layers
        self._head = head
        self._moments = moments
        dense = [layer for layer in layers if isinstance(layer, Dense)]
        own = [layer for layer in layers if not isinstance(layer, Activation)]
        self.parameters = sum(layer.weight.size + layer.bias.size for layer in own)
        self.parameters += head.parameters
        self.input_dim = dense[0].weight.shape[1]
        widest = max(max(layer.weight.shape) for layer in dense)
        self.slice_rows = max(_LEAST_ROWS, _SLICE_BYTES // (4 * widest))

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        return observations if self._moments is None else normalized(observations, self._moments)

    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        x = samples["inputs"]
        for layer in self.layers:
            x, _ = layer.forward(x)
        return self._head(x, samples)[0]

    def forward(self, samples: Samples) -> PassByHand:
        return PassByHand(self.layers, self._head, samples)


class PassByHand:
    """See `Pass`."""

    def __init__(self, layers: Sequence[Layer], head: Head, samples: Samples) -> None:
        self._layers = layers
        # Of each layer, what it keeps for the way back.
        self._kept = []
        x = samples["inputs"]
        for layer in layers:
            x, kept = layer.forward(x)
            self._kept.append(kept)
        self.outputs, self._of_output = head(x, samples)

    def to_parameters(self, slopes: tuple[Slope, ...], gradient: np.ndarray) -> None:
        slope = self._of_output(slopes, gradient)
        for place in reversed(range(len(self._layers))):
            layer, kept = self._layers[place], self._kept[place]
            layer.to_parameters(kept, slope, gradient)
            if place:
                slope = layer.to_inputs(kept, slope)

    def to_inputs(self, slopes: tuple[Slope, ...]) -> np.ndarray:
        slope = self._of_output(slopes, None)
        for layer, kept in zip(reversed(self._layers), reversed(self._kept), strict=True):
            slope = layer.to_inputs(kept, slope)
        return slope
