"""The heads of a policy in NumPy: each turns a network's output into actions, row by row.

One entry of `HEADS` for each kind. Noise is float64 [B, noise_width], standard normal or uniform in
[0, 1), as the head says.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol

import numpy as np

from flame_rl.wire.packing import WireError

NoiseKind = Literal["normal", "uniform"]


class Head(Protocol):
    """A head, made of its arrays by name and the width of the network's output.

    Attributes:
        arrays: the type of each array, and its shape as names of sizes; "in" is the width of the
            network's output.
        noise: the kind of random numbers that an action is sampled with.
        noise_width: how many random numbers an action takes.
        dtype, shape: the type and shape of one action.
    """

    arrays: ClassVar[dict[str, tuple[str, tuple[str, ...]]]]
    noise: ClassVar[NoiseKind]
    noise_width: int
    dtype: ClassVar[str]
    shape: tuple[int, ...]

    def sample(self, output: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """An action for each row of the output, float64 [B, width]."""
        ...

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """The action without noise: the mean, or the likeliest choice."""
        ...


class Categorical:
    """A categorical distribution whose logits are the output; actions are int32 [B]."""

    arrays: ClassVar[dict[str, tuple[str, tuple[str, ...]]]] = {}
    noise: ClassVar[NoiseKind] = "uniform"
    dtype: ClassVar[str] = "int32"
    noise_width = 1
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

    arrays: ClassVar[dict[str, tuple[str, tuple[str, ...]]]] = {"choices": ("int32", ("factors",))}
    noise: ClassVar[NoiseKind] = "uniform"
    dtype: ClassVar[str] = "int32"

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


class Gaussian:
    """A diagonal Gaussian: the output is its mean, and its standard deviation depends on no
    observation. Actions are float32 [B, A]."""

    arrays: ClassVar[dict[str, tuple[str, tuple[str, ...]]]] = {"log_std": ("float32", ("in",))}
    noise: ClassVar[NoiseKind] = "normal"
    dtype: ClassVar[str] = "float32"

    def __init__(self, width: int, log_std: np.ndarray) -> None:
        self.noise_width = width
        self.shape = (width,)
        self._std = np.exp(log_std.astype(np.float64))

    def sample(self, output: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return (output + self._std * noise).astype(np.float32)

    def greedy(self, output: np.ndarray) -> np.ndarray:
        return output.astype(np.float32)


HEADS: dict[str, type[Head]] = {
    "categorical": Categorical,
    "factored": FactoredCategorical,
    "gaussian": Gaussian,
}


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
