"""Heads by hand: a network's output as what losses see, and its derivative.

A policy's head gives log-probabilities of the samples' actions and entropies, float32 [B] each; a
value network's gives values, float32 [B]. Called with an output, a head returns these, and a
function from the loss's slopes to the slope with respect to the output; it also writes the gradient
of the head's own parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from flame_rl.nets.network import Samples, Slope

# From the outputs' slopes to the slope of the network's last layer. The flat gradient is None where
# that of the head's own parameters is not wanted.
Backward = Callable[[tuple[Slope, ...], np.ndarray | None], np.ndarray]


class Head(Protocol):
    """Turns the last layer's output into the network's outputs, and their slopes into that output's
    slope.

    Attributes:
        parameters: how many numbers of the flat gradient belong to the head.
    """

    parameters: int

    def __call__(
        self, output: np.ndarray, samples: Samples
    ) -> tuple[tuple[np.ndarray, ...], Backward]: ...

    def random_columns(self, rng: np.random.Generator, rows: int) -> Samples:
        """What samples need for this head, at random."""
        ...


class Gaussian:
    """A diagonal Gaussian around the output; its log standard deviation is a parameter.

    With z = (a - mean) / std: d log p / d mean = z / std, d log p / d log std = z^2 - 1, and
    d entropy / d log std = 1.
    """

    def __init__(self, log_std: np.ndarray, start: int) -> None:
        """
        Args:
            log_std: float32 [A].
            start: where it lies in the flat gradient.
        """
        self._log_std = log_std
        self.parameters = log_std.size
        self._start = start

    def __call__(
        self, output: np.ndarray, samples: Samples
    ) -> tuple[tuple[np.ndarray, ...], Backward]:
        inverse = np.exp(-self._log_std)
        z = (samples["actions"] - output) * inverse
        constant = (
            float(np.add.reduce(self._log_std)) + 0.5 * math.log(2 * math.pi) * self.parameters
        )
        log_probs = -0.5 * np.einsum("ba,ba->b", z, z) - constant
        entropies = np.full(len(z), constant + 0.5 * self.parameters, np.float32)

        def backward(slopes: tuple[Slope, ...], gradient: np.ndarray | None) -> np.ndarray:
            of_log_probs, of_entropies = slopes
            weighted = of_log_probs[:, None] * z
            if gradient is not None:
                same = isinstance(of_entropies, float)
                total = of_entropies * len(z) if same else np.add.reduce(of_entropies)
                rest = total - np.add.reduce(of_log_probs)
                own = gradient[self._start : self._start + self.parameters]
                np.add(np.einsum("ba,ba->a", weighted, z), rest, out=own)
            weighted *= inverse
            return weighted

        return (log_probs, entropies), backward

    def random_columns(self, rng: np.random.Generator, rows: int) -> Samples:
        return {"actions": rng.standard_normal((rows, self.parameters)).astype(np.float32)}


class Categorical:
    """Independent categorical distributions, one or several: the output is their logits.

    With p = softmax(x): d log p_a / d x_j = [a = j] - p_j, and with the entropy H,
    d H / d x_j = -p_j (log p_j + H).
    """

    parameters = 0

    def __init__(self, choices: int | tuple[int, ...]) -> None:
        """`choices` is the number of choices of the distribution, or of each of several."""
        self._choices = choices
        self._ends = np.cumsum(choices)[:-1]

    def __call__(
        self, output: np.ndarray, samples: Samples
    ) -> tuple[tuple[np.ndarray, ...], Backward]:
        actions = samples["actions"].reshape(len(output), -1)
        rows = np.arange(len(output))
        parts = []
        for logits, action in zip(np.split(output, self._ends, axis=1), actions.T, strict=True):
            shifted = logits - logits.max(axis=1, keepdims=True)
            log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
            p = np.exp(log_p)
            parts.append((action, log_p, p, -(p * log_p).sum(axis=1)))
        log_probs = sum(log_p[rows, action] for action, log_p, _, _ in parts)
        entropies = sum(entropy for *_, entropy in parts)

        def backward(slopes: tuple[Slope, ...], gradient: np.ndarray | None) -> np.ndarray:
            of_log_probs = slopes[0][:, None]
            of_entropies = np.broadcast_to(slopes[1], len(output))[:, None]
            back = []
            for action, log_p, p, entropy in parts:
                slope = -p * (of_log_probs + of_entropies * (log_p + entropy[:, None]))
                slope[rows, action] += slopes[0]
                back.append(slope)
            return back[0] if len(back) == 1 else np.concatenate(back, axis=1)

        return (log_probs, entropies), backward

    def random_columns(self, rng: np.random.Generator, rows: int) -> Samples:
        return {
            "actions": rng.integers(0, self._choices, (rows, *np.shape(self._choices)), np.int32)
        }


class Raw:
    """The output as it is, float32 [B, outputs]."""

    parameters = 0

    def __call__(
        self, output: np.ndarray, samples: Samples
    ) -> tuple[tuple[np.ndarray, ...], Backward]:
        def backward(slopes: tuple[Slope, ...], gradient: np.ndarray | None) -> np.ndarray:
            return slopes[0].copy()  # a layer may overwrite it

        return (output,), backward

    def random_columns(self, rng: np.random.Generator, rows: int) -> Samples:
        return {}


class Value:
    """The only output, times a scale."""

    parameters = 0

    def __init__(self, scale: np.ndarray) -> None:
        """`scale` is a single number, which may change, float32 []."""
        self._scale = scale

    def __call__(
        self, output: np.ndarray, samples: Samples
    ) -> tuple[tuple[np.ndarray, ...], Backward]:
        scale = float(self._scale)

        def backward(slopes: tuple[Slope, ...], gradient: np.ndarray | None) -> np.ndarray:
            return (slopes[0] * scale)[:, None]

        return (output[:, 0] * scale,), backward

    def random_columns(self, rng: np.random.Generator, rows: int) -> Samples:
        return {}
