"""Proximal policy optimisation (Schulman et al. 2017, "Proximal Policy Optimization Algorithms"),
with generalised advantages.

    maximise  mean_t [ min(r_t A_t, clip(r_t, 1 - epsilon, 1 + epsilon) A_t) ]  +  entropy bonus

where r_t is the ratio of the action's probability now to that when it was taken. Several epochs
over each batch; the advantages may be recomputed before each of them (Andrychowicz et al. 2021,
"What Matters in On-Policy Reinforcement Learning?", section 3.5).
"""

from __future__ import annotations

import numpy as np

import model
from flame_rl.learner.on_policy.batch import Batch
from flame_rl.learner.on_policy.epochs import epoch
from flame_rl.learner.on_policy.returns import generalized_advantages
from flame_rl.learner.on_policy.update import (
    ActorCritic,
    Improved,
    OnPolicy,
    explained_variance,
    kl_terms,
    normalized,
    on_policy,
    policy_metrics,
)
from flame_rl.nets.network import Loss, Samples, Slope
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
) -> Improved:
    """One update. Arguments and result: see `flame_rl.learner.on_policy.update.Improve`."""
    settings: PPO = config.algorithm
    steps: list[dict[str, float]] = []
    too_far = False
    loss = clipped_loss(settings.clip_range, settings.entropy_coefficient)
    for number in range(settings.epochs):
        if number == 0 or settings.recompute_advantages:
            values = networks.values(batch)
            advantages = generalized_advantages(
                batch.rewards,
                values,
                batch.lengths,
                batch.terminated,
                config.experiment.gamma,
                settings.gae_lambda,
                batch.weights,
            )
            targets = advantages + values[batch.rows]
        if number == 0:
            explained = explained_variance(targets - advantages, targets)
            networks.follow_returns(targets)

        columns = {
            "actions": batch.actions,
            "log_probs": batch.log_probs,
            "advantages": normalized(advantages),
        }
        done = epoch(
            networks, batch, columns, loss, targets, settings, generator, decay, ended=too_far
        )
        steps, too_far = steps + done.steps, done.ended
        if done.exhausted or number + 1 == settings.epochs:
            break
        done.wait_for_values()
    return policy_metrics(steps), lambda: done.wait_for_values() | explained


def clipped_loss(clip_range: float, c: float) -> Loss:
    """Minus the clipped objective (Schulman et al. 2017, eq. 7), minus c times the entropy. Samples
    have "advantages" and "log_probs"."""
    low, high = 1 - clip_range, 1 + clip_range

    def loss(
        samples: Samples, log_probs: np.ndarray, entropies: np.ndarray
    ) -> tuple[dict[str, np.ndarray], tuple[Slope, ...]]:
        advantages = samples["advantages"]
        log_ratio = log_probs - samples["log_probs"]
        ratio = np.exp(log_ratio)
        plain = ratio * advantages
        # np.clip takes twice as long on arrays this small.
        clipped = np.minimum(np.maximum(ratio, low), high) * advantages
        numbers = {
            "loss": -np.minimum(plain, clipped) - c * entropies,
            "entropy": entropies,
            "kl": kl_terms(log_ratio),
        }
        # d ratio / d log_prob is the ratio; where the clipped term is the smaller one, it is flat.
        slope = np.where(plain <= clipped, -plain, 0.0)
        return numbers, (slope, -c)

    return loss
