"""The heads of a network in NumPy: they turn its output into actions. kinds.py lists all kinds. The
log-probabilities that losses see are in flame_rl/modules/networks.py. Where observations come with
masks, what these forbid is never chosen."""

from typing import ClassVar, Literal

import numpy as np

from flame_rl.nets.layers import Shapes
from flame_rl.wire.masks import FORBIDDEN_LOGIT, allowed_in, masked
from flame_rl.wire.packing import WireError

# What comes with B observations, such as masks: columns by name, [B, ...] each.
Columns = dict[str, np.ndarray]
NOTHING: Columns = {}
# The logarithms of a squashed Gaussian's standard deviations are clipped to this, where it acts and
# where it learns, as in the authors' code: what is beyond is useless, or overflows.
LOG_STD_RANGE = (-20.0, 2.0)


class HeadKind:
    """A policy's head, made from the width of the network's output and the head's arrays by name.
    An action must not depend on which other observations share the batch: the order in which the
    numbers of a row are added must not depend on the number of rows."""

    kind: ClassVar[str]  # its name in a `PolicySnapshot`
    arrays: ClassVar[Shapes] = {}  # of float32
    integers: ClassVar[Shapes] = {}  # of int32
    # Standard normal, or uniform in [0, 1): the random numbers that an action is sampled with.
    noise: ClassVar[Literal["normal", "uniform"]]
    noise_width: int  # how many of them an action takes
    noise_carry: float = 0.0  # the share of a step's noise that is added to the next step's own
    noise_repeat: float = 0.0  # the probability that a step has the noise of the one before
    dtype: ClassVar[str]  # of one action
    shape: tuple[int, ...] = ()
    choices: tuple[int, ...] = ()  # of each of an action's factors; of real numbers, none

    def sample(self, output: np.ndarray, noise: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        """An action for each row of the output, float64 [B, width], sampled with noise, float64
        [B, noise_width]. `seen`: what else comes with the B observations, such as masks."""
        raise NotImplementedError

    def greedy(self, output: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        """The action without noise: the mean, or the choice that is likeliest or worth most."""
        raise NotImplementedError


class FactoredHead(HeadKind):
    """F independent categorical distributions: the output is their logits; int32 [B, F]."""

    kind = "factored"
    integers: ClassVar[Shapes] = {"choices": ("factors",)}
    noise = "uniform"
    dtype = "int32"

    def __init__(self, width: int, choices: np.ndarray) -> None:
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
        return sample_choices(self._by_choice(output, seen), noise.T).T

    def greedy(self, output: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        return self._by_choice(output, seen).argmax(axis=0).astype(np.int32).T

    def _by_choice(self, output: np.ndarray, seen: Columns) -> np.ndarray:
        """Logits: float64 [B, width] -> [most choices, F, B], without F for a single factor."""
        impossible = np.full((1, len(output)), -np.inf)
        return np.concatenate([masked(output, seen, FORBIDDEN_LOGIT).T, impossible])[self._places]


class CategoricalHead(FactoredHead):
    """A categorical distribution: the output is its logits, [B, A]; actions are int32 [B]."""

    kind = "categorical"
    integers: ClassVar[Shapes] = {}

    def __init__(self, width: int) -> None:
        super().__init__(width, np.array([width]))
        self.shape = ()

    def greedy(self, output: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        return masked(output, seen, FORBIDDEN_LOGIT).argmax(axis=1).astype(np.int32)

    def _by_choice(self, output: np.ndarray, seen: Columns) -> np.ndarray:
        # A row for each choice, because NumPy reduces many short rows slowly.
        return np.ascontiguousarray(masked(output, seen, FORBIDDEN_LOGIT).T)


class EpsilonGreedyHead(HeadKind):
    """The output is action values; the action is uniformly random with probability epsilon,
    otherwise the one of the greatest value (Mnih et al. 2015). A step may repeat the noise of the
    step before: exploration then leads further than actions that undo each other (Dabney et al.
    2021, "Temporally-Extended epsilon-Greedy Exploration"). Actions are int32 [B]."""

    kind = "epsilon_greedy"
    arrays: ClassVar[Shapes] = {"epsilon": (1,), "repeat": (1,)}
    noise = "uniform"
    dtype = "int32"
    noise_width = 2  # one number decides whether to explore, the other which action is taken then

    def __init__(self, width: int, epsilon: np.ndarray, repeat: np.ndarray) -> None:
        """`epsilon` and `repeat`, see `noise_repeat`, float32 [1], are from 0 to 1."""
        self.choices = (width,)
        self._epsilon = _probability("epsilon", epsilon)
        self.noise_repeat = _probability("repeat", repeat)

    def values(self, output: np.ndarray) -> np.ndarray:
        """The value of each action, float64 [B, A]."""
        return output

    def sample(self, output: np.ndarray, noise: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        explores, uniform = noise[:, 0] < self._epsilon, noise[:, 1]
        allowed = allowed_in(seen, self.choices[0])
        if allowed is None:
            random = (uniform * self.choices[0]).astype(np.int32)
        else:
            random = choose_allowed(uniform, allowed)
        return np.where(explores, random, self.greedy(output, seen))

    def greedy(self, output: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        values = masked(self.values(output), seen, FORBIDDEN_LOGIT)
        return values.argmax(axis=1).astype(np.int32)


class EpsilonGreedyDistributionHead(EpsilonGreedyHead):
    """A categorical distribution of the return for each action: the output is their logits, action
    by action; its value is the mean of its distribution (Bellemare et al. 2017, algorithm 1)."""

    kind = "epsilon_greedy_distribution"
    arrays: ClassVar[Shapes] = {**EpsilonGreedyHead.arrays, "support": ("atoms",)}

    def __init__(
        self, width: int, epsilon: np.ndarray, repeat: np.ndarray, support: np.ndarray
    ) -> None:
        """`support`, float32 [atoms]: the returns that have a probability."""
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


class GaussianHead(HeadKind):
    """A diagonal Gaussian: the output is its mean; `log_std` depends on nothing; float32 [B, A]."""

    kind = "gaussian"
    arrays: ClassVar[Shapes] = {"log_std": ("in",)}
    noise = "normal"
    dtype = "float32"

    def __init__(self, width: int, log_std: np.ndarray) -> None:
        self.noise_width = width
        self.shape = (width,)
        self.log_std = log_std
        self._std = np.exp(log_std.astype(np.float64))

    def sample(self, output: np.ndarray, noise: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        return (output + self._std * noise).astype(np.float32)

    def greedy(self, output: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        return output.astype(np.float32)


class SquashedGaussianHead(HeadKind):
    """The tanh of a diagonal Gaussian: the output is its means, then the logarithms of its standard
    deviations, which are clipped to `LOG_STD_RANGE` (Haarnoja et al. 2018, appendix C).
    Actions are float32 [B, A] between -1 and 1, or at these where float32 rounds to them."""

    kind = "squashed_gaussian"
    noise = "normal"
    dtype = "float32"

    def __init__(self, width: int) -> None:
        if width % 2:
            raise WireError(
                f"an output of width {width} where an even one is expected: a mean and the "
                "logarithm of a standard deviation for each number of an action"
            )
        self.noise_width = width // 2
        self.shape = (self.noise_width,)

    def mean_and_log_std(self, output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and log standard deviation of the Gaussian: float64 [B, 2 * A] -> two of [B, A]."""
        # Contiguous copies, because NumPy may compute exp and tanh another way on a slice.
        mean = np.ascontiguousarray(output[:, : self.noise_width])
        log_std = np.ascontiguousarray(output[:, self.noise_width :])
        return mean, np.minimum(np.maximum(log_std, LOG_STD_RANGE[0]), LOG_STD_RANGE[1])

    def sample(self, output: np.ndarray, noise: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        mean, log_std = self.mean_and_log_std(output)
        return np.tanh(mean + np.exp(log_std) * noise).astype(np.float32)

    def greedy(self, output: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        mean, _ = self.mean_and_log_std(output)
        return np.tanh(mean).astype(np.float32)


class NoisyHead(HeadKind):
    """A deterministic action, which is the output, and normal noise that is added to it (Fujimoto
    et al. 2018, algorithm 1), or the noise x of an Ornstein-Uhlenbeck process that begins at 0 in
    every episode (Lillicrap et al. 2016, section 7, with theta 0.15):

        x_t = (1 - theta) x_{t-1} + std * N_t,  N_t standard normal.

    With theta 1 the noise of each step is independent. The head takes x / std as noise.
    Actions are float32 [B, A], clipped to -1 and 1; the output should be within these already."""

    kind = "noisy"
    arrays: ClassVar[Shapes] = {"std": ("in",), "theta": (1,)}
    noise = "normal"
    dtype = "float32"

    def __init__(self, width: int, std: np.ndarray, theta: np.ndarray) -> None:
        """`std`, float32 [A], is the standard deviation of what is added to the noise at each step;
        `theta`, float32 [1], from 0 to 1, is the share of the noise that is lost at each step."""
        if not (np.isfinite(std).all() and (std >= 0).all()):
            raise WireError("std: not finite, or below 0")
        self.noise_width = width
        self.noise_carry = 1.0 - _probability("theta", theta)
        self.shape = (width,)
        self._std = std.astype(np.float64)

    def sample(self, output: np.ndarray, noise: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        return self.greedy(output + self._std * noise)

    def greedy(self, output: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        # np.clip takes several times as long on arrays this small.
        return np.minimum(np.maximum(output, -1.0), 1.0).astype(np.float32)


def sample_choices(logits: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Inverse transform sampling of a softmax: the first choice whose cumulative probability
    exceeds the uniform number; float64 [choices, ...] and [...] or [1, ...] -> int32 [...]."""
    cumulative = np.cumsum(np.exp(logits - logits.max(axis=0)), axis=0)
    threshold = uniform * cumulative[-1]
    return np.sum(cumulative[:-1] <= threshold, axis=0, dtype=np.int32)


def choose_allowed(uniform: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """One of the allowed choices, each as likely as the others, int32 [B]. `uniform`: float64 [B],
    in [0, 1). `allowed`: bool or of 0 and 1, [B, A], one at least in each row."""
    number = (uniform * allowed.sum(axis=1)).astype(np.int32)
    return (allowed.cumsum(axis=1) <= number[:, None]).sum(axis=1, dtype=np.int32)


def _probability(name: str, array: np.ndarray) -> float:
    # Not "below 0 or above 1": NaN must not pass.
    if not 0 <= array[0] <= 1:
        raise WireError(f"{name}: {array[0]} is not from 0 to 1")
    return float(array[0])
