"""What the algorithms with a replay memory share: the experience, and how often it is learned from.

An iteration's episodes go into the replay memory; then as many gradient steps are taken as are due,
each on a minibatch that is drawn from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

import model
from flame_rl.learner.off_policy.observations import NormalizedObservations
from flame_rl.learner.off_policy.replay.limiter import RateLimiter
from flame_rl.learner.off_policy.replay.replay import PART, Replay, refuse_longer_episodes
from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.learner.state import Part, learning_rate_factor, refuse_unless_finite
from flame_rl.nets.network import Samples
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import Column, EnvironmentSpec, Episodes, PolicySnapshot
from flame_rl.wire.steps import observation_dtype, step_columns

# Metrics of every learner here, besides its own.
REPLAYED = ("gradient_steps", "replay_steps")


class Counter:
    """A count; a `Part`.

    Attributes:
        count: so far.
    """

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Tensor]:
        return {"count": torch.tensor(self.count)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.count = int(state["count"])


class GradientStep(Protocol):
    """An algorithm's networks, and one gradient step of theirs.

    Attributes:
        parts: networks, optimisers and whatever else has state, by name.
        metrics: names of the numbers that `step` may return.
    """

    @property
    def parts(self) -> dict[str, Part]: ...

    @property
    def metrics(self) -> tuple[str, ...]: ...

    def snapshot(self, env_steps: int) -> PolicySnapshot:
        """The policy for the actors, with the exploration that is due after `env_steps` env steps
        of the run."""
        ...

    def view(self, store: ReplayStore, positions: np.ndarray) -> Samples:
        """What `step` needs of the steps at these positions; see replay/views.py."""
        ...

    def step(
        self, samples: Samples, generator: np.random.Generator, decay: float
    ) -> dict[str, np.ndarray]:
        """Take one gradient step.

        Args:
            samples: B samples, as `view` returns them; with "weights", float32 [B], where they were
                not drawn uniformly.
            generator: for random numbers of the step itself.
            decay: factor of the learning rates.

        Returns:
            Numbers of this step by name, of any shape; and "td_error", [B], absolute.
        """
        ...


@dataclass(frozen=True)
class OffPolicy:
    """An algorithm that learns from replayed experience, for `flame_rl.learner.learner.Learner`.

    Attributes:
        config: its `algorithm` has capacity, warm_up_steps, batch_size, updates_per_step and
            learning_rate_decay.
        inner: the algorithm's own part.
        replay: the experience.
        limiter: how many gradient steps are due.
        steps: counts the gradient steps that were taken.
        beta: exponent of the importance weights at the beginning of the run; it rises to 1 at the
            end. See `flame_rl.learner.off_policy.replay.samplers.Prioritized`.
        record: adds columns to episodes before they are kept.
        observations: normalises them; None: `inner` gets them as they are.
    """

    lag = 0

    config: TrainConfig
    inner: GradientStep
    replay: Replay
    limiter: RateLimiter
    beta: float
    record: Callable[[Episodes], Episodes]
    observations: NormalizedObservations | None
    steps: Counter = field(default_factory=Counter)

    @property
    def parts(self) -> dict[str, Part]:
        """See `Algorithm.parts`."""
        own = {} if self.observations is None else self.observations.parts
        return {**self.inner.parts, **own, "gradient_steps": self.steps, PART: self.replay}

    @property
    def metrics(self) -> tuple[str, ...]:
        """See `Algorithm.metrics`."""
        return (*self.inner.metrics, *REPLAYED)

    @property
    def files(self) -> Replay:
        """See `Algorithm.files`."""
        return self.replay

    @property
    def notice(self) -> str:
        """See `Algorithm.notice`."""
        warm_up = self.config.algorithm.warm_up_steps
        return f"Replay: {self.replay.needs}; learning begins after {warm_up:,} env steps"

    def snapshot(self) -> PolicySnapshot:
        """The policy for the actors."""
        snapshot = self.inner.snapshot(self.replay.env_steps)
        return snapshot if self.observations is None else self.observations.of_snapshot(snapshot)

    def collecting(self) -> PolicySnapshot:
        """See `Algorithm.collecting`."""
        return self.snapshot()

    def update(
        self, episodes: Episodes, generator: np.random.Generator, progress: float
    ) -> dict[str, float]:
        """Add the episodes, and take the gradient steps that are due; see `Algorithm.update`."""
        replay = self.replay
        replay.add(self.record(episodes))
        if self.observations is not None:
            self.observations.follow(episodes.observations)
        beta = self.beta + (1 - self.beta) * min(1.0, progress)
        decay = learning_rate_factor(self.config.algorithm.learning_rate_decay, progress)
        due = self.limiter.gradient_steps(replay.env_steps, self.steps.count)
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        for _ in range(due):
            for name, values in self.gradient_step(beta, generator, decay).items():
                sums[name] = sums.get(name, 0.0) + float(np.mean(values))
                counts[name] = counts.get(name, 0) + 1
        self.steps.count += due
        means = {name: total / counts[name] for name, total in sums.items()}
        played = {
            "gradient_steps": float(self.steps.count),
            "replay_steps": float(replay.store.size),
        }
        return means | played

    def gradient_step(
        self, beta: float, generator: np.random.Generator, decay: float = 1.0
    ) -> dict[str, np.ndarray]:
        """Take one gradient step on a minibatch; returns what `GradientStep.step` does.

        Args:
            beta: exponent of the importance weights.
            generator: draws the minibatch, and is for the step itself.
            decay: factor of the learning rates.
        """
        positions, weights = self.replay.draw(self.limiter.batch_size, beta, generator)
        samples = self.inner.view(self.replay.store, positions)
        if self.observations is not None:
            samples = self.observations.of_samples(samples)
        if weights is not None:
            samples["weights"] = weights
        numbers = self.inner.step(samples, generator, decay)
        # What is not finite is no priority, and further steps would be in vain.
        refuse_unless_finite({"td_error": float(numbers["td_error"].max())}, {})
        self.replay.prioritize(positions, numbers["td_error"])
        return numbers


def off_policy(
    config: TrainConfig,
    spec: EnvironmentSpec,
    inner: GradientStep,
    alpha: float | None = None,
    beta: float = 1.0,
    columns: tuple[Column, ...] = (),
    record: Callable[[Episodes], Episodes] = lambda episodes: episodes,
    remembers: bool = False,
    normalizes: bool = False,
) -> OffPolicy:
    """An algorithm over a replay memory.

    Args:
        config, inner: see `OffPolicy`.
        spec: of the environment.
        alpha: exponent of the priorities of prioritised replay; None: steps are drawn uniformly.
        beta: see `OffPolicy`; without priorities it has no effect.
        columns: kept of every step besides what the actors record.
        record: adds these columns to episodes.
        remembers: whether the algorithm's networks may have a memory.
        normalizes: whether observations are normalised before `inner` gets them; those of one byte
            never are.

    Raises:
        UsageError: the replay memory does not fit into this machine's, or an episode that reaches
            its time limit does not fit into the replay memory.
    """
    if not remembers:
        _refuse_memory(config)
    settings = config.algorithm
    refuse_longer_episodes(spec.time_limit or 0, settings.capacity)
    samples_per_insert = settings.updates_per_step * settings.batch_size
    limiter = RateLimiter(
        samples_per_insert=samples_per_insert,
        batch_size=settings.batch_size,
        min_size_to_sample=max(1, settings.warm_up_steps),
        error_buffer=max(samples_per_insert, settings.batch_size),
    )
    kept = (*step_columns(spec), *columns)
    replay = Replay(spec, kept, settings.capacity, alpha, config.experiment.frame_stack)
    observations = None
    if normalizes and observation_dtype(spec.observation_space) != "uint8":
        normalizer = model.ObservationNormalizer(spec.observation_dim)
        observations = NormalizedObservations(normalizer)
    return OffPolicy(config, inner, replay, limiter, beta, record, observations)


def _refuse_memory(config: TrainConfig) -> None:
    kind = config.experiment.memory
    if kind != "none":
        raise UsageError(
            f"--memory: {kind} is for reinforce, a2c, ppo and r2d2, which learn from sequences; "
            f"{config.algorithm_name} does not remember. Leave the flag out, or choose one of these"
        )


def exploring(snapshot: PolicySnapshot, numbers: dict[str, float]) -> PolicySnapshot:
    """The policy with other numbers of its head, by name: "epsilon", say."""
    arrays = {n: np.full_like(snapshot.head.arrays[n], number) for n, number in numbers.items()}
    head = replace(snapshot.head, arrays=snapshot.head.arrays | arrays)
    return replace(snapshot, head=head)


def refuse_unless_discrete(spec: EnvironmentSpec) -> None:
    """Raise UsageError unless the environment's actions are Discrete."""
    if not isinstance(spec.action_space, spaces.Discrete):
        _refuse_actions(spec, "Discrete actions", "sac, or ppo for several choices at once")


def refuse_unless_continuous(spec: EnvironmentSpec) -> None:
    """Raise UsageError unless the environment's actions are real numbers."""
    if not spec.continuous:
        _refuse_actions(spec, "continuous actions, a Box", "ppo, or dqn if Discrete")


def _refuse_actions(spec: EnvironmentSpec, wanted: str, instead: str) -> None:
    raise UsageError(
        f"--algorithm: it needs {wanted}, and {spec.env_id} has {spec.action_space}; choose "
        f"{instead}"
    )
