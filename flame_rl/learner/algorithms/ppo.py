"""Proximal policy optimisation (Schulman et al. 2017), with generalised advantages.

    maximise  mean_t [ min(r_t A_t, clip(r_t, 1 - epsilon, 1 + epsilon) A_t) ]  +  entropy bonus

where r_t is the probability of the action now over that when it was taken. Several passes over each
batch; the advantages may be recomputed before each of them (Andrychowicz et al. 2021, "What Matters
in On-Policy Reinforcement Learning?", section 3.5).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from flame_rl.learner.batch import Batch
from flame_rl.learner.networks import Networks, PolicyStep
from flame_rl.learner.passes import (
    advantages_and_targets,
    minibatches,
    policy_and_value_passes,
    policy_metrics,
    value_metrics,
    value_pass,
)
from flame_rl.settings.config import TrainConfig


def ppo(
    networks: Networks,
    batch: Batch,
    config: TrainConfig,
    generator: np.random.Generator,
    decay: float,
) -> dict[str, float]:
    """Several passes. Arguments and result: see `flame_rl.learner.learner.Algorithm`."""

    def surrogate(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
        return clipped_surrogate(log_probs, old_log_probs, advantages, config.clip_range)

    steps: list[PolicyStep] = []
    for epoch in range(config.epochs):
        if epoch == 0 or config.recompute_advantages:
            advantages, targets = advantages_and_targets(networks, batch, config)
        if epoch == 0:
            predicted = targets - advantages
            networks.take_in_returns(targets)
        if not steps or steps[-1].taken:
            more, loss = policy_and_value_passes(
                networks, batch, surrogate, advantages, targets, 1, config, generator, decay
            )
            steps += more
        else:
            parts = minibatches(batch.steps, config.minibatches, generator)
            loss = value_pass(networks, batch, parts, targets, config, decay)
    return policy_metrics(steps) | value_metrics(loss, predicted, targets)


def clipped_surrogate(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip_range: float
) -> Tensor:
    """Schulman et al. 2017, eq. 7, per step: float32 [B] each."""
    ratio = torch.exp(log_probs - old_log_probs)
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    return torch.minimum(ratio * advantages, clipped * advantages)
