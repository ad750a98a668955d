"""Hindsight experience replay (Andrychowicz et al. 2017): stored steps, seen as if the goal had
been one that the episode reached later.

The store keeps episodes as they were played. A minibatch gets its goals when it is read: rewards
and ends are computed again, and the desired goal is replaced in every observation.

Such an environment observes a Dict of `observation`, `achieved_goal` and `desired_goal`, and has
`compute_reward(achieved_goal, desired_goal, info)`, as GoalEnv in Gymnasium-Robotics. The learner
makes one object of it, asks these functions alone, and never steps it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.simulators.plain import PlainSimulator
from flame_rl.actor.worker.process import CLOSE_SECONDS
from flame_rl.learner.off_policy.replay.views import StoredSteps
from flame_rl.learner.rewards import raised_by
from flame_rl.learner.training.frames import observations_of, step_rows
from flame_rl.settings.config import TrainConfig, environment_of
from flame_rl.system.errors import UsageError
from flame_rl.system.signals import close_within
from flame_rl.wire.inputs import OBSERVATIONS, observation_parts
from flame_rl.wire.messages import Environment, EnvironmentSpec, Episodes

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
# A goal is stored as float32: of so many steps one may lie on the other side of a threshold.
_STEPS_OF_A_ROUNDING = 10_000
# Relative error of a reward that float32 explains.
_ROUNDING = 1e-5
# Steps on which one call for many goals is compared with a call for each.
_COMPARED = 64

# Of achieved and desired goals: of one each, or of M.
_Function = Callable[[np.ndarray, np.ndarray], Any]


@dataclass(frozen=True)
class GoalPlaces:
    """Where the goals lie in a flattened observation, slices of G numbers each, and the space of
    one, a Box or MultiBinary."""

    achieved: slice
    desired: slice
    space: gymnasium.Space


def find_goals(spec: EnvironmentSpec) -> GoalPlaces:
    """Where the environment's goals are. Raises UsageError if it has none, or several agents."""
    if spec.agents:
        raise UsageError(f"--hindsight: {spec.env_id} has several agents; leave the flag out")
    parts = {part.path: part for part in observation_parts(spec.observation_space)}
    found = [parts.get((name,)) for name in (ACHIEVED, DESIRED)]
    forms = [part and (type(part.space), part.space.shape, part.one_byte) for part in found]
    kind, _, one_byte = forms[0] or (None, (), False)
    if forms[0] != forms[1] or kind not in (spaces.Box, spaces.MultiBinary) or one_byte:
        raise UsageError(
            f"--hindsight: it needs observations that are a Dict with {ACHIEVED} and {DESIRED}, "
            "both a Box of numbers or both MultiBinary, alike and no pictures, and "
            f"{spec.env_id} observes {spec.observation_space!s:.300}; leave the flag out, let "
            "--observe keep both keys, or make them so by a --wrapper"
        )
    return GoalPlaces(*(slice(part.start, part.stop) for part in found), found[1].space)


class GoalFunctions:
    """The environment's own functions of goals, and the object that has them.

    Which goals end an episode says its `compute_terminated` or, as in panda-gym, whose episodes
    terminate with a success, its `task.is_success`. Where it has neither, no goal ends one, and
    episodes that terminate are refused. `places`: where the goals are in an observation.
    """

    def __init__(self, environment: Environment, places: GoalPlaces) -> None:
        self.places = places
        self._environment = environment
        self._simulator: PlainSimulator | None = None
        # "compute_reward" and the one that says which goals end an episode, if any.
        self._functions: dict[str, _Function] = {}
        # How often each function gave what the environment did not.
        self._steps, self._differing = 0, Counter()

    def open(self) -> gymnasium.Env:
        """The object of the environment, which is made unless there is one. Raises UsageError if it
        cannot be made, or has no `compute_reward`."""
        if self._simulator is None:
            try:
                self._simulator = PlainSimulator(replace(self._environment, slots=1))
            except SimulatorError as error:
                raise UsageError(f"--hindsight: the learner's own environment: {error}") from error
        env = self._simulator.first
        if _attribute(env, "compute_reward") is None:
            raise UsageError(
                f"--hindsight: {self._environment.env_id} has no compute_reward(achieved_goal, "
                "desired_goal, info) for other goals; add the method, or a wrapper with it"
            )
        return env

    def close(self) -> None:
        """Close the object of the environment, if there is one."""
        simulator, self._simulator = self._simulator, None
        if simulator is not None:
            close_within(CLOSE_SECONDS, simulator.close)

    def check(self, episodes: Episodes) -> None:
        """Compute the rewards and ends of collected episodes again. Raises UsageError if the
        functions give others than the environment did, or as `outcomes` does."""
        observations = np.asarray(observations_of(episodes.columns))
        following = observations[step_rows(episodes.lengths) + 1]
        achieved, desired = following[:, self.places.achieved], following[:, self.places.desired]
        rewards, ended = self.outcomes(achieved, desired)
        given, terminated = episodes.columns["rewards"], np.zeros(episodes.steps, bool)
        terminated[np.cumsum(episodes.lengths) - 1] = episodes.terminated
        if len(self._functions) < 2 and terminated.any():
            raise UsageError(
                f"--hindsight: an episode of {self._environment.env_id} terminated, and it has no "
                "compute_terminated(achieved_goal, desired_goal, info) for other goals; add the "
                "method"
            )
        self._steps += episodes.steps
        rounding = _ROUNDING * (1 + np.abs(achieved).max() + np.abs(desired).max())
        other = ~np.isclose(rewards, given, rtol=_ROUNDING, atol=rounding)
        for name, differs, computed, expected in (
            ("compute_reward", other, rewards, given),
            ("compute_terminated", ended != terminated, ended, terminated),
        ):
            self._differing[name] += int(differs.sum())
            if self._differing[name] <= max(1, self._steps // _STEPS_OF_A_ROUNDING):
                continue
            place = int(np.argmax(differs))
            raise UsageError(
                f"--hindsight: {name} of {self._environment.env_id} gives {computed[place]} where "
                f"a step gave {expected[place]}, and differs in {self._differing[name]} of "
                f"{self._steps} steps. It must follow from the two goals alone; look for what else "
                "it reads, and for a wrapper that changes rewards or ends"
            )

    def outcomes(self, achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rewards, float32 [M], and whether the episode terminates, bool [M], of steps that lead to
        these achieved goals; both kinds of goals are as they are observed, float32 [M, G]. Raises
        UsageError if the environment has no such functions, or they fail."""
        if not len(achieved):
            return np.zeros(0, np.float32), np.zeros(0, bool)
        space = self.places.space
        achieved, desired = (
            goals.reshape(-1, *space.shape).astype(space.dtype) for goals in (achieved, desired)
        )
        if not self._functions:
            self._functions = self._found(achieved[:_COMPARED], desired[:_COMPARED])
        rewards, *ended = (
            self._values(name, function, achieved, desired)
            for name, function in self._functions.items()
        )
        none = np.zeros(len(achieved), bool)
        return rewards.astype(np.float32), ended[0].astype(bool) if ended else none

    def _found(self, achieved: np.ndarray, desired: np.ndarray) -> dict[str, _Function]:
        """The functions by name, for M goals at once, which these are to try them with."""
        env = self.open()
        found = {"compute_reward": self._with_info(_attribute(env, "compute_reward"))}
        if (compute := _attribute(env, "compute_terminated")) is not None:
            found["compute_terminated"] = self._with_info(compute)
        elif (succeeds := getattr(_attribute(env, "task"), "is_success", None)) is not None:
            found["task.is_success"] = succeeds
        # Steps that reach their goal are among them, and steps that do not.
        desired = np.concatenate([desired, achieved, np.roll(achieved, 1, axis=0)])
        achieved = np.concatenate([achieved] * 3)
        return {n: self._for_many(n, function, achieved, desired) for n, function in found.items()}

    def _with_info(self, compute: Callable[..., Any]) -> _Function:
        """GoalEnv's function, with an empty info for each goal."""

        def computed(achieved: np.ndarray, desired: np.ndarray) -> Any:
            one = achieved.shape == self.places.space.shape
            return compute(achieved, desired, {} if one else [{} for _ in achieved])

        return computed

    def _for_many(
        self, name: str, function: _Function, achieved: np.ndarray, desired: np.ndarray
    ) -> _Function:
        """The function for M goals at once: itself where it gives for these what it gives for each
        of them alone, otherwise a loop."""

        def one_by_one(achieved: np.ndarray, desired: np.ndarray) -> list[Any]:
            return [function(*pair) for pair in zip(achieved, desired, strict=True)]

        expected = self._values(name, one_by_one, achieved, desired)
        with contextlib.suppress(Exception, SystemExit):
            together = np.asarray(function(achieved, desired))
            if np.array_equal(together.astype(np.float32), expected.astype(np.float32)):
                return function
        return one_by_one

    def _values(
        self, name: str, function: _Function, achieved: np.ndarray, desired: np.ndarray
    ) -> np.ndarray:
        """What a function returned, a finite number for each goal, [M]."""
        title = f"--hindsight: {name} of {self._environment.env_id}"
        try:
            values = np.asarray(function(achieved, desired))
        except (Exception, SystemExit) as error:
            note = "; it is called with goals and an empty info"
            raise raised_by(title, error, note) from error
        alike = values.shape == (len(achieved),) and values.dtype.kind in "biuf"
        if not alike or not np.isfinite(values).all():
            place = int(np.argmin(np.isfinite(values))) if alike else 0
            returned = np.atleast_1d(values)[place : place + 1]
            raise UsageError(
                f"{title} returned {returned!s:.80} for the achieved goal {achieved[place]!s:.80} "
                f"and the desired goal {desired[place]!s:.80}; give a single finite number"
            )
        return values


def _attribute(env: gymnasium.Env, name: str) -> Any:
    """An attribute of the outermost wrapper that has it, or of the environment; None if nothing has
    it, or if it is an abstract method, as in GoalEnv."""
    found = env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
    return None if getattr(found, "__isabstractmethod__", False) else found


@dataclass(frozen=True)
class Relabelling:
    """Which steps get another goal, and which (section 3.3 and 4.5): each with the probability
    `share`, by the `strategy` "future" a goal that the episode achieved after the step, each as
    likely as any other; by "final" the one that it achieved last."""

    functions: GoalFunctions
    strategy: Literal["future", "final"]
    share: float

    @property
    def notice(self) -> str:
        """What a person should know of it when a run begins."""
        which = {"future": "a goal that was reached later", "final": "the goal reached last"}
        return f"Hindsight: {self.share:.0%} of drawn steps are given {which[self.strategy]}"


class RelabelledSteps:
    """`StoredSteps` whose rows are read for B positions, some of them with another goal."""

    def __init__(
        self,
        store: StoredSteps,
        hindsight: Relabelling,
        positions: np.ndarray,
        generator: np.random.Generator,
    ) -> None:
        """Draw the goals of the steps at these positions, int64 [B]."""
        self._store, self._functions = store, hindsight.functions
        self.steps, self.rows = store.steps, store.rows
        self.times, self.left = store.times, store.left
        self._chosen = generator.random(len(positions)) < hindsight.share
        ahead = left = store.left(positions)
        if hindsight.strategy == "future":
            ahead = generator.integers(1, left, endpoint=True)
        later = store.read(store.rows(positions) + ahead)[OBSERVATIONS]
        self._goals = later[:, self._functions.places.achieved]
        self._lengths = store.times(positions) + left

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


def make_hindsight(config: TrainConfig, spec: EnvironmentSpec) -> Relabelling:
    """What `config.algorithm`, which has `Hindsight` settings, asks for. Raises UsageError if the
    environment has no goals, or other rewards than its own are learned from."""
    settings, experiment = config.algorithm, config.experiment
    for name in ("reward", "reward_weights"):
        if getattr(experiment, name):
            raise UsageError(
                "--hindsight: it computes the environment's own rewards again, and "
                f"--{name.replace('_', '-')} makes others of them; leave one of the two out"
            )
    functions = GoalFunctions(environment_of(config, spec.env_id), find_goals(spec))
    return Relabelling(functions, settings.hindsight, settings.hindsight_share)
