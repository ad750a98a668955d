"""What the algorithms with a replay memory share: the memory, and when gradient steps are due.

An update adds the iteration's episodes to the replay memory and takes the gradient steps that are
due, each on a minibatch drawn from it.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
from gymnasium import spaces
from numpy.random import Generator
from torch import nn

from flame_rl.learner import state
from flame_rl.learner.demonstrations.files import Demonstrations
from flame_rl.learner.learner import Algorithm
from flame_rl.learner.off_policy.gradient_step import GradientStep, recorded
from flame_rl.learner.off_policy.replay.hindsight import make_hindsight
from flame_rl.learner.off_policy.replay.minibatches import Minibatches, NormalizedObservations
from flame_rl.learner.off_policy.replay.replay import ReplayMemory, refuse_longer_episodes
from flame_rl.learner.training.frames import observations_of
from flame_rl.learner.training.network import Numbers
from flame_rl.settings import algorithms
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.inputs import observation_inputs, step_columns
from flame_rl.wire.messages import EnvironmentSpec, Episodes, PolicySnapshot


class OffPolicyAlgorithm(Algorithm):
    """An algorithm that learns from replayed experience.

    Attributes:
        inner: the algorithm itself.
        observations: normalises observations; None: `inner` gets them as they are.
        steps: counts the gradient steps that were taken.
    """

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvironmentSpec,
        make: Callable[[TrainConfig, EnvironmentSpec], GradientStep],
        demonstrations: Demonstrations | None = None,
    ) -> None:
        """The algorithm that `make` makes with new networks; it has `ReplaySettings`. Raises
        UsageError: it is not for these actions, not for networks with a memory, or not for
        demonstrations; hindsight is not for this environment; the replay memory does not fit into
        this machine's, or an episode up to its time limit does not fit into the replay memory."""
        self.inner, settings = make(config, spec), config.algorithm
        self.config, self.steps = config, state.Counter()
        refuse_other_actions(self.inner.actions, spec)
        if not self.inner.remembers and config.experiment.memory != "none":
            raise UsageError(
                f"--memory: {config.experiment.memory} is for reinforce, a2c, ppo, pqn, r2d2 and "
                f"bc, and {config.algorithm_name} does not remember; leave the flag out, or choose "
                "one of these"
            )
        if demonstrations is not None and not self.inner.demonstrable:
            raise UsageError(
                f"--demonstrations: {config.algorithm_name} weights actions by the probability "
                "with which they were taken, which demonstrations do not say; choose ppo, dqn or "
                "sac"
            )
        # Without a limit of their own, episodes may well be shorter.
        limit = None if spec.limited_by_default else spec.time_limit
        refuse_longer_episodes(limit or 0, settings.capacity)
        alpha, self._beta = None, 1.0  # without priorities, beta has no effect
        if isinstance(settings, algorithms.Prioritized) and settings.prioritized:
            alpha, self._beta = settings.priority_alpha, settings.priority_beta
        columns, frames = (*step_columns(spec), *self.inner.columns), config.experiment.frame_stack
        self.replay = ReplayMemory(spec, columns, settings.capacity, alpha, frames)
        self.observations = None
        if isinstance(settings, algorithms.Critics) and settings.normalize_observations:
            space = spec.observation_space
            # Bytes are not normalised.
            if any(each.space is None for each in observation_inputs(space)):
                self.observations = NormalizedObservations(space)
        hindsight = None
        if isinstance(settings, algorithms.Hindsight) and settings.hindsight != "none":
            hindsight = make_hindsight(config, spec)
        size, share = settings.batch_size, settings.demonstration_share
        self.demonstrations = demonstrations
        self.minibatches = Minibatches(
            self.replay, self.inner, size, hindsight, demonstrations, share
        )

    @property
    def parts(self) -> dict[str, state.Stateful | nn.Module]:
        own = {} if self.observations is None else self.observations.parts
        return {**self.inner.parts, **own, "gradient_steps": self.steps, state.REPLAY: self.replay}

    @property
    def metrics(self) -> tuple[str, ...]:
        return (*self.inner.metrics, "gradient_steps", "replay_steps")

    @property
    def notices(self) -> tuple[str, ...]:
        warm_up, hindsight = self.config.algorithm.warm_up_steps, self.minibatches.hindsight
        replay = f"Replay: {self.replay.needs}; learning begins after {warm_up:,} env steps"
        return (replay if hindsight is None else f"{replay}\n{hindsight.notice}",)

    def snapshot(self) -> PolicySnapshot:
        exploration = self.inner.exploration(self.replay.env_steps)
        snapshot = with_exploration(self.inner.policy.snapshot(), exploration)
        return snapshot if self.observations is None else self.observations.add_layer(snapshot)

    def collector_snapshot(self) -> PolicySnapshot:
        if self.minibatches.hindsight is not None:
            # Refused before an episode is played for nothing.
            self.minibatches.hindsight.functions.open()
        return self.snapshot()

    def close(self) -> None:
        if self.minibatches.hindsight is not None:
            self.minibatches.hindsight.functions.close()

    def update(self, episodes: Episodes, generator: Generator, progress: float) -> state.Metrics:
        """Add the episodes, and take the gradient steps that are due; see `Algorithm.update`."""
        replay, settings = self.replay, self.config.algorithm
        if self.minibatches.hindsight is not None:
            self.minibatches.hindsight.functions.check(episodes)
        replay.add(recorded(self.inner, episodes))
        if self.demonstrations is not None and isinstance(settings, algorithms.Critics):
            self.inner.record(self.demonstrations.episodes)  # here, as an update may be undone
        if self.observations is not None:
            self.observations.follow(observations_of(episodes.columns))
        beta = self._beta + (1 - self._beta) * min(1.0, progress)
        decay = state.learning_rate_factor(settings.learning_rate_decay, progress)
        due = gradient_steps_due(settings, replay.env_steps, self.steps.count)
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        for numbers in self.gradient_steps(due, beta, generator, decay):
            for name, values in numbers.items():
                sums[name] = sums.get(name, 0.0) + float(np.add.reduce(values, axis=None))
                counts[name] = counts.get(name, 0) + np.size(values)
        self.steps.count += due
        means = {name: total / counts[name] for name, total in sums.items()}
        played = {"gradient_steps": self.steps.count, "replay_steps": replay.store.size}
        return means | {name: float(count) for name, count in played.items()}

    def gradient_steps(
        self, number: int, beta: float, generator: Generator, decay: float = 1.0
    ) -> Iterator[Numbers]:
        """Take that number of gradient steps, each on a minibatch of its own, with `beta` as the
        exponent of importance weights and `decay` as the factor of learning rates; yields what
        `GradientStep.step` of each returns."""
        while number > 0:
            count = min(number, self.minibatches.at_once)
            drawn, positions = self.minibatches.draw(count, beta, generator)
            if self.observations is not None:
                drawn = self.observations.normalize_samples(drawn)
            steps = self.inner.steps(drawn, generator, decay)
            for own, numbers in zip(positions, steps, strict=True):
                # NaN is no priority, and further steps would be in vain.
                state.refuse_unless_finite({"td_error": float(numbers["td_error"].max())}, {})
                self.replay.prioritize(own, numbers["td_error"][: len(own)])
                yield numbers
            number -= count


def gradient_steps_due(settings: algorithms.ReplaySettings, env_steps: int, taken: int) -> int:
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


def refuse_other_actions(kind: str, spec: EnvironmentSpec) -> None:
    """Raise UsageError unless actions are of this kind; see `GradientStep.actions`."""
    one_choice = isinstance(spec.action_space, spaces.Discrete)
    if kind == "discrete" and not one_choice:
        wanted, instead = "Discrete actions", "ppo or sac" if spec.continuous else "ppo"
    elif kind == "continuous" and not spec.continuous:
        wanted, instead = "continuous actions, a Box", "dqn or ppo" if one_choice else "ppo"
    else:
        return
    raise UsageError(f"--algorithm: it needs {wanted}, not {spec.action_space}; choose {instead}")
