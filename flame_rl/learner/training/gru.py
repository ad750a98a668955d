"""The recurrence of a GRU and its gradient in NumPy.

torch takes a dozen small operations for each time step, and records each of them for the way back,
which takes four times as long as this: what can be computed for all steps at once is, and no step
makes an array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def unrolled(given: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The outputs of a GRU of H units over S sequences of T steps, each from a state of 0.

    Args:
        given: what the inputs give to the gates, their biases included, [T, S, 3H]; gates are in
            torch's order: reset, update, candidate.
        weight, bias: of the state for the gates, [3H, H] and [3H].

    Returns:
        [T, S, H].
    """
    return _Unrolled.apply(given, weight, bias)


class _Unrolled(torch.autograd.Function):
    """With r, z and n the gates and the candidate of a step, g what its input gives, k what its
    state h gives, and h' the next state:

        r, z = sigmoid(g_rz + k_rz),   n = tanh(g_n + r k_n),   h' = n + z (h - n)
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        g, w, b = (tensor.numpy() for tensor in (given, weight, bias))
        steps, count, width = len(g), g.shape[1], w.shape[1]
        transposed = np.ascontiguousarray(w.T)
        states = np.zeros((steps + 1, count, width), g.dtype)
        kept = np.empty_like(g)
        gates = np.empty((steps, count, 2 * width), g.dtype)
        candidates = np.empty((steps, count, width), g.dtype)
        for t in range(steps):
            k, rz, n, h = kept[t], gates[t], candidates[t], states[t + 1]
            np.matmul(states[t], transposed, out=k)
            k += b
            np.add(g[t, :, : 2 * width], k[:, : 2 * width], out=rz)
            # tanh form of the sigmoid: no overflow.
            rz *= 0.5
            np.tanh(rz, out=rz)
            rz *= 0.5
            rz += 0.5
            np.multiply(rz[:, :width], k[:, 2 * width :], out=n)
            n += g[t, :, 2 * width :]
            np.tanh(n, out=n)
            np.subtract(states[t], n, out=h)
            h *= rz[:, width:]
            h += n
        ctx.kept = w, states, kept, gates, candidates
        return torch.from_numpy(states[1:])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        w, states, kept, gates, candidates = ctx.kept
        dy = slope.numpy()
        steps, count, width = dy.shape
        r, z = gates[..., :width], gates[..., width:]
        # The slopes of n, r and z before their functions, for a slope of 1 of the next state.
        of_n = (1 - z) * (1 - candidates * candidates)
        of_r = kept[..., 2 * width :] * r * (1 - r)
        of_z = (states[:-1] - candidates) * z * (1 - z)
        dn = np.empty((steps, count, width), dy.dtype)
        dk = np.empty((steps, count, 3 * width), dy.dtype)
        dh = np.zeros((count, width), dy.dtype)
        for t in reversed(range(steps)):
            dh += dy[t]
            np.multiply(of_n[t], dh, out=dn[t])
            np.multiply(dn[t], of_r[t], out=dk[t, :, :width])
            np.multiply(of_z[t], dh, out=dk[t, :, width : 2 * width])
            np.multiply(dn[t], r[t], out=dk[t, :, 2 * width :])
            dh *= z[t]
            dh += dk[t] @ w
        dg = dk.copy()
        dg[..., 2 * width :] = dn
        flat = dk.reshape(-1, 3 * width)
        dw = flat.T @ states[:-1].reshape(-1, width)
        return torch.from_numpy(dg), torch.from_numpy(dw), torch.from_numpy(flat.sum(axis=0))
