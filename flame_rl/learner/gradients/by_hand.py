"""Networks of dense layers, differentiated by hand in NumPy.

A minibatch of 64 steps is little arithmetic, and torch spends most of its time between operations:
by hand, the same gradient takes a fraction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from flame_rl.learner.gradients.heads import Head
from flame_rl.learner.gradients.layers import ACTIVATIONS, Activation, Dense, Layer, LayerNorm
from flame_rl.learner.gradients.network import Samples, Slope

# The C library keeps the memory of arrays up to about this size for the next ones; memory for
# larger ones comes from the kernel each time, which takes longer than the arithmetic.
_SLICE_BYTES = 300_000
# So that Python costs little in wide networks.
_LEAST_ROWS = 32


class UnknownLayerError(Exception):
    """The module has parts that this file does not know."""


class NetworkByHand:
    """See `Network`. Dense layers, with layer norms and activations between them, and a head.

    Attributes:
        parameters: P, the length of the flat gradient.
        input_dim: the width of "inputs".
    """

    def __init__(self, module: nn.Module, head: Head) -> None:
        """
        Args:
            module: its `normalizer` and `network` are as in model.py.
            head: turns the output of `network` into the outputs that a loss sees.

        Raises:
            UnknownLayerError: the module has other layers.
        """
        self._head = head
        starts, start = {}, 0
        for parameter in module.parameters():
            starts[parameter], start = start, start + parameter.numel()
        self._layers = [_layer(layer, starts) for layer in getattr(module, "network", ())]
        dense = [layer for layer in self._layers if isinstance(layer, Dense)]
        if not dense or self._layers[0] is not dense[0]:
            raise UnknownLayerError("no dense layer at the beginning")
        own = [layer for layer in self._layers if not isinstance(layer, Activation)]
        if start != sum(layer.weight.size + layer.bias.size for layer in own) + head.parameters:
            raise UnknownLayerError("parameters outside of layers and head")
        normalizer = getattr(module, "normalizer", None)
        self._moments = None
        if not isinstance(normalizer, nn.Identity):
            if not hasattr(normalizer, "layer") or normalizer.layer().kind != "normalize":
                raise UnknownLayerError(str(normalizer))
            self._moments = normalizer.mean.numpy(), normalizer.std.numpy(), normalizer.limit
        self.parameters = start
        self.input_dim = dense[0].weight.shape[1]
        widest = max(max(layer.weight.shape) for layer in dense)
        self.slice_rows = max(_LEAST_ROWS, _SLICE_BYTES // (4 * widest))

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        if self._moments is None:
            return observations
        mean, std, limit = self._moments
        x = observations - mean
        x /= std
        return np.clip(x, -limit, limit, out=x)

    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        x = samples["inputs"]
        for layer in self._layers:
            x = layer.forward(x)
        return self._head(x, samples)[0]

    def forward(self, samples: Samples) -> PassByHand:
        return PassByHand(self._layers, self._head, samples)


class PassByHand:
    """See `Pass`."""

    def __init__(self, layers: Sequence[Layer], head: Head, samples: Samples) -> None:
        self._layers = layers
        # What enters each layer, and what leaves the last one.
        self._trace = [samples["inputs"]]
        for layer in layers:
            self._trace.append(layer.forward(self._trace[-1]))
        self.outputs, self._of_output = head(self._trace[-1], samples)

    def to_parameters(self, slopes: tuple[Slope, ...], gradient: np.ndarray) -> None:
        slope = self._of_output(slopes, gradient)
        for place in reversed(range(len(self._layers))):
            layer, x, y = self._layers[place], self._trace[place], self._trace[place + 1]
            layer.to_parameters(x, y, slope, gradient)
            if place:
                slope = layer.to_inputs(x, y, slope)

    def to_inputs(self, slopes: tuple[Slope, ...]) -> np.ndarray:
        slope = self._of_output(slopes, None)
        for place in reversed(range(len(self._layers))):
            x, y = self._trace[place], self._trace[place + 1]
            slope = self._layers[place].to_inputs(x, y, slope)
        return slope


def _layer(module: nn.Module, starts: dict[nn.Parameter, int]) -> Layer:
    """The layer by hand, on the module's own parameters. Raises UnknownLayerError."""
    if type(module) is nn.LayerNorm and module.elementwise_affine and module.bias is not None:
        views = module.weight.detach().numpy(), module.bias.detach().numpy()
        return LayerNorm(*views, module.eps, starts[module.weight])
    kind = module.layer().kind if hasattr(module, "layer") else ""
    if kind in ACTIVATIONS:
        return ACTIVATIONS[kind]
    if kind != "dense":
        raise UnknownLayerError(str(module))
    views = module.weight.detach().numpy(), module.bias.detach().numpy()
    return Dense(*views, starts[module.weight])
