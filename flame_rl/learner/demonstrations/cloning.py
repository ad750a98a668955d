"""An on-policy algorithm that begins with demonstrations."""

import numpy as np
from torch import nn

from flame_rl.learner.algorithms.bc import bc
from flame_rl.learner.demonstrations.files import Demonstrations
from flame_rl.learner.on_policy.batch import make_batch
from flame_rl.learner.on_policy.update import OnPolicyAlgorithm, Update
from flame_rl.learner.state import Counter, Stateful
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec, Episodes


class ClonedFirst(OnPolicyAlgorithm):
    """An algorithm whose first update clones the demonstrations, and fits the values to their
    returns: the first iteration's episodes, of a policy that has learned nothing yet, are not
    learned from. The part `cloned` counts 1 after that; all other updates are the algorithm's."""

    def __init__(
        self,
        config: TrainConfig,
        spec: EnvironmentSpec,
        update: Update,
        demonstrations: Demonstrations,
    ) -> None:
        """Make new networks. Raises UsageError as `OnPolicyAlgorithm`, and with `overlap`."""
        if config.algorithm.overlap:
            raise UsageError(
                "--overlap: the second iteration would be played by the policy from before the "
                "demonstrations were cloned; leave the flag out"
            )
        super().__init__(config, spec, update)
        self.demonstrations, self.cloned = demonstrations, Counter()

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        return super().parts | {"cloned": self.cloned}

    def improve(
        self, episodes: Episodes, generator: np.random.Generator, decay: float
    ) -> dict[str, float]:
        """Learn from the demonstrations, the first time."""
        if self.cloned.count:
            return super().improve(episodes, generator, decay)
        networks, settings = self.networks, self.config.algorithm
        batch = make_batch(self.demonstrations.episodes, networks.remembers, networks.frames)
        networks.statistics.add_observations(batch.observations)
        batch = networks.prepare(batch)
        if settings.trains_values:
            returns = batch.estimated_returns(self.config.experiment.gamma)
            networks.statistics.add_returns_and_rescale(returns)
            rate = settings.value_learning_rate * decay
            networks.fit_values(batch, returns, settings.clone_epochs, rate, generator)
        self.cloned.count = 1
        return bc(networks, batch, self.config, decay, generator)
