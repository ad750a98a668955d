"""Layers that remember an episode, in NumPy; see layers.py."""

from typing import ClassVar

import numpy as np

from flame_rl.nets.layers import LayerKind, Shapes, float32_tanh


class GRULayer(LayerKind):
    """A gated recurrent unit of H units (Cho et al. 2014, "Learning Phrase Representations using
    RNN Encoder-Decoder", eq. 5 to 8), whose reset gate acts after the product, as torch's.

    r and z are the gates and n the candidate of a step, g is the product of its input with the
    weights, k that of its state h, and h' the next state, which is the output:

        r, z = sigmoid(g_rz + k_rz),   n = tanh(g_n + r k_n),   h' = n + z (h - n)

    Weights are in torch's order: reset, update, candidate."""

    kind = "gru"
    arrays: ClassVar[Shapes] = {
        "input_weight": ("in", 3, "out"),
        "input_bias": (3, "out"),
        "state_weight": ("out", 3, "out"),
        "state_bias": (3, "out"),
    }
    state = ("out",)

    def act(self, x: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inputs, _, width = self.input_weight.shape
        given = x @ self.input_weight.reshape(inputs, -1)
        given += self.input_bias.reshape(-1)
        kept = state @ self.state_weight.reshape(width, -1)
        kept += self.state_bias.reshape(-1)
        gates = _sigmoid(given[..., : 2 * width] + kept[..., : 2 * width])
        reset, update = gates[..., :width], gates[..., width:]
        candidate = float32_tanh(given[..., 2 * width :] + reset * kept[..., 2 * width :])
        y = candidate + update * (state - candidate)
        return y, y


class LSTMLayer(LayerKind):
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al.
    2000). Its state is output and cells. In torch's order: input, forget, candidate, output."""

    kind = "lstm"
    arrays: ClassVar[Shapes] = {
        "input_weight": ("in", 4, "out"),
        "state_weight": ("out", 4, "out"),
        "bias": (4, "out"),
    }
    state = (2, "out")

    def act(self, x: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inputs, _, width = self.input_weight.shape
        gates = x @ self.input_weight.reshape(inputs, -1)
        # Contiguous, because the way in which BLAS sums may depend on gaps.
        gates += np.ascontiguousarray(state[..., 0, :]) @ self.state_weight.reshape(width, -1)
        gates += self.bias.reshape(-1)
        opened = _sigmoid(gates[..., : 2 * width].copy())
        entering, kept = opened[..., :width], opened[..., width:]
        candidate = float32_tanh(gates[..., 2 * width : 3 * width].copy())
        shown = _sigmoid(gates[..., 3 * width :].copy())
        cells = kept * state[..., 1, :] + entering * candidate
        y = shown * float32_tanh(cells.copy())
        return y, np.stack([y, cells], axis=-2)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    x *= 0.5
    x = float32_tanh(x)
    x += 1.0
    x *= 0.5
    return x
