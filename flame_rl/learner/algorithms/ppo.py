"""Proximal policy optimisation (Schulman et al. 2017, "Proximal Policy Optimization Algorithms"),
with generalised advantages.

    maximise  mean_t [ min(r_t A_t, clip(r_t, 1 - epsilon, 1 + epsilon) A_t) ]  +  entropy bonus
    V(s_t) -> A_t + V(s_t)

r_t = pi(a_t | s_t) / pi_old(a_t | s_t), where pi_old is the policy before the update. An update
makes several epochs over its batch and may recompute the advantages before each (Andrychowicz et
al. 2021, "What Matters in On-Policy Reinforcement Learning?", section 3.5).
"""

from functools import cache

import numpy as np
from numpy.random import Generator

from flame_rl.learner.on_policy import losses
from flame_rl.learner.on_policy.actor_critic import ActorCritic, policy_epoch
from flame_rl.learner.on_policy.batch import Batch
from flame_rl.learner.on_policy.returns import standardize
from flame_rl.learner.training.epoch import StepConfig
from flame_rl.learner.training.network import CompiledLoss, Loss, LossResult, Samples
from flame_rl.settings.algorithms import PPOSettings
from flame_rl.settings.config import TrainConfig


def ppo(
    networks: ActorCritic, batch: Batch, config: TrainConfig, decay: float, generator: Generator
) -> dict[str, float]:
    """One update. Arguments and result: see `flame_rl.learner.on_policy.update.Update`."""
    settings: PPOSettings = config.algorithm
    c = settings.entropy_coefficient
    loss = networks.take_custom_loss() or clipped_loss(settings.clip_range, c)
    rate, value_rate = settings.learning_rate * decay, settings.value_learning_rate * decay
    step = StepConfig(rate, settings.max_grad_norm, settings.max_kl)
    numbers: list[dict[str, float]] = []  # of each minibatch
    exceeded = False
    for epoch in range(settings.epochs):
        if epoch == 0 or settings.recompute_advantages:
            values = networks.values(batch)
            advantages = batch.advantages(values, config.experiment.gamma, settings.gae_lambda)
            targets = advantages + values[batch.rows]
        if epoch == 0:
            explained = losses.explained_variance(targets - advantages, targets)  # of V(s_t)
            networks.statistics.add_returns_and_rescale(targets)

        columns = networks.columns(batch, targets)
        columns["advantages"] = standardize(advantages, batch.self_normalized_weights)
        if not exceeded:
            epoch_of_policy = policy_epoch(batch, columns, settings.minibatches, generator)
        # Before `fit_policy`: the values' epoch may run on another core beside the policy's.
        networks.fit_values(batch, targets, 1, value_rate, generator)
        if not exceeded:
            numbers += networks.fit_policy(epoch_of_policy, loss, step)
            exceeded = step.exceeds_kl(numbers[-1])
        # A policy that has moved far enough stops; values of their own learn on.
        if exceeded and networks.shared:
            break
    return losses.policy_metrics(numbers, step) | explained


@cache
def clipped_loss(clip_range: float, entropy_coefficient: float) -> Loss:
    """Minus the clipped objective (Schulman et al. 2017, eq. 7) and the entropy bonus.

    Samples have "advantages" and "log_probs", by the policy before the update, and perhaps
    "kl_weights", see `kl_terms`; the network's outputs are log-probabilities and entropies, [B]
    each. This function is the loss wherever torch has the network; compiled networks have the same
    as `CLIPPED` in learner/compiled/core.c."""
    low, high, c = 1 - clip_range, 1 + clip_range, entropy_coefficient

    def loss(samples: Samples, log_probs: np.ndarray, entropies: np.ndarray) -> LossResult:
        advantages = samples["advantages"]
        ratio = np.exp(log_probs - samples["log_probs"])
        plain = ratio * advantages
        # np.clip takes twice as long on arrays this small.
        clipped = np.minimum(np.maximum(ratio, low), high) * advantages
        total = -np.minimum(plain, clipped) - c * entropies
        # d ratio / d log_prob is the ratio; where the clipped term is smaller, it is constant.
        gradients = np.where(plain <= clipped, -plain, 0.0), -c
        return losses.policy_numbers(total, samples, log_probs, entropies), gradients

    return CompiledLoss(loss, "clipped", losses.POLICY_NUMBERS, clip_range, c)
