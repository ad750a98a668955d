"""The result of an iteration, for everything that prints, writes or draws."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flame_rl.run.evaluation import Evaluation
from flame_rl.settings.experiment import Experiment


@dataclass(frozen=True)
class Totals:
    """The progress of a run: what is done since the start, and of the last iteration the mean
    steps per episode (0 before the first), how many times as long as before they are (1 to 2), and
    the mean return, of its evaluation where the run has some (None where none was due)."""

    iterations: int = 0
    episodes: int = 0
    env_steps: int = 0
    length_mean: float = 0.0
    length_growth: float = 1.0
    mean_return: float | None = None

    def plus(self, episodes: int, steps: int) -> Totals:
        """After one more iteration of `episodes` episodes and `steps` env steps."""
        mean = steps / episodes
        growth = min(max(mean / self.length_mean, 1.0), 2.0) if self.length_mean else 1.0
        return Totals(
            self.iterations + 1, self.episodes + episodes, self.env_steps + steps, mean, growth
        )


@dataclass(frozen=True)
class RunState:
    """A run at one moment: its progress, and what `Learner.state_dict` returned."""

    totals: Totals
    learner: dict[str, np.ndarray]


def progress(experiment: Experiment, totals: Totals) -> float:
    """The share of a run that is done: its end is at 1, or somewhat beyond where env steps are
    counted."""
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
class Timing:
    """Measured times and traffic of an iteration; they differ from run to run.

    Attributes:
        collecting, updating, evaluating: seconds; with `overlap`, episodes may have been on their
            way before they are asked for.
        waiting: seconds in which this process had nothing to do while episodes were collected.
        env_steps_per_second: of all workers together, by the seconds that collecting took.
        bytes_out, bytes_in: to the workers and from them.
        retries, dropped: tasks that were sent again, and answers that came too late.
    """

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
        reward_mean, reward_std, reward_min, reward_max: of this iteration's returns, undiscounted.
        length_mean: mean steps per episode.
        losses: the algorithm's metrics by name; empty in an iteration without an update.
        weights_digest: SHA-256 over the learner's weights after the update.
        evaluation: of the policy after the update, where one was due.
        reward_parts, outcomes: by name, means over the episodes; see `Rewards.means`.
        mean_return: see `Totals`.
    """

    iteration: int
    episodes: int
    env_steps: int
    reward_mean: float
    reward_std: float
    reward_min: float
    reward_max: float
    length_mean: float
    losses: dict[str, float]
    weights_digest: str
    timing: Timing
    evaluation: Evaluation | None = None
    reward_parts: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, float] = field(default_factory=dict)
    mean_return: float | None = None

    @property
    def totals(self) -> Totals:
        """The progress of the run after this iteration."""
        done = self.iteration + 1, self.episodes, self.env_steps
        return Totals(*done, self.length_mean, mean_return=self.mean_return)
