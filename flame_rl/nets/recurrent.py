"""Layers that remember an episode, in NumPy; see layers.py."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flame_rl.nets.layers import Kept, LayerKind, Shapes, float32_tanh


class GRULayer(LayerKind):
    """A gated recurrent unit of H units (Cho et al. 2014, "Learning Phrase Representations using
    RNN Encoder-Decoder", eq. 5 to 8), whose reset gate acts after the product, as torch's. Its
    output is its next state.

    r and z are the gates and n the candidate of a step, g is the product of its input with the
    weights, k that of its state h, and h' the next state:

        r, z = sigmoid(g_rz + k_rz),   n = tanh(g_n + r k_n),   h' = n + z (h - n)

    Weights are in torch's order: reset, update, candidate.
    """

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

    @staticmethod
    def unroll(
        given: np.ndarray, weight: np.ndarray, bias: np.ndarray, state: np.ndarray
    ) -> tuple[np.ndarray, Kept]:
        """The outputs over S sequences of T steps, and what the backward pass needs.

        torch takes a dozen small operations for each time step, and records each of them for the
        backward pass, which takes four times as long as this: here everything that can be is
        computed for all steps at once, and no step makes an array.

        Args:
            given: the inputs' products with the weights, biases included, [T, S, 3H].
            weight, bias: the state's weights and biases, as torch keeps them, [3H, H] and [3H].
            state: before the first step, [S, H].

        Returns:
            [T, S, H], and arrays for `unroll_back`.
        """
        steps, count, width = *given.shape[:2], weight.shape[1]
        transposed = np.ascontiguousarray(weight.T)
        states = np.empty((steps + 1, count, width), given.dtype)
        states[0] = state
        kept = np.empty_like(given)
        gates = np.empty((steps, count, 2 * width), given.dtype)
        candidates = np.empty((steps, count, width), given.dtype)
        for t in range(steps):
            g, k, rz, n, h = given[t], kept[t], gates[t], candidates[t], states[t + 1]
            np.matmul(states[t], transposed, out=k)
            k += bias
            np.add(g[:, : 2 * width], k[:, : 2 * width], out=rz)
            # tanh form of the sigmoid: no overflow.
            rz *= 0.5
            np.tanh(rz, out=rz)
            rz *= 0.5
            rz += 0.5
            np.multiply(rz[:, :width], k[:, 2 * width :], out=n)
            n += g[:, 2 * width :]
            np.tanh(n, out=n)
            np.subtract(states[t], n, out=h)
            h *= rz[:, width:]
            h += n
        return states[1:], (weight, states, kept, gates, candidates)

    @staticmethod
    def unroll_back(arrays: Kept, slope: np.ndarray) -> tuple[np.ndarray, ...]:
        """The slopes of what `unroll` took, given those of its outputs, [T, S, H]; `arrays` are
        what it returned."""
        weight, states, kept, gates, candidates = arrays
        steps, count, width = slope.shape
        r, z = gates[..., :width], gates[..., width:]
        # The slopes of n, r and z before their functions, for a slope of 1 of the next state.
        of_n = (1 - z) * (1 - candidates * candidates)
        of_r = kept[..., 2 * width :] * r * (1 - r)
        of_z = (states[:-1] - candidates) * z * (1 - z)
        dn = np.empty((steps, count, width), slope.dtype)
        dk = np.empty((steps, count, 3 * width), slope.dtype)
        dh = np.zeros((count, width), slope.dtype)
        for t in reversed(range(steps)):
            dh += slope[t]
            np.multiply(of_n[t], dh, out=dn[t])
            np.multiply(dn[t], of_r[t], out=dk[t, :, :width])
            np.multiply(of_z[t], dh, out=dk[t, :, width : 2 * width])
            np.multiply(dn[t], r[t], out=dk[t, :, 2 * width :])
            dh *= z[t]
            dh += dk[t] @ weight
        dg = dk.copy()
        dg[..., 2 * width :] = dn
        flat = dk.reshape(-1, 3 * width)
        return dg, flat.T @ states[:-1].reshape(-1, width), flat.sum(axis=0), dh


class LSTMLayer(LayerKind):
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al.
    2000). Its state is its last output and its cells. Weights are in torch's order: input, forget,
    candidate, output."""

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
