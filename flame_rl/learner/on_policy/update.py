"""What reinforce, a2c and ppo share: policy and value network, the frame of an update, metrics and
the KL limit.

Their updates learn from episodes of the latest policy alone, in one or a few epochs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.learner.learner import Part, learning_rate_factor
from flame_rl.learner.on_policy.batch import Batch, make_batch
from flame_rl.learner.on_policy.returns import normalize, time_steps
from flame_rl.learner.on_policy.value_process import ValueProcess
from flame_rl.learner.training.choose import policy_network, shared_network, value_network
from flame_rl.learner.training.losses import metrics_of
from flame_rl.learner.training.normalize import RunningMoments
from flame_rl.learner.training.slices import at_once, outputs
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.nets.by_hand import NetworkByHand
from flame_rl.nets.network import Loss, Network, Samples, Slope
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.losses import OWN, loss_name
from flame_rl.wire.messages import Episodes, PolicySnapshot

# An update whose divergence is too large after this number of halvings is undone.
_HALVINGS = 40
# Metrics of the KL limit; see `policy_metrics` and `shrink_until_close`.
GUARDED = ("policy_steps", "kl", "update_scale")


@dataclass(frozen=True)
class Computed:
    """A network, and how it is computed."""

    module: nn.Module
    network: Network


class ActorCritic:
    """A policy and a value network in training.

    Attributes:
        policy, value: the two networks; where one module is both, two ways to compute it.
        shared: that module in training, with the outputs of `shared_network`; else None.
        remembers: whether one of them does, so that batches are of whole episodes.
        frames: how many observations are one input.
        value_process: trains the value network beside the policy; None where one of them remembers,
            the value network is not one by hand, or one module is both.
        returns: mean and variance of all returns so far, which the value network's scale follows.
        observations: those of all observations so far; None where the policy does not normalise by
            them.
    """

    def __init__(self, policy: nn.Module, value: nn.Module | None = None) -> None:
        """`policy` and `value` are as in model.py; without `value`, `policy` is a `SharedNetwork`
        of it."""
        self.policy: TrainedNetwork | Computed
        self.value: TrainedNetwork | Computed
        if value is None:
            self.shared = TrainedNetwork(policy, shared_network)
            self.policy = Computed(policy, policy_network(policy.policy))
            self.value = Computed(policy, value_network(policy))
        else:
            self.shared = None
            self.policy = TrainedNetwork(policy, policy_network)
            self.value = TrainedNetwork(value, value_network)
        self.remembers = self.policy.network.remembers or self.value.network.remembers
        self.frames = self.policy.network.frames
        by_hand = isinstance(self.value.network, NetworkByHand) and not self.remembers
        self.value_process = ValueProcess(self.value.network) if by_hand else None
        self.returns = RunningMoments(1)
        self.observations = None
        normalizer = getattr(policy, "normalizer", None)
        if hasattr(normalizer, "set"):
            self.observations = RunningMoments(normalizer.observation_dim)

    @property
    def parts(self) -> dict[str, Part]:
        """See `Algorithm.parts`."""
        parts: dict[str, Part]
        if self.shared is None:
            parts = {
                "policy": self.policy.module,
                "value": self.value.module,
                "policy_adam": self.policy.adam,
                "value_adam": self.value.adam,
            }
        else:
            parts = {"shared": self.shared.module, "shared_adam": self.shared.adam}
        parts["returns"] = self.returns
        return parts if self.observations is None else parts | {"observations": self.observations}

    def prepared(self, batch: Batch) -> Batch:
        """The batch with the inputs of both networks, which are one array where they are equal."""
        inputs = batch.network_inputs
        networks = (self.shared or self.policy).network, self.value.network
        of_policy, of_value = at_once([partial(each.prepare, inputs) for each in networks])
        if batch.frames == 1 and np.array_equal(of_policy, of_value):
            of_value = of_policy
        return replace(batch, policy_inputs=of_policy, value_inputs=of_value)

    def values(self, batch: Batch) -> np.ndarray:
        """Values of all observations of a prepared batch, float64 [N + E]."""
        samples = {"inputs": batch.value_inputs}
        if batch.time is not None:
            samples["time"] = time_steps(batch.lengths + 1)
        (values,) = outputs(self.value.network, samples)
        return values.astype(np.float64)

    def follow_observations(self, observations: np.ndarray) -> None:
        """Set the networks' normalisation, if there is one, by all observations so far.

        Args:
            observations: those of this batch, float32 [N + E, D].
        """
        if self.observations is None:
            return
        self.observations.update(observations)
        for network in (self.policy, self.value):
            network.module.normalizer.set(self.observations.mean, self.observations.std)

    def follow_returns(self, returns: np.ndarray) -> None:
        """Set the value network's scale to the root mean square of all returns so far.

        Args:
            returns: those of this batch, float64 [N].
        """
        self.returns.update(returns[:, None])
        (mean,), (std,) = self.returns.mean, self.returns.std
        self.value.module.scale.fill_(float(np.hypot(mean, std)))


# Metrics of the policy by name, and a function that must be called once: it waits for the value
# network, and returns its metrics.
Improved = tuple[dict[str, float], Callable[[], dict[str, float]]]
# One update of the networks from a batch. The other arguments are the configuration, a generator
# seeded by the run's seed and the number of updates, and the decay, a factor of the learning rates.
Improve = Callable[[ActorCritic, Batch, TrainConfig, np.random.Generator, float], Improved]


@dataclass(frozen=True)
class OnPolicy:
    """An on-policy algorithm for `flame_rl.learner.learner.Learner`.

    Attributes:
        networks: policy and value network.
        config: its `algorithm` has max_kl and learning_rate_decay.
        improve: the algorithm's own part of an update.
        metrics: names of the metrics that `improve` returns, and `GUARDED`.
        collector: with `overlap`, the policy of one update ago, which collects the next iteration;
            else None.
    """

    networks: ActorCritic
    config: TrainConfig
    improve: Improve
    metrics: tuple[str, ...]
    collector: Computed | None

    files = None
    notice = ""

    @property
    def parts(self) -> dict[str, Part]:
        """See `Algorithm.parts`."""
        parts = self.networks.parts
        return parts if self.collector is None else parts | {"collector": self.collector.module}

    @property
    def lag(self) -> int:
        """See `Algorithm.lag`."""
        return 0 if self.collector is None else 1

    def snapshot(self) -> PolicySnapshot:
        """The policy for the actors."""
        return self.networks.policy.module.snapshot()

    def collecting(self) -> PolicySnapshot:
        """See `Algorithm.collecting`."""
        return self.snapshot() if self.collector is None else self.collector.module.snapshot()

    def update(
        self, episodes: Episodes, generator: np.random.Generator, progress: float
    ) -> dict[str, float]:
        """Improve the networks with all episodes; see `Algorithm.update`."""
        settings, networks = self.config.algorithm, self.networks
        decay = learning_rate_factor(settings.learning_rate_decay, progress)
        batch = make_batch(episodes, networks.remembers, networks.frames)
        # With the normalisation of before, as the policy acted.
        batch = replace(batch, log_probs=log_probs(networks.policy.network, policy_samples(batch)))
        before = copies(networks.policy.module)
        if self.collector is not None:
            log_ratio = batch.log_probs - log_probs(self.collector.network, policy_samples(batch))
            weights = np.exp(np.minimum(log_ratio, 0), dtype=np.float64)
            batch = replace(batch, weights=weights)
            self.collector.module.load_state_dict(before)
        networks.follow_observations(batch.observations)
        batch = networks.prepared(batch)
        metrics, wait_for_values = self.improve(networks, batch, self.config, generator, decay)
        # The value network may still train on another core.
        metrics |= shrink_until_close(networks.policy, before, batch, settings.max_kl)
        return metrics | wait_for_values()


def on_policy(
    networks: tuple[nn.Module, nn.Module] | tuple[nn.Module],
    config: TrainConfig,
    improve: Improve,
    metrics: tuple[str, ...],
) -> OnPolicy:
    """An algorithm over a policy and a value network as in model.py, or one network that is both.

    Args:
        networks: see `model.make_networks`.
        config, improve: see `OnPolicy`.
        metrics: names of the metrics that `improve` returns where there are two networks.
    """
    one = len(networks) == 1
    collector = None
    if config.overlap:
        module = copy.deepcopy(networks[0])
        collector = Computed(module, policy_network(module.policy if one else module))
    both = ActorCritic(*networks)
    if one:
        more = metrics_of((*OWN, *map(loss_name, config.algorithm.auxiliary)))
        metrics += tuple(name for name in more if name not in metrics)
    return OnPolicy(both, config, improve, (*metrics, *GUARDED), collector)


def policy_samples(batch: Batch) -> Samples:
    """The steps as samples for a policy: "inputs", [N, ...], not yet prepared for a network, and
    "actions"; with "time" where a network remembers."""
    # Several times as quick as indexing.
    inputs = batch.network_inputs.take(batch.rows, axis=0)
    samples = {"inputs": inputs, "actions": batch.actions}
    return samples if batch.time is None else samples | {"time": batch.time}


def log_probs(policy: Network, samples: Samples) -> np.ndarray:
    """Log-probabilities of the actions of `policy_samples` under any policy, float32 [N]."""
    result, _ = outputs(policy, samples, prepared=False)
    return result


def policy_gradient_loss(c: float) -> Loss:
    """Minus log pi(a_t | s_t) * A_t, the policy gradient theorem's objective (Sutton and Barto
    2018, eq. 13.11), minus c times the entropy. Samples have "advantages" and "log_probs"."""

    def loss(
        samples: Samples, log_probs: np.ndarray, entropies: np.ndarray
    ) -> tuple[dict[str, np.ndarray], tuple[Slope, ...]]:
        advantages = samples["advantages"]
        numbers = {
            "loss": -log_probs * advantages - c * entropies,
            "entropy": entropies,
            "kl": kl_terms(log_probs - samples["log_probs"]),
        }
        return numbers, (-advantages, -c)

    return loss


def normalized(advantages: np.ndarray) -> np.ndarray:
    """Advantages with mean 0 and standard deviation 1 over the batch, float32 [N]."""
    return normalize(advantages).astype(np.float32)


def policy_metrics(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Losses and gradient norms, means over the policy's minibatches; entropy of the last one;
    number of gradient steps that were taken: fewer than the minibatches if max_kl ended an
    epoch."""
    means = [name for name in steps[0] if name.endswith(("loss", "gradient_norm"))]
    return {
        **{name: float(np.mean([step[name] for step in steps])) for name in means},
        "policy_entropy": steps[-1]["entropy"],
        "policy_steps": sum(step["taken"] for step in steps),
    }


def explained_variance(predicted: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """The share of the targets' variance that `predicted` explains.

    Args:
        predicted: values before the update, float64 [N].
        targets: float64 [N].
    """
    variance = targets.var()
    explained = 1 - (targets - predicted).var() / variance if variance > 0 else 0.0
    return {"explained_variance": float(explained)}


def kl_terms(log_ratio: np.ndarray) -> np.ndarray:
    """Per step, an estimate of KL(old || new) whose mean is unbiased and never negative:
    r - 1 - log r, with r the probability now over the old one (Schulman 2020, "Approximating KL
    Divergence", k3)."""
    return np.expm1(log_ratio) - log_ratio


def copies(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the module's parameters and buffers, by name."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def shrink_until_close(
    policy: TrainedNetwork | Computed, before: dict[str, Tensor], batch: Batch, max_kl: float
) -> dict[str, float]:
    """Shorten the update of the policy, its normalisation included, until its KL divergence from
    the policy before it is at most `max_kl`; if it never is, undo the update.

    The limit in epochs.py is not enough: each minibatch estimates the divergence from its own
    steps, and before its own update.

    Args:
        policy: after the update; where its module is a value network, too, all of it is shortened.
        before: its tensors before the update; see `copies`.
        batch: all steps that were collected.
        max_kl: in nats.

    Returns:
        "kl", and "update_scale": 1 for the whole update, 0 if it was undone.
    """
    samples = policy_samples(batch)
    after = copies(policy.module)
    for halvings in range(_HALVINGS + 1):
        # The divergence grows with the square of the update.
        scale = 0.5 ** (halvings / 2)
        if halvings:
            policy.module.load_state_dict(
                {n: torch.lerp(before[n], after[n], scale) for n in after}
            )
        kl = float(kl_terms(log_probs(policy.network, samples) - batch.log_probs).mean())
        if kl <= max_kl:
            return {"kl": kl, "update_scale": scale}
    if not math.isfinite(kl):  # not undone in silence: the learner must refuse the update
        return {"kl": kl, "update_scale": scale}
    policy.module.load_state_dict(before)
    return {"kl": 0.0, "update_scale": 0.0}
