"""Minibatches for gradient steps: from the replay memory, or with a share from demonstrations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from flame_rl.learner.demonstrations.demonstrations import Demonstrations
from flame_rl.learner.off_policy.gradient_step import GradientStep
from flame_rl.learner.off_policy.replay.hindsight import Relabelling
from flame_rl.learner.off_policy.replay.replay import ReplayMemory
from flame_rl.learner.off_policy.replay.samplers import uniform
from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.learner.off_policy.replay.views import StoredSteps
from flame_rl.learner.training.network import Samples
from flame_rl.system.errors import UsageError

# Several minibatches are drawn at once, because NumPy takes about as long for one as for all; but
# about so many bytes at most, so that they stay in the cache until they are used.
_BYTES_AT_ONCE = 1_000_000


class Minibatches(Protocol):
    """Where the samples of gradient steps come from."""

    def at_once(self, size: int) -> int:
        """How many minibatches of so many samples may be drawn before the first one is used."""
        ...

    def draw(
        self, number: int, size: int, beta: float, generator: np.random.Generator
    ) -> tuple[Samples, np.ndarray, np.ndarray | None]:
        """Draw minibatches.

        Args:
            number: K, of minibatches.
            size: B, of each.
            beta: exponent of the importance weights.
            generator: draws.

        Returns:
            Samples, [K, B, ...]; the positions of the first of each minibatch in the replay memory,
            int64 [K, b]; and the importance weights of all, float32 [K, B], or None where steps are
            drawn uniformly.
        """
        ...


@dataclass(frozen=True)
class Replayed:
    """All samples are of the replay memory.

    Attributes:
        replay: the stored episodes.
        inner: the algorithm, which views them.
        hindsight: gives drawn steps other goals; None: they keep theirs.
    """

    replay: ReplayMemory
    inner: GradientStep
    hindsight: Relabelling | None = None

    def at_once(self, size: int) -> int:
        """See `Minibatches`."""
        # A gradient step changes the priorities, which the next draw needs.
        return 1 if self.replay.prioritized else max(1, _BYTES_AT_ONCE // (size * self._bytes))

    def draw(
        self, number: int, size: int, beta: float, generator: np.random.Generator
    ) -> tuple[Samples, np.ndarray, np.ndarray | None]:
        """See `Minibatches`."""
        positions, weights = self.replay.draw(number * size, beta, generator)
        positions = positions.reshape(number, size)
        if weights is not None:
            weights = weights.reshape(number, size)
        return self.view(self.replay.store, positions, generator), positions, weights

    def view(
        self, store: StoredSteps, positions: np.ndarray, generator: np.random.Generator
    ) -> Samples:
        """The steps of a store at these positions, int64 [K, B], as the algorithm learns from
        them, [K, B, ...]."""
        shape, positions = positions.shape, positions.ravel()
        if self.hindsight is not None:
            store = self.hindsight.relabelled(store, positions, generator)
        samples = self.inner.view(store, positions)
        return {n: column.reshape(*shape, *column.shape[1:]) for n, column in samples.items()}

    @cached_property
    def _bytes(self) -> int:
        """Those of a sample, about."""
        sample = self.inner.view(self.replay.store, np.array([self.replay.store.first]))
        return sum(column.nbytes for column in sample.values())


@dataclass(frozen=True)
class WithDemonstrations:
    """A fixed share of each minibatch is drawn from demonstrations, uniformly, and follows the
    steps of the replay memory (Ball et al. 2023, "Efficient Online Reinforcement Learning with
    Offline Data", section 4.1). The demonstrations are never overwritten.

    Attributes:
        replayed: the other samples.
        demonstrations: the episodes.
        share: from 0 to 1.
    """

    replayed: Replayed
    demonstrations: Demonstrations
    share: float

    def at_once(self, size: int) -> int:
        """See `Minibatches`."""
        return self.replayed.at_once(size)

    def draw(
        self, number: int, size: int, beta: float, generator: np.random.Generator
    ) -> tuple[Samples, np.ndarray, np.ndarray | None]:
        """See `Minibatches`."""
        count = min(size - 1, math.floor(self.share * size + 0.5))
        own, positions, weights = self.replayed.draw(number, size - count, beta, generator)
        others = uniform(self.store, number * count, generator).reshape(number, count)
        others = self.replayed.view(self.store, others, generator)
        if weights is not None:
            weights = np.concatenate([weights, np.ones((number, count), weights.dtype)], axis=1)
        return {n: np.concatenate([own[n], others[n]], axis=1) for n in own}, positions, weights

    @cached_property
    def store(self) -> ReplayStore:
        """The demonstrations. Raises UsageError where they lack a column, or where their rewards
        or ends are not those that hindsight computes."""
        like, hindsight = self.replayed.replay.store, self.replayed.hindsight
        if hindsight is not None:
            hindsight.functions.check(self.demonstrations.episodes)
        episodes = self.replayed.inner.record(self.demonstrations.episodes)
        store = ReplayStore(like.columns, episodes.steps + len(episodes), like.frames)
        try:
            store.add(episodes)
        except ValueError as error:
            raise UsageError(f"--demonstrations: {error}") from error
        return store
