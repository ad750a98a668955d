"""An on-policy algorithm that clones demonstrations first."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import nn

from flame_rl.learner.algorithms.bc import bc
from flame_rl.learner.demonstrations.demonstrations import Demonstrations
from flame_rl.learner.on_policy.batch import make_batch
from flame_rl.learner.on_policy.update import OnPolicyAlgorithm, Update, on_policy
from flame_rl.learner.state import Counter, Stateful, learning_rate_factor
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec, Episodes, PolicySnapshot


@dataclass(frozen=True)
class ClonedFirst:
    """Another algorithm, whose first update clones the demonstrations, and fits the values to their
    returns; see `flame_rl.learner.learner.Algorithm`. The first iteration's episodes, of a policy
    that has learned nothing yet, are not learned from.

    Attributes:
        inner: does all other updates.
        demonstrations: what is cloned.
        cloned: 1 after the first update.
    """

    inner: OnPolicyAlgorithm
    demonstrations: Demonstrations
    cloned: Counter = field(default_factory=Counter)

    files = None
    notice = ""
    lag = 0

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        return self.inner.parts | {"cloned": self.cloned}

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.inner.metrics

    def snapshot(self) -> PolicySnapshot:
        return self.inner.snapshot()

    def collector_snapshot(self) -> PolicySnapshot:
        return self.inner.collector_snapshot()

    def close(self) -> None:
        """Nothing is open."""

    def update(
        self, episodes: Episodes, generator: np.random.Generator, progress: float
    ) -> dict[str, float]:
        """See `Algorithm.update`."""
        if self.cloned.count:
            return self.inner.update(episodes, generator, progress)
        numbers = self._clone(generator, progress)
        self.cloned.count = 1
        return numbers

    def _clone(self, generator: np.random.Generator, progress: float) -> dict[str, float]:
        config, networks = self.inner.config, self.inner.networks
        settings = config.algorithm
        batch = make_batch(self.demonstrations.episodes, networks.remembers, networks.frames)
        networks.statistics.add_observations(batch.observations)
        batch = networks.prepare(batch)
        returns = batch.estimated_returns(config.experiment.gamma)
        decay = learning_rate_factor(settings.learning_rate_decay, progress)
        if settings.trains_values:
            networks.statistics.add_returns(returns)
            rate = settings.value_learning_rate * decay
            networks.fit_values(batch, returns, settings.clone_epochs, rate, generator)
        try:
            metrics = bc(networks, batch, config, decay, generator)
        finally:
            # As in `OnPolicyAlgorithm.update`.
            values = networks.finish()
        return metrics | values


def cloned_first(
    config: TrainConfig,
    spec: EnvironmentSpec,
    algorithm: Update,
    demonstrations: Demonstrations | None,
) -> OnPolicyAlgorithm | ClonedFirst:
    """An algorithm with new networks, which clones the demonstrations first, if there are any.
    Raises UsageError as `on_policy` does, and where policies are a step behind."""
    inner = on_policy(config, spec, algorithm)
    if demonstrations is None:
        return inner
    if config.overlap:
        raise UsageError(
            "--overlap: the second iteration would be played by the policy from before the "
            "demonstrations were cloned; leave the flag out"
        )
    return ClonedFirst(inner, demonstrations)
