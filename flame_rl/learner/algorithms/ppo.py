"""Proximal policy optimisation (Schulman et al. 2017, "Proximal Policy Optimization Algorithms"),
with generalised advantages.

    maximise  mean_t [ min(r_t A_t, clip(r_t, 1 - epsilon, 1 + epsilon) A_t) ]  +  entropy bonus

where r_t is the ratio of the action's probability now to that when it was taken. Several epochs
over each batch; the advantages may be recomputed before each of them (Andrychowicz et al. 2021,
"What Matters in On-Policy Reinforcement Learning?", section 3.5).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import model
from flame_rl.learner.batch import Batch
from flame_rl.learner.on_policy import (
    ActorCritic,
    OnPolicy,
    kl_terms,
    minibatches,
    normalized,
    on_policy,
    policy_epoch,
    policy_metrics,
    value_epoch,
    value_loss,
    value_metrics,
)
from flame_rl.learner.returns import generalized_advantages
from flame_rl.learner.trained import Loss, Mean
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.ppo import PPO
from flame_rl.wire.messages import EnvironmentSpec


def ppo(config: TrainConfig, spec: EnvironmentSpec) -> OnPolicy:
    """The algorithm with new networks."""
    metrics = ("loss", "gradient_norm", "policy_entropy", "value_loss", "explained_variance")
    return on_policy(model.make_networks(spec, config), config, improve, metrics)


def improve(
    networks: ActorCritic,
    batch: Batch,
    config: TrainConfig,
    generator: np.random.Generator,
    decay: float,
) -> dict[str, float]:
    """One update. Arguments and result: see `flame_rl.learner.on_policy.Improve`."""
    settings: PPO = config.algorithm
    steps: list[dict[str, float]] = []
    too_far = False
    for epoch in range(settings.epochs):
        if epoch == 0 or settings.recompute_advantages:
            values = networks.values(batch)
            advantages = generalized_advantages(
                batch.rewards,
                values,
                batch.lengths,
                batch.terminated,
                config.experiment.gamma,
                settings.gae_lambda,
            )
            targets = advantages + values[batch.rows.numpy()]
        if epoch == 0:
            predicted, wanted = targets - advantages, targets
            networks.follow_returns(targets)

        if not too_far:
            loss = clipped_loss(networks.policy.module, batch, advantages, settings)
            batches = minibatches(batch.steps, settings.minibatches, generator)
            more, too_far = policy_epoch(networks.policy, loss, batches, settings, decay)
            steps += more

        error = value_loss(networks.value.module, batch, targets)
        batches = minibatches(batch.steps, settings.minibatches, generator)
        last = value_epoch(networks.value, error, batches, settings, decay)
    return policy_metrics(steps) | value_metrics(last, predicted, wanted)


def clipped_loss(policy: nn.Module, batch: Batch, advantages: np.ndarray, settings: PPO) -> Loss:
    """Minus the mean of the clipped objective, minus the entropy bonus.

    Args:
        policy: as in model.py.
        batch: N steps.
        advantages: float64 [N].
        settings: clip_range and entropy_coefficient.
    """
    advantages = normalized(advantages)

    def loss(steps: Tensor, mean: Mean) -> dict[str, Tensor]:
        log_probs, entropies = policy.log_prob_and_entropy(
            batch.observations_at(steps), batch.actions[steps]
        )
        old = batch.log_probs[steps]
        objective = mean(clipped_objective(log_probs, old, advantages[steps], settings.clip_range))
        entropy = mean(entropies)
        kl = mean(kl_terms(log_probs.detach(), old))
        bonus = settings.entropy_coefficient * entropy
        return {"loss": -objective - bonus, "entropy": entropy, "kl": kl}

    return loss


def clipped_objective(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip_range: float
) -> Tensor:
    """Schulman et al. 2017, eq. 7, per step: float32 [B] each."""
    ratio = torch.exp(log_probs - old_log_probs)
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    return torch.minimum(ratio * advantages, clipped * advantages)
