"""Networks of dense layers, differentiated by hand in NumPy.

A minibatch of 64 steps is little arithmetic, and torch spends most of its time between operations:
by hand, the same gradient takes a fraction. Parameters are views of the module's own, so that both
are always the same network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from flame_rl.learner.gradients.heads import Head
from flame_rl.learner.gradients.network import Loss, Samples

# The C library keeps the memory of arrays up to about this size for the next ones; memory for
# larger ones comes from the kernel each time, which takes longer than the arithmetic.
_SLICE_BYTES = 300_000
# So that Python costs little in wide networks.
_LEAST_ROWS = 32


class UnknownLayerError(Exception):
    """The module has parts that this file does not know."""


@dataclass(frozen=True)
class Dense:
    """y = x W^T + b.

    Attributes:
        weight: [outputs, inputs], torch's layout.
        bias: [outputs].
        start: where both lie in the flat gradient, the weight first.
    """

    weight: np.ndarray
    bias: np.ndarray
    start: int

    def forward(self, x: np.ndarray) -> np.ndarray:
        y = x @ self.weight.T
        y += self.bias
        return y

    def backward(
        self, x: np.ndarray, slope: np.ndarray, ones: np.ndarray, gradient: np.ndarray
    ) -> None:
        """Write dL/dW and dL/db, given x, dL/dy and a one for each row."""
        middle = self.start + self.weight.size
        np.matmul(slope.T, x, out=gradient[self.start : middle].reshape(self.weight.shape))
        # Several times as quick as a sum over the rows.
        np.matmul(ones, slope, out=gradient[middle : middle + self.bias.size])


def tanh(x: np.ndarray) -> np.ndarray:
    return np.tanh(x)


def tanh_slope(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    slope = y * y
    return np.subtract(1.0, slope, out=slope)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def relu_slope(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x > 0).astype(np.float32)


def silu(x: np.ndarray) -> np.ndarray:
    return x * _sigmoid(x)


def silu_slope(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _sigmoid(x) * (1.0 + x - y)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # tanh form: no overflow for large negative x, unlike 1 / (1 + exp(-x)).
    return 0.5 + 0.5 * np.tanh(0.5 * x)


# By name: the function, and dy/dx from x and y.
ACTIVATIONS = {"tanh": (tanh, tanh_slope), "relu": (relu, relu_slope), "silu": (silu, silu_slope)}


class NetworkByHand:
    """See `Network`. Dense layers with activations between them, and a head.

    Attributes:
        parameters: P, the length of the flat gradient.
        input_dim: D.
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
        self._dense: list[Dense] = []
        self._activations: list[str] = []
        for place, layer in enumerate(getattr(module, "network", ())):
            kind = layer.layer().kind if hasattr(layer, "layer") else ""
            if kind == "dense" and place % 2 == 0:
                weight, bias = layer.weight, layer.bias
                views = weight.detach().numpy(), bias.detach().numpy()
                self._dense.append(Dense(*views, starts[weight]))
            elif kind in ACTIVATIONS and place % 2 == 1:
                self._activations.append(kind)
            else:
                raise UnknownLayerError(str(layer))
        if len(self._dense) != len(self._activations) + 1:
            raise UnknownLayerError("no dense layer at the end")
        known = sum(dense.weight.size + dense.bias.size for dense in self._dense)
        if start != known + head.parameters:
            raise UnknownLayerError("parameters outside of layers and head")
        normalizer = getattr(module, "normalizer", None)
        self._moments = None
        if not isinstance(normalizer, nn.Identity):
            if not hasattr(normalizer, "layer") or normalizer.layer().kind != "normalize":
                raise UnknownLayerError(str(normalizer))
            self._moments = normalizer.mean.numpy(), normalizer.std.numpy(), normalizer.limit
        self.parameters = start
        self.input_dim = self._dense[0].weight.shape[1]
        widest = max(max(dense.weight.shape) for dense in self._dense)
        self.slice_rows = max(_LEAST_ROWS, _SLICE_BYTES // (4 * widest))
        self._ones = np.ones(0, np.float32)

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        if self._moments is None:
            return observations
        mean, std, limit = self._moments
        x = observations - mean
        x /= std
        return np.clip(x, -limit, limit, out=x)

    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        _, output = self._forward(samples["inputs"])
        return self._head(output, samples)[0]

    def differentiate(
        self, samples: Samples, loss: Loss, gradient: np.ndarray
    ) -> dict[str, np.ndarray]:
        trace, output = self._forward(samples["inputs"])
        outputs, backward = self._head(output, samples)
        numbers, slopes = loss(samples, *outputs)
        slope = backward(slopes, gradient)
        if len(slope) > len(self._ones):
            self._ones = np.ones(len(slope), np.float32)
        ones = self._ones[: len(slope)]
        for place in reversed(range(len(self._dense))):
            dense, (x, y) = self._dense[place], trace[place]
            dense.backward(y, slope, ones, gradient)
            if place:
                # The same numbers; BLAS takes three times as long with a single column.
                slope = slope * dense.weight if slope.shape[1] == 1 else slope @ dense.weight
                slope *= ACTIVATIONS[self._activations[place - 1]][1](x, y)
        return numbers

    def _forward(
        self, inputs: np.ndarray
    ) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
        """The output, and what entered each dense layer: before and after the activation."""
        trace = [(inputs, inputs)]
        for dense, activation in zip(self._dense, self._activations, strict=False):
            x = dense.forward(trace[-1][1])
            trace.append((x, ACTIVATIONS[activation][0](x)))
        return trace, self._dense[-1].forward(trace[-1][1])
