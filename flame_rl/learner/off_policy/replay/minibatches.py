"""Minibatches for gradient steps: drawn from the replay memory, a share of them from
demonstrations, and with normalised observations."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import gymnasium
import numpy as np
from numpy.random import Generator
from torch import nn

from flame_rl.learner.demonstrations.files import Demonstrations
from flame_rl.learner.off_policy.gradient_step import GradientStep, recorded
from flame_rl.learner.off_policy.replay.hindsight import RelabelledSteps, Relabelling
from flame_rl.learner.off_policy.replay.replay import ReplayMemory
from flame_rl.learner.off_policy.replay.samplers import uniform
from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.learner.off_policy.replay.views import StoredSteps
from flame_rl.learner.state import Stateful
from flame_rl.learner.training.frames import SideBySide
from flame_rl.learner.training.network import Samples
from flame_rl.learner.training.normalize import RunningMoments
from flame_rl.modules.layers import layers_of, side_by_side
from flame_rl.modules.observations import ObservationNormalizer, normalizers_of
from flame_rl.nets.layers import NormalizeLayer
from flame_rl.system.errors import UsageError
from flame_rl.wire.inputs import observation_inputs
from flame_rl.wire.messages import PolicySnapshot

# Several minibatches are drawn at once, because NumPy takes about as long for one as for all; but
# about so many bytes at most, so that they stay in the cache until they are used.
_BYTES_AT_ONCE = 1_000_000
_OBSERVATIONS = ("observations", "next_observations", "between")


@dataclass(frozen=True)
class Minibatches:
    """Where the samples of gradient steps come from.

    A fixed share of each minibatch is drawn from demonstrations, uniformly, and follows the steps
    of the replay memory (Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline
    Data", section 4.1). The demonstrations are never overwritten.

    Attributes:
        inner: the algorithm, which views the stored steps.
        size: B, samples of a minibatch.
        hindsight: gives drawn steps other goals; None: they keep theirs.
        share: that of demonstrations, from 0 to 1; at least one sample is of the replay memory.
    """

    replay: ReplayMemory
    inner: GradientStep
    size: int
    hindsight: Relabelling | None = None
    demonstrations: Demonstrations | None = None
    share: float = 0.0

    @property
    def at_once(self) -> int:
        """How many minibatches may be drawn before the first one is used."""
        # A gradient step changes the priorities, which the next draw needs.
        return 1 if self.replay.prioritized else max(1, _BYTES_AT_ONCE // (self.size * self._bytes))

    def draw(self, number: int, beta: float, generator: Generator) -> tuple[Samples, np.ndarray]:
        """Draw K = `number` minibatches: samples, [K, B, ...], with importance "weights", float32,
        to the power of `beta` unless steps are drawn uniformly; and the positions in the replay
        memory of the first b samples of each, int64 [K, b]."""
        demonstrated = 0
        if self.demonstrations is not None:
            demonstrated = min(self.size - 1, math.floor(self.share * self.size + 0.5))
        positions, weights = self.replay.draw(number * (self.size - demonstrated), beta, generator)
        positions = positions.reshape(number, -1)
        samples = self._view(self.replay.store, positions, generator)
        if weights is not None:
            samples["weights"] = weights.reshape(number, -1)
        if demonstrated:
            others = uniform(self.store, number * demonstrated, generator)
            shown = self._view(self.store, others.reshape(number, -1), generator)
            shown["weights"] = np.ones((number, demonstrated), np.float32)
            samples = {n: np.concatenate([own, shown[n]], axis=1) for n, own in samples.items()}
        return samples, positions

    def _view(self, store: StoredSteps, positions: np.ndarray, generator: Generator) -> Samples:
        """Steps of a store, positions int64 [K, B], as the algorithm learns from them."""
        shape, positions = positions.shape, positions.ravel()
        if self.hindsight is not None:
            store = RelabelledSteps(store, self.hindsight, positions, generator)
        samples = self.inner.view(store, positions)
        return {n: column.reshape(*shape, *column.shape[1:]) for n, column in samples.items()}

    @cached_property
    def _bytes(self) -> int:
        """Those of a sample, about."""
        sample = self.inner.view(self.replay.store, np.array([self.replay.store.first]))
        return sum(column.nbytes for column in sample.values())

    @cached_property
    def store(self) -> ReplayStore:
        """The demonstrations. Raises UsageError where they lack a column, or where their rewards
        or ends are not those that hindsight computes."""
        like = self.replay.store
        if self.hindsight is not None:
            self.hindsight.functions.check(self.demonstrations.episodes)
        try:
            episodes = recorded(self.inner, self.demonstrations.episodes)
            store = ReplayStore(like.columns, episodes.steps + len(episodes), like.frames)
            store.add(episodes)
        except (UsageError, ValueError) as error:
            raise UsageError(f"--demonstrations: {error}") from error
        return store


class NormalizedObservations:
    """Brings observations to mean 0 and standard deviation 1, by the statistics of all that were
    collected (Lee et al. 2025, "SimBa": running statistics normalisation).

    The replay memory stores raw observations, because the statistics change: samples are
    normalised when they are drawn, and actors normalise with a layer before the policy's own.
    """

    def __init__(self, space: gymnasium.Space) -> None:
        """`space` is that of observations; of several inputs, bytes are not normalised."""
        inputs = observation_inputs(space)
        normalizers = [
            [ObservationNormalizer(each.width)] if each.space is None else [] for each in inputs
        ]
        (self._module,) = side_by_side([each.width for each in inputs], normalizers)
        self._normalizers = normalizers_of(self._module)
        self._moments = RunningMoments(inputs[-1].stop)

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        """Everything with state, by name."""
        return {"normalizer": self._module, "observations": self._moments}

    def follow(self, observations: np.ndarray | SideBySide) -> None:
        """Add the observations of an iteration, [N, D], to the statistics."""
        self._moments.update(observations, outliers=False)
        self._moments.set_in(self._normalizers)

    def normalize_samples(self, samples: Samples) -> Samples:
        """The samples with normalised observations."""
        normalized = {name: samples[name].copy() for name in samples.keys() & _OBSERVATIONS}
        for numbers, normalizer in self._normalizers:
            layer = NormalizeLayer(**normalizer.views())
            for array in normalized.values():
                array[..., numbers] = layer.normalize(array[..., numbers])
        return samples | normalized

    def add_layer(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """The policy with the normalisation as its first layer."""
        return replace(snapshot, layers=(*layers_of(self._module), *snapshot.layers))
