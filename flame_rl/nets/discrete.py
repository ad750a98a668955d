"""Heads whose actions are choices; see heads.py.

Where observations come with masks, what these forbid is never chosen, and has no part in
log-probabilities, entropies and maxima."""

from typing import ClassVar

import numpy as np

from flame_rl.nets.heads import NOTHING, Columns, HeadKind
from flame_rl.nets.layers import Shapes
from flame_rl.wire.masks import FORBIDDEN_LOGIT, allowed_in, masked
from flame_rl.wire.packing import WireError


class FactoredHead(HeadKind):
    """F independent categorical distributions: the output is their logits, one factor after
    another. Actions are int32 [B, F].

    A loss sees log-probabilities of "actions", and entropies, both summed over the factors, float32
    [B] each. With p = softmax(x): d log p_a / d x_j = [a = j] - p_j, and with the entropy H,
    d H / d x_j = -p_j (log p_j + H).
    """

    kind = "factored"
    integers: ClassVar[Shapes] = {"choices": ("factors",)}
    noise = "uniform"
    dtype = "int32"

    def __init__(self, width: int, choices: np.ndarray) -> None:
        """`choices`, int32 [F], is the number of choices of each factor."""
        if len(choices) == 0 or choices.min() < 1 or int(choices.sum(dtype=np.int64)) != width:
            raise WireError(
                f"choices: {choices.tolist()[:20]} where numbers above 0 whose sum is {width}, the "
                "width of the output, are expected"
            )
        self.choices = tuple(choices.tolist())
        self.noise_width = len(choices)
        self.shape = (len(choices),)
        self._ends = np.cumsum(choices)[:-1]
        # Factors with fewer choices than others are padded with choices of probability 0.
        choice = np.arange(choices.max())
        first = np.cumsum(choices) - choices
        self._places = np.where(choice < choices[:, None], first[:, None] + choice, width).T

    def sample(self, output: np.ndarray, noise: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        return sample_choices(self._by_factor(_allowed_logits(output, seen)), noise.T).T

    def greedy(self, output: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        logits = self._by_factor(_allowed_logits(output, seen))
        return logits.argmax(axis=0).astype(np.int32).T

    def _by_factor(self, output: np.ndarray) -> np.ndarray:
        """Logits by factor: float64 [B, width] -> [most choices, F, B]."""
        impossible = np.full((1, len(output)), -np.inf)
        return np.concatenate([output.T, impossible])[self._places]


class CategoricalHead(FactoredHead):
    """A categorical distribution: the output is its logits; actions are int32 [B]. `width`: A, the
    number of choices."""

    kind = "categorical"
    integers: ClassVar[Shapes] = {}

    def __init__(self, width: int) -> None:
        super().__init__(width, np.array([width]))
        self.width = width
        self.shape = ()

    def sample(self, output: np.ndarray, noise: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        # Transposed to one row per choice, because NumPy reduces many short rows slowly.
        return sample_choices(np.ascontiguousarray(_allowed_logits(output, seen).T), noise[:, 0])

    def greedy(self, output: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        return _allowed_logits(output, seen).argmax(axis=1).astype(np.int32)


class EpsilonGreedyHead(HeadKind):
    """The output is action values; the action is uniformly random with probability epsilon,
    otherwise the one of the greatest value (Mnih et al. 2015). A step may repeat the noise of the
    step before: exploration then leads further than actions that undo each other (Dabney et al.
    2021, "Temporally-Extended epsilon-Greedy Exploration"). Actions are int32 [B]."""

    kind = "epsilon_greedy"
    arrays: ClassVar[Shapes] = {"epsilon": (1,), "repeat": (1,)}
    noise = "uniform"
    dtype = "int32"
    # One number decides whether to explore, the other which action is taken then.
    noise_width = 2

    def __init__(self, width: int, epsilon: np.ndarray, repeat: np.ndarray) -> None:
        """`epsilon` and `repeat`, see `noise_repeat`, float32 [1], are from 0 to 1."""
        self.choices = (width,)
        self._epsilon = _probability("epsilon", epsilon)
        self.noise_repeat = _probability("repeat", repeat)

    def values(self, output: np.ndarray) -> np.ndarray:
        """The value of each action, float64 [B, A]."""
        return output

    def sample(self, output: np.ndarray, noise: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        values = self._allowed_values(output, seen)
        allowed = allowed_in(seen, values.shape[1])
        greedy = values.argmax(axis=1)
        return epsilon_greedy(greedy, values.shape[1], self._epsilon, noise, allowed)

    def greedy(self, output: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        return self._allowed_values(output, seen).argmax(axis=1).astype(np.int32)

    def _allowed_values(self, output: np.ndarray, seen: Columns) -> np.ndarray:
        return masked(self.values(output), seen, FORBIDDEN_LOGIT)


class EpsilonGreedyDistributionHead(EpsilonGreedyHead):
    """A categorical distribution of the return for each action: the output is their logits, action
    by action. An action's value is the mean of its distribution (Bellemare et al. 2017, algorithm
    1); `EpsilonGreedyHead` says how values become actions."""

    kind = "epsilon_greedy_distribution"
    arrays: ClassVar[Shapes] = {**EpsilonGreedyHead.arrays, "support": ("atoms",)}

    def __init__(
        self, width: int, epsilon: np.ndarray, repeat: np.ndarray, support: np.ndarray
    ) -> None:
        """`support`, float32 [atoms], are the atoms, the returns that have a probability; their
        number divides `width`."""
        if width % len(support):
            raise WireError(
                f"support: {len(support)} atoms do not divide the width of the output, {width}, "
                "which has a logit for each atom of each action"
            )
        if not np.isfinite(support).all():
            raise WireError("support: not finite")
        super().__init__(width // len(support), epsilon, repeat)
        self._support = support.astype(np.float64)

    def values(self, output: np.ndarray) -> np.ndarray:
        # The atoms of an action lie side by side, and NumPy adds them in the same order whatever
        # the number of rows is; in another layout the order depends on that number.
        logits = np.ascontiguousarray(output).reshape(len(output), -1, len(self._support))
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))
        return (weights * self._support).sum(axis=2) / weights.sum(axis=2)


def sample_choices(logits: np.ndarray, uniform: np.ndarray) -> np.ndarray:
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


def epsilon_greedy(
    greedy: np.ndarray,
    actions: int,
    epsilon: float,
    noise: np.ndarray,
    allowed: np.ndarray | None = None,
) -> np.ndarray:
    """Replace greedy actions with uniformly random ones, with probability epsilon.

    Args:
        greedy: integers [B].
        actions: A, the number of actions.
        epsilon: the probability, from 0 to 1.
        noise: float64 [B, 2], in [0, 1): an action is replaced where the first number is below
            epsilon, and by floor(second * A).
        allowed: which actions are allowed, bool [B, A]; None: all. Of n allowed ones, a random
            action is number floor(second * n).

    Returns:
        int32 [B].
    """
    if allowed is None:
        random = (noise[:, 1] * actions).astype(np.int32)
    else:
        random = choose_allowed(noise[:, 1], allowed)
    return np.where(noise[:, 0] < epsilon, random, greedy.astype(np.int32))


def _allowed_logits(logits: np.ndarray, columns: Columns) -> np.ndarray:
    """The logits, with `FORBIDDEN_LOGIT` where a mask among the columns forbids a choice."""
    return masked(logits, columns, FORBIDDEN_LOGIT)


def choose_allowed(uniform: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """One of the allowed choices, each as likely as the others.

    Args:
        uniform: float64 [B], in [0, 1).
        allowed: bool or of 0 and 1, [B, A], one at least in each row.

    Returns:
        int32 [B].
    """
    number = (uniform * allowed.sum(axis=1)).astype(np.int32)
    return (allowed.cumsum(axis=1) <= number[:, None]).sum(axis=1, dtype=np.int32)


def _probability(name: str, array: np.ndarray) -> float:
    # Not "below 0 or above 1": NaN must not pass.
    if not 0 <= array[0] <= 1:
        raise WireError(f"{name}: {array[0]} is not from 0 to 1")
    return float(array[0])
