"""The results of an iteration and of an evaluation, for everything that prints, writes or draws."""

import math
import sys
from dataclasses import asdict, dataclass, field
from typing import Annotated

import numpy as np

from flame_rl.learner.rewards import Rewards
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.experiment import Experiment
from flame_rl.wire.fields import Whole, Within
from flame_rl.wire.messages import Episodes, Start

Number = Annotated[float, Within(-sys.float_info.max, sys.float_info.max, "finite")]
SPREAD = ("mean", "std", "min", "max")  # what is said of returns; methods of an array
RESAMPLES = 10_000
FEW = 30  # the most episodes whose mean has Student's interval
# The 97.5 % quantiles of Student's distribution with 1, 2, ... degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Totals:
    """The progress of a run: what is done since the start, and of the last iteration the mean
    steps per episode (0 before the first) and the mean return, of its evaluation where the run has
    some (None where none was due, or no episode ended); and where the next fragments begin."""

    iterations: Whole = 0
    episodes: Whole = 0
    env_steps: Whole = 0
    length_mean: Number = 0.0
    mean_return: Number | None = None
    starts: dict[int, Start] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class RunState:
    """A run at one moment: its progress, and what `Learner.state_dict` and `networks_file` are."""

    totals: Totals
    learner: dict[str, np.ndarray]
    networks_file: str = field(default="", kw_only=True)


def progress(experiment: Experiment, totals: Totals) -> float:
    """The share of a run that is done: 1 at its end, or somewhat more where env steps count."""
    if experiment.env_steps is not None:
        return totals.env_steps / experiment.env_steps
    return totals.iterations / experiment.iterations


def reached(experiment: Experiment, totals: Totals) -> bool:
    """Whether the mean return is that of `stop_at`."""
    wanted, found = experiment.stop_at, totals.mean_return
    return wanted is not None and found is not None and found >= wanted


def ended(experiment: Experiment, totals: Totals) -> bool:
    """Whether nothing is left to do."""
    return progress(experiment, totals) >= 1 or reached(experiment, totals)


@dataclass(frozen=True)
class Evaluation:
    """The undiscounted returns of an evaluation's episodes; each of several agents has one of its
    own. `reward_low` to `reward_high` is a 95 % interval of their mean, as `mean_interval` has it,
    None of a single episode; `outcomes` has the means of `--outcomes` by name."""

    episodes: int
    reward_mean: float
    reward_low: float | None
    reward_high: float | None
    reward_median: float
    reward_min: float
    reward_max: float
    length_mean: float
    outcomes: dict[str, float] = field(default_factory=dict)

    def numbers(self) -> dict[str, float]:
        """All numbers by name; a single episode has no interval."""
        numbers = {name: value for name, value in asdict(self).items() if value is not None}
        return numbers | numbers.pop("outcomes")

    @property
    def interval(self) -> str:
        """The interval in words, "" of a single episode."""
        if self.reward_low is None:
            return ""
        return f" (95 %: {self.reward_low:.1f} to {self.reward_high:.1f})"

    def __str__(self) -> str:
        return (
            f"mean {self.reward_mean:.1f}{self.interval}, median {self.reward_median:.1f}, "
            f"{self.reward_min:.1f} to {self.reward_max:.1f} in "
            f"{self.episodes} episodes of {self.length_mean:.1f} steps"
            + "".join(f", {name} {value:.2f}" for name, value in self.outcomes.items())
        )


@dataclass(frozen=True)
class Timing:
    """Measured times and traffic of an iteration; they differ from run to run: the seconds of
    collecting (with `overlap` it may begin earlier), updating, evaluating, and `waiting`, in which
    this process had nothing to do; env steps per second from the first task to the last answer,
    also during the update; bytes to the workers and from them; tasks that were sent again, and
    answers that came too late."""

    collecting: float
    updating: float
    waiting: float
    evaluating: float
    env_steps_per_second: float
    bytes_out: int
    bytes_in: int
    retries: int
    dropped: int


@dataclass(frozen=True)
class IterationResult:
    """One iteration. All but `timing` is a function of the configuration.

    Attributes:
        iteration: from 0.
        episodes, env_steps: totals since the start.
        reward_mean, reward_std, reward_min, reward_max: of this iteration's returns, undiscounted;
            a fragment counts as an episode, here and in `episodes` and `length_mean`.
        metrics: the algorithm's, by name; empty in an iteration without an update.
        weights_digest: SHA-256 over the learner's weights after the update.
        evaluation: of the policy after the update, where one was due.
        reward_parts, outcomes: by name, means over the episodes; see `Rewards.means`.
    """

    iteration: int
    episodes: int
    env_steps: int
    reward_mean: float
    reward_std: float
    reward_min: float
    reward_max: float
    length_mean: float
    metrics: dict[str, float]
    weights_digest: str
    timing: Timing
    evaluation: Evaluation | None = None
    reward_parts: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, float] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)


def beyond_atoms(config: TrainConfig, result: IterationResult) -> str:
    """What to say of values that C51's atoms do not reach; "" where they do."""
    settings, value = config.algorithm, result.metrics.get("value")
    if getattr(settings, "distribution", "") != "c51" or value is None or config.experiment.reward:
        return ""
    step = result.reward_mean / result.length_mean
    low, high = settings.lowest_return, settings.highest_return
    following = step + config.experiment.gamma * value
    if low <= following <= high:
        return ""
    name, end = ("lowest", low) if following < low else ("highest", high)
    remedy = "begin again with one as far as returns go, at most a step's reward / (1 - gamma)"
    return f"--{name}-return: values have reached {end:g}, the last atom of C51; {remedy}"


def evaluation_of(collected: Episodes, agents: int, rewards: Rewards) -> Evaluation:
    """The summary of collected episodes, where `agents` play one together."""
    episodes = rewards.raw(collected)
    returns = np.array([episode.rewards.sum() for episode in episodes])
    # Agents that play together share their luck: their mean is one sample.
    low, high = mean_interval(returns.reshape(-1, agents).mean(axis=1))
    return Evaluation(
        episodes=len(episodes),
        reward_mean=float(returns.mean()),
        reward_low=low,
        reward_high=high,
        reward_median=float(np.median(returns)),
        reward_min=float(returns.min()),
        reward_max=float(returns.max()),
        length_mean=episodes.steps / len(episodes),
        outcomes=rewards.outcomes_of(collected),
    )


def mean_interval(values: np.ndarray) -> tuple[float, float] | tuple[None, None]:
    """The 95 % interval of the mean of values, float64 [N]: of 2 to `FEW` Student's (1908, "The
    Probable Error of a Mean"), of more the bootstrap's, which would be too narrow for few."""
    if len(values) == 1:
        return None, None
    if len(values) > FEW:
        return tuple(map(float, bootstrap_interval(values)))
    mean = float(values.mean())
    reach = student_quantile(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean - reach, mean + reach


def student_quantile(freedom: int) -> float:
    """The t below which Student's distribution has 97.5 %: from a table, or for more degrees of
    freedom by Fisher's expansion (Abramowitz and Stegun 1964, 26.7.5)."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    return 1.95996 + 2.37227 / freedom + 2.82250 / freedom**2 + 2.55585 / freedom**3


def bootstrap_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % interval of the mean of values, float64 [N, ...], by the percentile bootstrap (Efron
    1979, "Bootstrap Methods: Another Look at the Jackknife"); equal values give equal intervals."""
    generator = np.random.default_rng(0)
    means = np.empty((RESAMPLES, *values.shape[1:]))
    block = max(1, (1 << 20) // values.size)  # so that memory suffices
    for start in range(0, RESAMPLES, block):
        count = min(block, RESAMPLES - start)
        picked = generator.integers(0, len(values), (count, len(values)))
        means[start : start + count] = values[picked].mean(axis=1)
    return tuple(np.quantile(means, [(1 - 0.95) / 2, (1 + 0.95) / 2], axis=0))
