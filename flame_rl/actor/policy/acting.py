"""A policy's forward pass and sampling in NumPy.

Law of this file: an observation's action must not depend on which other observations share the
batch. BLAS chooses its way of summing by the size of the matrices, so every product here has
`ROW_BLOCK` rows, padded if need be. In float64 and with one BLAS thread, each row then has the same
bits at any position and in any company; in float32, or in one product of all rows, it has not.
Activations look at one number at a time, so that these may have float32's precision.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flame_rl.wire.messages import OBSERVATION_CLIP, PolicySnapshot

ROW_BLOCK = 8


def _tanh(x: np.ndarray) -> np.ndarray:
    # As precise as the learner's own, and four times as fast as in float64. In place, so that NumPy
    # casts a piece at a time and needs no second array. Beyond float32 lies infinity, and is right.
    with np.errstate(over="ignore"):
        return np.tanh(x, out=x, dtype=np.float32, casting="same_kind")


def _silu(x: np.ndarray) -> np.ndarray:
    # tanh form: no overflow for large negative x, unlike 1 / (1 + exp(-x)).
    return 0.5 * x * (1.0 + _tanh(0.5 * x))


# Of float64, which they may overwrite.
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": _tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "silu": _silu,
}


class ActingPolicy:
    """A snapshot ready to act: its layers in float64.

    Attributes:
        noise_dim: how many random numbers one action takes.
    """

    def __init__(self, snapshot: PolicySnapshot) -> None:
        self.version = snapshot.version
        self.observation_dim = snapshot.observation_dim
        self._activation = ACTIVATIONS[snapshot.activation]
        self._layers = [
            (weight.astype(np.float64), bias.astype(np.float64))
            for weight, bias in zip(snapshot.weights, snapshot.biases, strict=True)
        ]
        self._normalization = None
        if snapshot.observation_mean is not None:
            self._normalization = (
                snapshot.observation_mean.astype(np.float64),
                snapshot.observation_std.astype(np.float64),
            )
        self.continuous = snapshot.continuous
        self.action_dim = snapshot.action_dim
        self._std = None
        if snapshot.log_std is not None:
            self._std = np.exp(snapshot.log_std.astype(np.float64))
        self.noise_dim = self.action_dim if self.continuous else 1

    def forward(self, observations: np.ndarray) -> np.ndarray:
        """Logits, or the mean of the actions.

        Args:
            observations: float32 [B, D], B a multiple of `ROW_BLOCK`.

        Returns:
            float64 [B, A].
        """
        if len(observations) % ROW_BLOCK:
            raise ValueError(f"observations: {len(observations)} rows, no multiple of {ROW_BLOCK}")
        x = observations.astype(np.float64)
        if self._normalization is not None:
            mean, std = self._normalization
            x -= mean
            x /= std
            # np.clip takes twice as long on so few numbers.
            np.minimum(x, OBSERVATION_CLIP, out=x)
            np.maximum(x, -OBSERVATION_CLIP, out=x)
        # A stack of blocks, for each of which NumPy calls BLAS.
        x = x.reshape(-1, ROW_BLOCK, self.observation_dim)
        for layer, (weight, bias) in enumerate(self._layers):
            x = x @ weight if layer == 0 else self._activation(x) @ weight
            x += bias
        return x.reshape(-1, self.action_dim)

    def act(self, observations: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        """One action for each row.

        Args:
            observations: float32 [B, D], B a multiple of `ROW_BLOCK`.
            noise: float64 [B, noise_dim], to sample by; standard normal if continuous, else uniform
                in [0, 1). None: do not sample; take the mean, or the likeliest choice.

        Returns:
            float32 [B, A], or int32 [B] if discrete.
        """
        output = self.forward(observations)
        if noise is None:
            if self.continuous:
                return output.astype(np.float32)
            return output.argmax(axis=1).astype(np.int32)
        if self._std is not None:
            return (output + self._std * noise).astype(np.float32)
        # Inverse transform sampling of softmax(output); one row a choice, because NumPy reduces
        # many short rows slowly.
        logits = np.ascontiguousarray(output.T)
        cumulative = np.cumsum(np.exp(logits - logits.max(axis=0)), axis=0)
        threshold = noise[:, 0] * cumulative[-1]
        return np.sum(cumulative[:-1] <= threshold, axis=0, dtype=np.int32)

    def draw_noise(self, generator: np.random.Generator, steps: int) -> np.ndarray:
        """The next `steps` rows of noise, float64 [steps, noise_dim]."""
        if self.continuous:
            return generator.standard_normal((steps, self.noise_dim))
        return generator.random((steps, self.noise_dim))
