"""What the algorithms with a replay memory share: the memory, and when gradient steps are due.

An update adds the iteration's episodes to the replay memory and takes the gradient steps that are
due, each on a minibatch drawn from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

import numpy as np
from gymnasium import spaces
from torch import nn

from flame_rl.learner.demonstrations.demonstrations import Demonstrations
from flame_rl.learner.off_policy.gradient_step import GradientStep
from flame_rl.learner.off_policy.observations import NormalizedObservations
from flame_rl.learner.off_policy.replay.hindsight import Relabelling, make_hindsight
from flame_rl.learner.off_policy.replay.minibatches import (
    Minibatches,
    Replayed,
    WithDemonstrations,
)
from flame_rl.learner.off_policy.replay.replay import PART, ReplayMemory, refuse_longer_episodes
from flame_rl.learner.state import Counter, Part, learning_rate_factor, refuse_unless_finite
from flame_rl.learner.training.choose import in_training
from flame_rl.learner.training.frames import observations_of
from flame_rl.learner.training.trained import Train
from flame_rl.settings import algorithms
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.inputs import observation_inputs
from flame_rl.wire.messages import EnvironmentSpec, Episodes, PolicySnapshot
from flame_rl.wire.steps import step_columns

# Metrics of every learner here, besides its own.
REPLAYED = ("gradient_steps", "replay_steps")


@dataclass(frozen=True)
class OffPolicy:
    """An algorithm that learns from replayed experience, as `flame_rl.learner.learner.Algorithm`
    describes it.

    Attributes:
        config: its `algorithm` has `Replay` settings.
        inner: the algorithm itself.
        replay: the stored episodes.
        observations: normalises them; None: `inner` gets them as they are.
        beta: exponent of the importance weights at the beginning of the run; it rises to 1 at the
            end. Without priorities it has no effect.
        minibatches: where the samples of gradient steps come from.
        hindsight: gives drawn steps other goals; None: they keep theirs.
        steps: counts the gradient steps that were taken.
    """

    lag = 0

    config: TrainConfig
    inner: GradientStep
    replay: ReplayMemory
    observations: NormalizedObservations | None
    beta: float
    minibatches: Minibatches
    hindsight: Relabelling | None = None
    steps: Counter = field(default_factory=Counter)

    @property
    def parts(self) -> dict[str, Part | nn.Module]:
        own = {} if self.observations is None else self.observations.parts
        return {**self.inner.parts, **own, "gradient_steps": self.steps, PART: self.replay}

    @property
    def metrics(self) -> tuple[str, ...]:
        return (*self.inner.metrics, *REPLAYED)

    @property
    def files(self) -> ReplayMemory:
        return self.replay

    @property
    def notice(self) -> str:
        warm_up = self.config.algorithm.warm_up_steps
        replay = f"Replay: {self.replay.needs}; learning begins after {warm_up:,} env steps"
        return replay if self.hindsight is None else f"{replay}\n{self.hindsight.notice}"

    def snapshot(self) -> PolicySnapshot:
        exploration = self.inner.exploration(self.replay.env_steps)
        snapshot = with_exploration(self.inner.policy.snapshot(), exploration)
        return snapshot if self.observations is None else self.observations.add_layer(snapshot)

    def collector_snapshot(self) -> PolicySnapshot:
        if self.hindsight is not None:
            # Refused before an episode is played for nothing.
            self.hindsight.functions.open()
        return self.snapshot()

    def close(self) -> None:
        if self.hindsight is not None:
            self.hindsight.functions.close()

    def update(
        self, episodes: Episodes, generator: np.random.Generator, progress: float
    ) -> dict[str, float]:
        """Add the episodes, and take the gradient steps that are due; see `Algorithm.update`."""
        replay = self.replay
        if self.hindsight is not None:
            self.hindsight.functions.check(episodes)
        replay.add(self.inner.record(episodes))
        if self.observations is not None:
            self.observations.follow(observations_of(episodes.columns))
        beta = self.beta + (1 - self.beta) * min(1.0, progress)
        decay = learning_rate_factor(self.config.algorithm.learning_rate_decay, progress)
        due = gradient_steps_due(self.config.algorithm, replay.env_steps, self.steps.count)
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        for numbers in self.gradient_steps(due, beta, generator, decay):
            for name, values in numbers.items():
                sums[name] = sums.get(name, 0.0) + float(np.add.reduce(values, axis=None))
                counts[name] = counts.get(name, 0) + np.size(values)
        self.steps.count += due
        means = {name: total / counts[name] for name, total in sums.items()}
        played = {
            "gradient_steps": float(self.steps.count),
            "replay_steps": float(replay.store.size),
        }
        return means | played

    def gradient_steps(
        self, number: int, beta: float, generator: np.random.Generator, decay: float = 1.0
    ) -> Iterator[dict[str, np.ndarray]]:
        """Take gradient steps, each on a minibatch of its own; yields what `GradientStep.step` of
        each returns.

        Args:
            number: of steps.
            beta: exponent of the importance weights.
            generator: draws the minibatches, and the random numbers of the steps.
            decay: factor of the learning rates.
        """
        size = self.config.algorithm.batch_size
        while number > 0:
            count = min(number, self.minibatches.at_once(size))
            drawn, positions, weights = self.minibatches.draw(count, size, beta, generator)
            if self.observations is not None:
                drawn = self.observations.normalize_samples(drawn)
            if weights is not None:
                drawn["weights"] = weights
            for place in range(count):
                samples = {name: column[place] for name, column in drawn.items()}
                numbers = self.inner.step(samples, generator, decay)
                # NaN is no priority, and further steps would be in vain.
                refuse_unless_finite({"td_error": float(numbers["td_error"].max())}, {})
                own = positions[place]
                self.replay.prioritize(own, numbers["td_error"][: len(own)])
                yield numbers
            number -= count


def off_policy(
    config: TrainConfig,
    spec: EnvironmentSpec,
    make: Callable[[TrainConfig, EnvironmentSpec, Train], GradientStep],
    demonstrations: Demonstrations | None = None,
) -> OffPolicy:
    """An algorithm over a replay memory.

    Args:
        config: see `OffPolicy`.
        spec: of the environment.
        make: makes the algorithm with new networks; see `GradientStep`.
        demonstrations: what a share of each minibatch is drawn from, if there are any.

    Raises:
        UsageError: the algorithm is not for these actions, not for networks with a memory, or not
            for demonstrations; hindsight is not for this environment; the replay memory does not
            fit into this machine's, or an episode that reaches its time limit does not fit into the
            replay memory.
    """
    inner = make(config, spec, in_training)
    settings = config.algorithm
    _refuse_other_actions(inner.actions, spec)
    if not inner.remembers:
        _refuse_memory(config)
    # Without a limit of their own, episodes may well be shorter.
    limit = None if spec.limited_by_default else spec.time_limit
    refuse_longer_episodes(limit or 0, settings.capacity)
    alpha, beta = None, 1.0
    if isinstance(settings, algorithms.Prioritized) and settings.prioritized:
        alpha, beta = settings.priority_alpha, settings.priority_beta
    columns = (*step_columns(spec), *inner.columns)
    replay = ReplayMemory(spec, columns, settings.capacity, alpha, config.experiment.frame_stack)
    observations = None
    normalizes = isinstance(settings, algorithms.Critics) and settings.normalize_observations
    space = spec.observation_space
    # Bytes are not normalised.
    if normalizes and any(each.space is None for each in observation_inputs(space)):
        observations = NormalizedObservations(space)
    hindsight = None
    if isinstance(settings, algorithms.Hindsight):
        hindsight = make_hindsight(config, spec)
    replayed = Replayed(replay, inner, hindsight)
    minibatches: Minibatches = replayed
    if demonstrations is not None:
        if not inner.demonstrable:
            raise UsageError(
                f"--demonstrations: {config.algorithm_name} weights actions by the probability "
                "with which they were taken, which demonstrations do not say; choose ppo, dqn or "
                "sac"
            )
        share = settings.demonstration_share
        minibatches = WithDemonstrations(replayed, demonstrations, share)
    return OffPolicy(config, inner, replay, observations, beta, minibatches, hindsight)


def gradient_steps_due(settings: algorithms.Replay, env_steps: int, taken: int) -> int:
    """How many gradient steps are due after `env_steps` env steps and `taken` gradient steps of the
    run: `updates_per_step` for each env step since the warm-up, whose last step has as many, but at
    least one.

    It is Reverb's rate limiter (Cassirer et al. 2021, "Reverb: A Framework for Experience Replay")
    for a learner that collects and learns in turn: samples may be ahead of env steps by one
    minibatch, or by the samples of one env step where these are more.
    """
    since = env_steps - max(1, settings.warm_up_steps)
    if since < 0:
        return 0
    samples_per_step = settings.updates_per_step * settings.batch_size
    ahead = max(samples_per_step, settings.batch_size)
    wanted = _exactly(samples_per_step) * since + _exactly(ahead)
    return max(0, math.floor(wanted / settings.batch_size) - taken)


def _exactly(number: float) -> Fraction:
    """0.1 as a tenth, so that ten times a tenth is 1."""
    return Fraction(number).limit_denominator(1_000_000)


def with_exploration(snapshot: PolicySnapshot, numbers: dict[str, float]) -> PolicySnapshot:
    """The policy with these numbers in its head, such as "epsilon", by name."""
    arrays = {n: np.full_like(snapshot.head.arrays[n], number) for n, number in numbers.items()}
    head = replace(snapshot.head, arrays=snapshot.head.arrays | arrays)
    return replace(snapshot, head=head)


def _refuse_other_actions(
    kind: Literal["any", "discrete", "continuous"], spec: EnvironmentSpec
) -> None:
    if kind == "discrete" and not isinstance(spec.action_space, spaces.Discrete):
        wanted, instead = "Discrete actions", "ppo or sac" if spec.continuous else "ppo"
    elif kind == "continuous" and not spec.continuous:
        one_choice = isinstance(spec.action_space, spaces.Discrete)
        wanted, instead = "continuous actions, a Box", "dqn or ppo" if one_choice else "ppo"
    else:
        return
    raise UsageError(
        f"--algorithm: it needs {wanted}, and {spec.env_id} has {spec.action_space}; choose "
        f"{instead}"
    )


def _refuse_memory(config: TrainConfig) -> None:
    kind = config.experiment.memory
    if kind != "none":
        raise UsageError(
            f"--memory: {kind} is for reinforce, a2c, ppo, r2d2 and bc, which learn from "
            f"sequences; {config.algorithm_name} does not remember. Leave the flag out, or choose "
            "one of these"
        )
