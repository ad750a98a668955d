"""Around an update of reinforce, a2c and ppo (impala uses parts): networks, snapshots, KL limit."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import nn

from flame_rl.learner.learner import Algorithm, load_part, state_of
from flame_rl.learner.on_policy.actor_critic import (
    ActorCritic,
    Computed,
    OneNetwork,
    Statistics,
)
from flame_rl.learner.on_policy.batch import Batch, make_batch
from flame_rl.learner.on_policy.losses import kl_terms
from flame_rl.learner.on_policy.own_losses import add_auxiliary, every_output, own_policy_loss
from flame_rl.learner.own_model import model_of
from flame_rl.learner.state import Stateful, learning_rate_factor
from flame_rl.learner.training.autograd import name_of
from flame_rl.learner.training.choose import in_training, network_of
from flame_rl.learner.training.network import Network, Samples
from flame_rl.learner.training.slices import outputs
from flame_rl.learner.training.trained import TrainedNetwork, flat_parameters
from flame_rl.modules.networks import SharedNetwork
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec, Episodes, PolicySnapshot

# Metrics of every algorithm here, of those that train values, and of the KL limit.
_POLICY = ("loss", "gradient_norm", "policy_entropy")
_VALUES = ("value_loss", "explained_variance")
_LIMIT = ("policy_steps", "kl", "update_scale")

# An update whose divergence is too large after this number of halvings is undone.
_HALVINGS = 40
# A logarithm, so that sums of ratios are finite.
_LARGEST_RATIO = 600

# One algorithm's update: networks, a batch after their `prepare`, the run's settings, the factor
# of learning rates, a generator of random numbers -> metrics by name, perhaps with the "trust" in
# its advantages (returns.py). `ActorCritic` says in which order its methods are called.
Update = Callable[[ActorCritic, Batch, TrainConfig, float, np.random.Generator], dict[str, float]]


class OnPolicyAlgorithm(Algorithm):
    """An on-policy algorithm. `collector`: with --overlap, the policy of one update ago, which
    collects the next iteration; else None."""

    def __init__(self, config: TrainConfig, spec: EnvironmentSpec, update: Update) -> None:
        """Make new networks. Raises UsageError as own_losses.py does."""
        self.config, self._update, self.collector = config, update, None
        custom_loss = own_policy_loss(config.algorithm)
        self.networks = make_actor_critic(config, spec)
        self.networks.given_loss = custom_loss
        if config.algorithm.overlap:
            module = copy.deepcopy(self.networks.policy.module)
            flat_parameters(module)  # compiled code needs them in one array
            acts = module.policy if isinstance(module, SharedNetwork) else module
            self.collector = Computed(module, network_of(acts))

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        collector = {} if self.collector is None else {"collector": self.collector.module}
        return self.networks.parts | collector

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

    def update(
        self, episodes: Episodes, generator: np.random.Generator, progress: float
    ) -> dict[str, float]:
        """Train the networks on all episodes; see `Algorithm.update`."""
        decay = learning_rate_factor(self.config.algorithm.learning_rate_decay, progress)
        try:
            metrics = self.improve(episodes, generator, decay)
        finally:
            # Whoever undoes an update that raised must not do it while the values still learn.
            values = self.networks.finish()
        return metrics | values

    def improve(
        self, episodes: Episodes, generator: np.random.Generator, decay: float
    ) -> dict[str, float]:
        """Learn from the iteration's episodes; `decay` is the factor of learning rates. Subclasses
        override this, and not `update`, which waits for the values."""
        networks = self.networks
        batch = make_batch(episodes, networks.remembers, networks.frames)
        samples = policy_samples(batch)
        # Before the statistics of observations change the normalisation.
        batch = replace(batch, log_probs=log_probs_of(networks.policy.network, samples))
        before = copy_state(networks.policy.module)
        if self.collector is not None:
            log_ratio = batch.log_probs - log_probs_of(self.collector.network, samples)
            ratios = np.exp(np.minimum(log_ratio, _LARGEST_RATIO), dtype=np.float64)
            batch = replace(batch, ratios=ratios)
            load_part(self.collector.module, before)
        networks.statistics.add_observations(batch.observations)
        batch = networks.prepare(batch)
        metrics = self._update(networks, batch, self.config, decay, generator)
        if networks.given_loss is not None and not networks.asked:
            raise UsageError(
                f"--policy-loss: {name_of(self._update)} has no use for it; use "
                "`networks.take_custom_loss()` there, as a2c.py does, or leave the flag out"
            )
        # With the square, as a divergence follows a gradient, solved tasks were lost where values
        # share layers; without a least limit, wrong values of such a network could not improve.
        limit = max(0.1, float(metrics.pop("trust", 1.0))) ** 4
        max_kl = limit * self.config.algorithm.max_kl
        return metrics | shrink_until_close(networks.policy, before, batch, samples, max_kl)


def make_actor_critic(config: TrainConfig, spec: EnvironmentSpec) -> ActorCritic:
    """A policy and a value network, or with --shared-torso one network that is both."""
    settings, model = config.algorithm, model_of(config)
    if settings.shared_torso:
        module = model.shared(spec, config)
        add_auxiliary(module, settings.auxiliary, spec)
        trained = in_training(module, every_output)
        policy = Computed(module, network_of(module.policy))
        values = Computed(module, network_of(module, SharedNetwork.values))
        statistics = Statistics(module, [module], spec.observation_dim)
        return OneNetwork(trained, policy, values, statistics, settings)
    modules = model.policy(spec, config), model.value(spec, config)
    policy, value = map(in_training, modules)
    statistics = Statistics(value.module, modules, spec.observation_dim)
    return ActorCritic(policy, value, policy.adam, statistics, settings)


def shrink_until_close(
    policy: TrainedNetwork | Computed,
    before: dict[str, np.ndarray],
    batch: Batch,
    samples: Samples,
    max_kl: float,
) -> dict[str, float]:
    """A backtracking line search, as in TRPO (Schulman et al. 2015, appendix C): shorten the update
    of the policy, its normalisation and values in the same module included, until its KL divergence
    from the policy `before` it is at most `max_kl` nats; if it never is, undo the update. Returns
    "kl", and "update_scale": 1 for the whole update, 0 if it was undone.

    To end the epochs where a minibatch exceeds the limit is not enough: a minibatch estimates the
    divergence from its own steps, before its own gradient step. `batch` and `samples`, see
    `policy_samples`, are all steps that were collected.
    """
    after = copy_state(policy.module)
    for halvings in range(_HALVINGS + 1):
        # The divergence grows with the square of the update.
        scale = 0.5 ** (halvings / 2)
        if halvings:
            between = {name: interpolate(before[name], after[name], scale) for name in after}
            load_part(policy.module, between)
        log_ratio = log_probs_of(policy.network, samples) - batch.log_probs
        kl = float(kl_terms(log_ratio, batch.self_normalized_ratios).mean())
        if kl <= max_kl:
            return {"kl": kl, "update_scale": scale}
    if not math.isfinite(kl):  # not undone in silence: the learner must refuse the update
        return {"kl": kl, "update_scale": scale}
    load_part(policy.module, before)
    return {"kl": 0.0, "update_scale": 0.0}


def policy_samples(batch: Batch) -> Samples:
    """Samples for a policy: "inputs", [N, ...], not yet prepared, and `Batch.for_policy`."""
    # `take` is several times as fast as indexing.
    return {"inputs": batch.network_inputs.take(batch.rows, axis=0), **batch.for_policy}


def log_probs_of(policy: Network, samples: Samples) -> np.ndarray:
    """Log-probabilities of the actions of `policy_samples` under any policy, float32 [N]."""
    result, _ = outputs(policy, samples | {"inputs": policy.prepare(samples["inputs"])})
    return result


def copy_state(module: nn.Module) -> dict[str, np.ndarray]:
    """Copies of the module's parameters and buffers, by name."""
    return {name: array.copy() for name, array in state_of(module).items()}


def interpolate(before: np.ndarray, after: np.ndarray, share: float) -> np.ndarray:
    """before + share (after - before), as exact as torch.lerp: from the nearer end, and with one
    rounding after the difference, whose product with a float32 float64 holds exactly."""
    share = np.float32(share)
    near, factor = (before, share) if share < 0.5 else (after, share - np.float32(1))
    return np.asarray(np.float64(factor) * (after - before) + near, before.dtype)
