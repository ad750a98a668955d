"""The rewards that are learned from, one number for each step: the environment's own, a weighted
sum of their parts, or what the user's function makes of an episode.

Actors record what the environment gives; here it becomes one number, before anything learns from
it: raw rewards are the environment's, scalarized if vectors; shaped rewards are learned from.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flame_rl.actor.environments.wrapping import import_named
from flame_rl.actor.failure import SimulatorError, summary, traceback_of
from flame_rl.settings.checks import flag, name_is_taken
from flame_rl.settings.experiment import Experiment
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec, Episode, Episodes

# An episode of T steps to a reward for each, float64 [T].
Reward = Callable[[Episode], np.ndarray]

# The name, among the parts, of the rewards that are learned from.
LEARNED = "reward_learned"


@dataclass(frozen=True)
class Rewards:
    """What becomes of an environment's rewards.

    Attributes:
        parts: names of the numbers of a reward that is a vector, then of those that are recorded
            from `info`.
        outcomes: names of the numbers of an episode's last step.
        scalarize: makes one number of a reward that is a vector; None: it is one number.
        shape: makes the shaped rewards; None: they are the raw ones.
    """

    parts: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    scalarize: Reward | None = None
    shape: Reward | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of what `means` and `outcomes_of` return."""
        return (*self.parts, *self.outcomes, *([] if self.shape is None else [LEARNED]))

    def raw(self, episodes: Episodes) -> Episodes:
        """The collected episodes with raw rewards, one number for each step. Raises UsageError, as
        `shaped` does, where the user's function fails or returns something else."""
        return episodes if self.scalarize is None else _with_rewards(episodes, self.scalarize)

    def shaped(self, collected: Episodes, raw: Episodes) -> Episodes:
        """The episodes with shaped rewards, given the collected ones and what `raw` made of them;
        where there are parts, all of them are the column "reward_parts", float64 [N, P]."""
        episodes = raw if self.shape is None else _with_rewards(raw, self.shape)
        columns = {n: a for n, a in episodes.columns.items() if n != "outcomes"}
        if self.parts:
            columns["reward_parts"] = _parts_of(collected)
        return replace(episodes, columns=columns) if self.parts or self.outcomes else episodes

    def outcomes_of(self, collected: Episodes) -> dict[str, float]:
        """By name, the mean of each outcome over the episodes that have ended; NaN if none has."""
        if not self.outcomes:
            return {}
        ended = collected.terminated | collected.truncated
        last = collected.columns["outcomes"][np.cumsum(collected.lengths)[ended] - 1]
        means = last.mean(axis=0) if len(last) else np.full(len(self.outcomes), np.nan)
        return dict(zip(self.outcomes, means.tolist(), strict=True))

    def raw_return(self, episode: Episode) -> float:
        """The sum of the raw rewards of a collected episode. Raises UsageError as `raw` does."""
        return float((episode.rewards if self.scalarize is None else self.scalarize(episode)).sum())

    def means(self, collected: Episodes, shaped: Episodes) -> dict[str, float]:
        """By name, the mean over the collected episodes of the undiscounted sum of each part; as
        `LEARNED`, of the shaped rewards, where they are not the raw ones."""
        means: dict[str, float] = {}
        if self.parts:
            sums = [_parts_of(episode).sum(axis=0) for episode in collected]
            means = dict(zip(self.parts, np.mean(sums, axis=0).tolist(), strict=True))
        if self.shape is not None:
            means[LEARNED] = float(np.mean([episode.rewards.sum() for episode in shaped]))
        return means


# The environment's reward, one number, is learned from.
RAW = Rewards()


def make_rewards(experiment: Experiment, spec: EnvironmentSpec) -> Rewards:
    """What becomes of the environment's rewards by these settings. Raises UsageError if there are
    not as many weights as parts, two parts have one name, the user's function cannot be imported,
    or nothing makes one number of a reward that is a vector."""
    count, outcomes, reward = sum(spec.reward_shape), experiment.outcomes, None
    parts = (*(f"reward_{place}" for place in range(count)), *experiment.reward_parts)
    for name in (*experiment.reward_parts, *outcomes):
        if (*parts, *outcomes, LEARNED).count(name) > 1:
            raise name_is_taken(name)
    if experiment.reward is not None:
        reward = _shaped_by(experiment.reward)
    elif experiment.reward_weights:
        reward = _weighted_by(experiment.reward_weights, parts)
    if not spec.reward_shape:
        return Rewards(parts, outcomes, shape=reward)
    if reward is None:
        raise UsageError(
            f"--reward-weights: the reward of {spec.env_id} is a vector of {count} numbers; give "
            f"{len(parts)} weights, for {', '.join(parts)}, or a function by --reward"
        )
    return Rewards(parts, outcomes, scalarize=reward)


def _weighted_by(weights: tuple[float, ...], parts: tuple[str, ...]) -> Reward:
    if len(weights) != len(parts):
        named = f", {', '.join(parts)}" if parts else "; --reward-parts names some"
        raise UsageError(
            f"--reward-weights: {len(weights)} for {len(parts)} parts of the reward{named}"
        )

    def weighted(episode: Episode) -> np.ndarray:
        # Not a product of matrices, whose bits depend on their size.
        own = _parts_of(episode)
        return sum(weight * own[:, place] for place, weight in enumerate(weights))

    return weighted


def _parts_of(episodes: Episode | Episodes) -> np.ndarray:
    """The numbers of a reward that is a vector, then those recorded from `info`, float64 [N, P]."""
    numbers = [episodes.rewards] if episodes.rewards.ndim == 2 else []
    named = [episodes.columns["reward_parts"]] if "reward_parts" in episodes.columns else []
    return np.concatenate([*numbers, *named], axis=1)


def _with_rewards(episodes: Episodes, reward: Reward) -> Episodes:
    rewards = np.concatenate([reward(episode) for episode in episodes])
    return replace(episodes, columns=episodes.columns | {"rewards": rewards})


def _shaped_by(name: str) -> Reward:
    """The user's function `module:function`, with its results checked."""
    function = import_function("reward", name)

    def shaped(episode: Episode) -> np.ndarray:
        columns = {column: array.view() for column, array in episode.columns.items()}
        for array in columns.values():
            # The function is given the recorded arrays themselves: it must not write to them.
            array.flags.writeable = False
        where = f"episode {episode.index} of {episode.length} steps"
        try:
            made = np.asarray(function(replace(episode, columns=columns)))
        except (Exception, SystemExit) as error:
            raise raised_by(f"--reward: {name}", error, f", in {where}") from error
        if made.dtype.kind not in "biuf" or made.shape != (episode.length,):
            raise UsageError(
                f"--reward: {name} returned {made.dtype} of shape {made.shape} for {where}; it "
                f"must return one number for each step, an array of shape ({episode.length},)"
            )
        if not (finite := np.isfinite(made)).all():
            step = int(np.argmin(finite))
            raise UsageError(
                f"--reward: {name} returned {made[step]} for step {step} of episode "
                f"{episode.index}; look for a division by 0 or a logarithm of 0"
            )
        return made.astype(np.float64)

    return shaped


def raised_by(what: str, error: BaseException, note: str = "") -> UsageError:
    """The error of a user's function, with its traceback; `note` follows what it says."""
    return UsageError(f"{what} raised {summary(error)}{note}\n\n{traceback_of(error).rstrip()}")


def import_function(setting: str, name: str) -> Callable[..., Any]:
    """The user's function or class `module:function`. Raises UsageError with the setting's flag."""
    try:
        return import_named(flag(setting), name, "function")
    except SimulatorError as error:
        raise UsageError(str(error)) from error
