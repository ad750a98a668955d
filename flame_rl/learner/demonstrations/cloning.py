"""Behaviour cloning in a run: alone, where every update learns from the demonstrations, and first,
where another algorithm goes on from there."""

from dataclasses import dataclass, field

import numpy as np
from gymnasium import spaces
from numpy.random import Generator
from torch import nn

from flame_rl.learner.algorithms.bc import bc
from flame_rl.learner.demonstrations.files import Demonstrations
from flame_rl.learner.learner import Algorithm
from flame_rl.learner.on_policy.actor_critic import PolicyTraining
from flame_rl.learner.on_policy.batch import make_batch
from flame_rl.learner.on_policy.update import OnPolicyAlgorithm, Update, on_policy
from flame_rl.learner.own_model import model_of
from flame_rl.learner.state import Counter, Metrics, Stateful, learning_rate_factor
from flame_rl.learner.training.choose import in_training
from flame_rl.learner.training.normalize import RunningMoments
from flame_rl.modules.networks import PolicyNetwork
from flame_rl.modules.observations import normalizers_of
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec, Episodes, PolicySnapshot


@dataclass(frozen=True)
class Imitation(Algorithm):
    """Behaviour cloning alone: the iteration's episodes only say how good the policy was before."""

    config: TrainConfig
    training: PolicyTraining
    demonstrations: Demonstrations

    metrics = ("loss", "gradient_norm", "policy_steps")

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        return self.training.parts

    def snapshot(self) -> PolicySnapshot:
        return self.training.policy.module.snapshot()

    def update(self, episodes: Episodes, generator: Generator, progress: float) -> Metrics:
        """Learn from the demonstrations; see `Algorithm.update`."""
        training = self.training
        batch = make_batch(self.demonstrations.episodes, training.remembers, training.frames)
        # Where observations are normalised, by the statistics of the demonstrations.
        if normalizers := normalizers_of(self.training.policy.module):
            moments = RunningMoments(np.asarray(batch.observations[:1]).shape[1])
            moments.update(batch.observations, outliers=False)
            moments.set_in(normalizers)
        batch = self.training.prepare(batch)
        decay = learning_rate_factor(self.config.algorithm.learning_rate_decay, progress)
        return bc(self.training, batch, self.config, decay, generator)


def imitation(
    config: TrainConfig, spec: EnvironmentSpec, demonstrations: Demonstrations | None
) -> Imitation:
    """Cloning with a new policy. Raises UsageError without demonstrations, or where actions
    have no policy of the kind that is asked for."""
    if demonstrations is None:
        raise UsageError(
            f"--demonstrations: {config.algorithm_name} learns from nothing else; name an .npz "
            "file (main.py evaluate RUN --record FILE.npz), a run with replay, or a Minari dataset"
        )
    trained = in_training(make_policy(config, spec))
    return Imitation(config, PolicyTraining(trained, trained.adam), demonstrations)


def make_policy(config: TrainConfig, spec: EnvironmentSpec) -> PolicyNetwork:
    """A new policy of the kind that --policy names; for choices there is only one."""
    settings = config.algorithm
    model = model_of(config)
    kinds = {"squashed": model.squashed_policy, "deterministic": model.deterministic_policy}
    if settings.policy not in kinds:
        return model.policy(spec, config)
    if not isinstance(spec.action_space, spaces.Box):
        raise UsageError(
            f"--policy: {settings.policy} is for real-valued actions, a Box, and {spec.env_id} has "
            f"{spec.action_space}; leave the flag out"
        )
    policy = kinds[settings.policy](spec, config)
    # Those of sac, ddpg and td3 are normalised elsewhere.
    _, policy.normalizer = model.preprocessing(spec, config, settings.normalize_observations)
    return policy


@dataclass(frozen=True)
class ClonedFirst(OnPolicyAlgorithm):
    """An algorithm whose first update clones the demonstrations, and fits the values to their
    returns. The first iteration's episodes, of a policy that has learned nothing yet, are not
    learned from. `cloned` is 1 after the first update; all others are the algorithm's own."""

    demonstrations: Demonstrations
    cloned: Counter = field(default_factory=Counter)

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        return super().parts | {"cloned": self.cloned}

    def update(self, episodes: Episodes, generator: Generator, progress: float) -> Metrics:
        """See `Algorithm.update`."""
        if self.cloned.count:
            return super().update(episodes, generator, progress)
        config, networks = self.config, self.networks
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
        finally:  # see `OnPolicyAlgorithm.update`
            values = networks.finish()
        self.cloned.count = 1
        return metrics | values


def cloned_first(
    config: TrainConfig, spec: EnvironmentSpec, update: Update, demonstrations: Demonstrations
) -> ClonedFirst:
    """An algorithm with new networks, which clones the demonstrations first. Raises UsageError as
    `on_policy` does, and where policies are a step behind."""
    if config.algorithm.overlap:
        raise UsageError(
            "--overlap: the second iteration would be played by the policy from before the "
            "demonstrations were cloned; leave the flag out"
        )
    plain = on_policy(config, spec, update)
    return ClonedFirst(**vars(plain), demonstrations=demonstrations)
