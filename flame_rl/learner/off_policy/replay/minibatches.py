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
from flame_rl.nets.network import Samples
from flame_rl.system.errors import UsageError


class Minibatches(Protocol):
    """Where the samples of gradient steps come from."""

    def draw(
        self, count: int, beta: float, generator: np.random.Generator
    ) -> tuple[Samples, np.ndarray, np.ndarray | None]:
        """Draw a minibatch.

        Args:
            count: B.
            beta: exponent of the importance weights.
            generator: draws.

        Returns:
            B samples; the positions of the first of them in the replay memory, int64; and the
            importance weights of all, float32 [B], or None where steps are drawn uniformly.
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

    def draw(
        self, count: int, beta: float, generator: np.random.Generator
    ) -> tuple[Samples, np.ndarray, np.ndarray | None]:
        """See `Minibatches`."""
        positions, weights = self.replay.draw(count, beta, generator)
        return self.view(self.replay.store, positions, generator), positions, weights

    def view(
        self, store: StoredSteps, positions: np.ndarray, generator: np.random.Generator
    ) -> Samples:
        """The steps of a store at these positions, int64 [B], as the algorithm learns from them."""
        if self.hindsight is not None:
            store = self.hindsight.relabelled(store, positions, generator)
        return self.inner.view(store, positions)


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

    def draw(
        self, count: int, beta: float, generator: np.random.Generator
    ) -> tuple[Samples, np.ndarray, np.ndarray | None]:
        """See `Minibatches`."""
        number = min(count - 1, math.floor(self.share * count + 0.5))
        own, positions, weights = self.replayed.draw(count - number, beta, generator)
        others = uniform(self.store, number, generator)
        others = self.replayed.view(self.store, others, generator)
        if weights is not None:
            weights = np.concatenate([weights, np.ones(number, weights.dtype)])
        return {n: np.concatenate([own[n], others[n]]) for n in own}, positions, weights

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
