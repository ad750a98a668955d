"""What reinforce, a2c and ppo share around an update: networks, batch, snapshots and KL limit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from torch import nn

import model
from flame_rl.learner.on_policy.actor_critic import (
    ActorCritic,
    Computed,
    OneNetwork,
    Statistics,
    TwoNetworks,
)
from flame_rl.learner.on_policy.auxiliary import add_auxiliary, every_output
from flame_rl.learner.on_policy.batch import Batch, make_batch
from flame_rl.learner.on_policy.kl_limit import (
    copy_state,
    log_probs_of,
    policy_samples,
    shrink_until_close,
)
from flame_rl.learner.state import Stateful, learning_rate_factor
from flame_rl.learner.training.choose import in_training, network_of
from flame_rl.learner.training.flat import state_of
from flame_rl.learner.training.trained import Train
from flame_rl.modules.networks import SharedNetwork, rescale
from flame_rl.modules.observations import normalizers_of
from flame_rl.settings.algorithms import OnPolicy
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import EnvironmentSpec, Episodes, PolicySnapshot

# Metrics of every algorithm here.
_POLICY = ("loss", "gradient_norm", "policy_entropy")
# Metrics of those that train a value network.
_VALUES = ("value_loss", "explained_variance")
# Metrics of the KL limit; see `policy_metrics` and `shrink_until_close`.
_LIMIT = ("policy_steps", "kl", "update_scale")

# An algorithm: one update of the networks from a prepared batch. The other arguments are the
# configuration, the factor of the learning rates, and a generator seeded by the run's seed and the
# number of updates. Returns metrics by name.
Update = Callable[[ActorCritic, Batch, TrainConfig, float, np.random.Generator], dict[str, float]]


@dataclass(frozen=True)
class OnPolicyAlgorithm:
    """An on-policy algorithm, as `flame_rl.learner.learner.Algorithm` describes it.

    Attributes:
        networks: policy and values.
        config: the run's settings.
        algorithm: see `Update`.
        collector: with --overlap, the policy of one update ago, which collects the next iteration;
            else None.
    """

    networks: ActorCritic
    config: TrainConfig
    algorithm: Update
    collector: Computed | None

    files = None
    notice = ""

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        parts = self.networks.parts
        return parts if self.collector is None else parts | {"collector": self.collector.module}

    @property
    def metrics(self) -> tuple[str, ...]:
        own = _POLICY + _VALUES if self.config.algorithm.trains_values else _POLICY
        return (*dict.fromkeys((*own, *self.networks.metrics)), *_LIMIT)

    @property
    def lag(self) -> int:
        return 0 if self.collector is None else 1

    def snapshot(self) -> PolicySnapshot:
        return self.networks.policy.module.snapshot()

    def collector_snapshot(self) -> PolicySnapshot:
        return self.snapshot() if self.collector is None else self.collector.module.snapshot()

    def close(self) -> None:
        """Nothing is open."""

    def update(
        self, episodes: Episodes, generator: np.random.Generator, progress: float
    ) -> dict[str, float]:
        """Train the networks on all episodes; see `Algorithm.update`."""
        settings, networks = self.config.algorithm, self.networks
        batch = make_batch(episodes, networks.remembers, networks.frames)
        samples = policy_samples(batch)
        # Before the statistics of observations change the normalisation.
        batch = replace(batch, log_probs=log_probs_of(networks.policy.network, samples))
        before = copy_state(networks.policy.module)
        if self.collector is not None:
            log_ratio = batch.log_probs - log_probs_of(self.collector.network, samples)
            weights = np.exp(np.minimum(log_ratio, 0), dtype=np.float64)
            batch = replace(batch, weights=weights)
            state_of(self.collector.module).load_state_dict(before)
        networks.statistics.add_observations(batch.observations)
        batch = networks.prepare(batch)
        decay = learning_rate_factor(settings.learning_rate_decay, progress)
        try:
            metrics = self.algorithm(networks, batch, self.config, decay, generator)
            limit = shrink_until_close(networks.policy, before, batch, samples, settings.max_kl)
        finally:
            # Whoever undoes an update that raised must not do it while the values still learn.
            values = networks.finish()
        return metrics | values | limit


def on_policy(config: TrainConfig, spec: EnvironmentSpec, algorithm: Update) -> OnPolicyAlgorithm:
    """An algorithm with new networks. Raises UsageError as `add_auxiliary` does."""
    networks = make_actor_critic(config, spec, in_training)
    collector = None
    if config.overlap:
        module = copy.deepcopy(networks.policy.module)
        acts = module.policy if isinstance(module, SharedNetwork) else module
        collector = Computed(module, network_of(acts))
    return OnPolicyAlgorithm(networks, config, algorithm, collector)


def make_actor_critic(config: TrainConfig, spec: EnvironmentSpec, train: Train) -> ActorCritic:
    """A policy and a value network, or with --shared-torso one network that is both."""
    settings = config.algorithm
    if isinstance(settings, OnPolicy) and settings.shared_torso:
        module = model.shared(spec, config)
        add_auxiliary(module, settings.auxiliary, spec)
        network = in_training(module, every_output)
        policy = Computed(module, network_of(module.policy))
        values = Computed(module, network_of(module, SharedNetwork.values))
        statistics = Statistics(
            normalizers_of(module), spec.observation_dim, partial(rescale, module)
        )
        return OneNetwork(network, policy, values, statistics, settings)
    modules = model.policy(spec, config), model.value(spec, config)
    policy, value = map(train, modules)
    scale = partial(rescale, value.module)
    statistics = Statistics(normalizers_of(*modules), spec.observation_dim, scale)
    return TwoNetworks(policy, value, statistics, settings)
