"""Heads whose actions are choices."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flame_rl.nets.protocol import ArrayTypes, NoiseKind
from flame_rl.wire.packing import WireError


class Categorical:
    """A categorical distribution whose logits are the output; actions are int32 [B]."""

    arrays: ClassVar[ArrayTypes] = {}
    noise: ClassVar[NoiseKind] = "uniform"
    dtype: ClassVar[str] = "int32"
    noise_width = 1
    noise_carry = 0.0
    noise_repeat = 0.0
    shape: tuple[int, ...] = ()

    def __init__(self, width: int) -> None:
        pass

    def sample(self, output: np.ndarray, noise: np.ndarray) -> np.ndarray:
        # Transposed to one row per choice, because NumPy reduces many short rows slowly.
        return chosen(np.ascontiguousarray(output.T), noise[:, 0])

    def greedy(self, output: np.ndarray) -> np.ndarray:
        return output.argmax(axis=1).astype(np.int32)


class FactoredCategorical:
    """F independent categorical distributions; actions are int32 [B, F]."""

    arrays: ClassVar[ArrayTypes] = {"choices": ("int32", ("factors",))}
    noise: ClassVar[NoiseKind] = "uniform"
    dtype: ClassVar[str] = "int32"
    noise_carry = 0.0
    noise_repeat = 0.0

    def __init__(self, width: int, choices: np.ndarray) -> None:
        """`choices`, int32 [F], is the number of choices of each factor; the output holds the
        logits of one factor after another."""
        if len(choices) == 0 or choices.min() < 1 or int(choices.sum(dtype=np.int64)) != width:
            raise WireError(
                f"choices: {choices.tolist()[:20]} where numbers above 0 whose sum is {width}, the "
                "width of the output, are expected"
            )
        self.noise_width = len(choices)
        self.shape = (len(choices),)
        # Factors with fewer choices than others are padded with choices of probability 0.
        choice = np.arange(choices.max())
        first = np.cumsum(choices) - choices
        self._places = np.where(choice < choices[:, None], first[:, None] + choice, width).T

    def sample(self, output: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return chosen(self._by_factor(output), noise.T).T

    def greedy(self, output: np.ndarray) -> np.ndarray:
        return self._by_factor(output).argmax(axis=0).astype(np.int32).T

    def _by_factor(self, output: np.ndarray) -> np.ndarray:
        """Logits by factor: float64 [B, width] -> [most choices, F, B]."""
        impossible = np.full((1, len(output)), -np.inf)
        return np.concatenate([output.T, impossible])[self._places]


class EpsilonGreedy:
    """Action values that are the output: the action is any with probability epsilon, otherwise the
    one of the greatest value (Mnih et al. 2015). Whether to explore, and the action then, may be
    repeated for steps on end, which leads further than actions that undo each other (Dabney et al.
    2021, "Temporally-Extended epsilon-Greedy Exploration"). Actions are int32 [B]."""

    arrays: ClassVar[ArrayTypes] = {"epsilon": ("float32", (1,)), "repeat": ("float32", (1,))}
    noise: ClassVar[NoiseKind] = "uniform"
    dtype: ClassVar[str] = "int32"
    # One number decides whether to explore, the other which action is taken then.
    noise_width = 2
    noise_carry = 0.0
    shape: tuple[int, ...] = ()

    def __init__(self, width: int, epsilon: np.ndarray, repeat: np.ndarray) -> None:
        """`epsilon` and `repeat`, see `Head.noise_repeat`, float32 [1], are from 0 to 1."""
        self._epsilon = _probability("epsilon", epsilon)
        self.noise_repeat = _probability("repeat", repeat)

    def sample(self, output: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return explored(self.greedy(output), output.shape[1], self._epsilon, noise)

    def greedy(self, output: np.ndarray) -> np.ndarray:
        return output.argmax(axis=1).astype(np.int32)


class EpsilonGreedyDistribution:
    """Categorical distributions of the return, one for each action, whose logits are the output,
    all those of one action after another. An action's value is the mean of its distribution
    (Bellemare et al. 2017, algorithm 1); then as `EpsilonGreedy`. Actions are int32 [B]."""

    arrays: ClassVar[ArrayTypes] = {
        "epsilon": ("float32", (1,)),
        "repeat": ("float32", (1,)),
        "support": ("float32", ("atoms",)),
    }
    noise: ClassVar[NoiseKind] = "uniform"
    dtype: ClassVar[str] = "int32"
    noise_width = 2
    noise_carry = 0.0
    shape: tuple[int, ...] = ()

    def __init__(
        self, width: int, epsilon: np.ndarray, repeat: np.ndarray, support: np.ndarray
    ) -> None:
        """`epsilon` and `repeat` are as in `EpsilonGreedy`; `support`, float32 [atoms], are the
        returns that the distributions are about, and their number divides `width`."""
        if width % len(support):
            raise WireError(
                f"support: {len(support)} atoms do not divide the width of the output, {width}, "
                "which has a logit for each atom of each action"
            )
        if not np.isfinite(support).all():
            raise WireError("support: not finite")
        self._epsilon = _probability("epsilon", epsilon)
        self.noise_repeat = _probability("repeat", repeat)
        self._support = support.astype(np.float64)

    def values(self, output: np.ndarray) -> np.ndarray:
        """The value of each action: float64 [B, A * atoms] -> [B, A]."""
        # The atoms of an action lie side by side, and NumPy adds them in the same order whatever
        # the number of rows is; in another layout the order depends on that number.
        logits = np.ascontiguousarray(output).reshape(len(output), -1, len(self._support))
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))
        return (weights * self._support).sum(axis=2) / weights.sum(axis=2)

    def sample(self, output: np.ndarray, noise: np.ndarray) -> np.ndarray:
        actions = output.shape[1] // len(self._support)
        return explored(self.greedy(output), actions, self._epsilon, noise)

    def greedy(self, output: np.ndarray) -> np.ndarray:
        return self.values(output).argmax(axis=1).astype(np.int32)


def chosen(logits: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Inverse transform sampling of a softmax: the first choice whose cumulative probability
    exceeds the uniform number.

    Args:
        logits: float64 [choices, ...].
        uniform: float64 [...].

    Returns:
        int32 [...].
    """
    cumulative = np.cumsum(np.exp(logits - logits.max(axis=0)), axis=0)
    threshold = uniform * cumulative[-1]
    return np.sum(cumulative[:-1] <= threshold, axis=0, dtype=np.int32)


def explored(greedy: np.ndarray, actions: int, epsilon: float, noise: np.ndarray) -> np.ndarray:
    """Replace greedy actions with any, each as likely as another, with probability epsilon.

    Args:
        greedy: int32 [B].
        actions: A, the number of actions.
        epsilon: the probability, from 0 to 1.
        noise: float64 [B, 2], in [0, 1): an action is replaced where the first number is below
            epsilon, and by floor(second * A).

    Returns:
        int32 [B].
    """
    return np.where(noise[:, 0] < epsilon, (noise[:, 1] * actions).astype(np.int32), greedy)


def _probability(name: str, array: np.ndarray) -> float:
    # Not "below 0 or above 1": what is not a number must not pass.
    if not 0 <= array[0] <= 1:
        raise WireError(f"{name}: {array[0]} is not from 0 to 1")
    return float(array[0])
