"""Hindsight experience replay (Andrychowicz et al. 2017): stored steps, seen as if the goal had
been one that the episode reached later.

The store keeps episodes as they were played. A minibatch gets its goals when it is read: rewards
and ends are computed again, and the desired goal is replaced in every observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from flame_rl.learner.off_policy.goals import GoalFunctions, find_goals
from flame_rl.learner.off_policy.replay.views import StoredSteps
from flame_rl.settings.config import TrainConfig, environment_of
from flame_rl.system.errors import UsageError
from flame_rl.wire.inputs import OBSERVATIONS
from flame_rl.wire.messages import EnvironmentSpec


@dataclass(frozen=True)
class Relabelling:
    """Which steps get another goal, and which (section 3.3 and 4.5).

    Attributes:
        functions: of the environment's goals.
        strategy: "future", a goal that the episode achieved after the step, each as likely as any
            other; "final", the one that it achieved last.
        share: the probability that a step gets another goal.
    """

    functions: GoalFunctions
    strategy: Literal["future", "final"]
    share: float

    @property
    def notice(self) -> str:
        """What a person should know of it when a run begins."""
        which = {"future": "any goal that was reached later", "final": "the goal reached last"}
        return f"Hindsight: {self.share:.0%} of drawn steps get {which[self.strategy]}"

    def relabelled(
        self, store: StoredSteps, positions: np.ndarray, generator: np.random.Generator
    ) -> RelabelledSteps:
        """The steps at these positions, int64 [B], some of them with another goal."""
        chosen = generator.random(len(positions)) < self.share
        ahead = left = store.left(positions)
        if self.strategy == "future":
            ahead = generator.integers(1, left, endpoint=True)
        later = store.read(store.rows(positions) + ahead)[OBSERVATIONS]
        goals = later[:, self.functions.places.achieved]
        lengths = store.times(positions) + left
        return RelabelledSteps(store, self.functions, chosen, goals, lengths)


class RelabelledSteps:
    """`StoredSteps` whose rows are read for B positions, each with a goal of its own."""

    def __init__(
        self,
        store: StoredSteps,
        functions: GoalFunctions,
        chosen: np.ndarray,
        goals: np.ndarray,
        lengths: np.ndarray,
    ) -> None:
        """
        Args:
            store: the steps as they were played.
            functions: of the environment's goals.
            chosen: whether a position's goal is replaced, bool [B].
            goals: by these, [B, G].
            lengths: steps of each position's episode, int32 [B].
        """
        self._store, self._functions = store, functions
        self._chosen, self._goals, self._lengths = chosen, goals, lengths
        self.steps, self.rows = store.steps, store.rows
        self.times, self.left = store.times, store.left

    def read(self, rows: np.ndarray, times: np.ndarray) -> dict[str, np.ndarray]:
        """As `StoredSteps.read`, rows [B, ...] of the episodes of the B positions; a step that
        reaches the new goal may have "continues" 0 before its episode's last one."""
        read = self._store.read(rows, times)
        beside = (-1, *[1] * (rows.ndim - 1))
        steps = self._chosen.reshape(beside) & (times < self._lengths.reshape(beside))
        following = self._store.read(rows[steps] + 1)[OBSERVATIONS]
        achieved = following[:, self._functions.places.achieved]
        goals = self._goals[np.nonzero(steps)[0]]
        rewards, ended = self._functions.outcomes(achieved, goals)
        read["rewards"][steps], read["continues"][steps] = rewards, ~ended
        seen = read[OBSERVATIONS]
        new = np.expand_dims(self._goals[self._chosen], tuple(range(1, seen.ndim - 1)))
        seen[self._chosen, ..., self._functions.places.desired] = new
        if "missing" in read:
            seen[read["missing"]] = 0
        return read


def make_hindsight(config: TrainConfig, spec: EnvironmentSpec) -> Relabelling | None:
    """What `config.algorithm`, which has `Hindsight` settings, asks for; None: nothing.

    Raises:
        UsageError: the environment has no goals, or other rewards than its own are learned from.
    """
    settings, experiment = config.algorithm, config.experiment
    if settings.hindsight == "none":
        return None
    for name, given in (
        ("reward", experiment.reward),
        ("reward-weights", experiment.reward_weights),
    ):
        if given:
            raise UsageError(
                f"--hindsight: it computes the environment's own rewards again, and --{name} makes "
                "others of them; leave one of the two out"
            )
    functions = GoalFunctions(environment_of(config, spec.env_id), find_goals(spec))
    return Relabelling(functions, settings.hindsight, settings.hindsight_share)
