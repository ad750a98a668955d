"""Passes over a batch in minibatches: what the algorithms are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from flame_rl.learner.batch import Batch
from flame_rl.learner.networks import Networks, PolicyStep, Surrogate
from flame_rl.learner.returns import generalized_advantages, normalize
from flame_rl.learner.slices import side_by_side
from flame_rl.settings.config import TrainConfig

# Of fewer env steps, a gradient is mostly noise, and takes as long.
LEAST_MINIBATCH = 64


def advantages_and_targets(
    networks: Networks, batch: Batch, config: TrainConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Generalised advantages and what the values should be, float64 [N] each."""
    values = networks.values(batch)
    # Rewards beyond all bounds become NaN here, and the update is refused.
    with np.errstate(over="ignore", invalid="ignore"):
        advantages = generalized_advantages(
            batch.rewards, values, batch.lengths, batch.terminated, config.gamma, config.gae_lambda
        )
    return advantages, advantages + values[batch.rows.numpy()]


def policy_and_value_passes(
    networks: Networks,
    batch: Batch,
    surrogate: Surrogate,
    advantages: np.ndarray,
    targets: np.ndarray,
    value_epochs: int,
    config: TrainConfig,
    generator: np.random.Generator,
    decay: float,
) -> tuple[list[PolicyStep], float]:
    """A `policy_pass`, and beside it on another core so many times a `value_pass`: neither reads
    what the other one changes. Returns what the first and the last of them return.

    Args:
        generator: for the order of the steps.
    """
    parts = minibatches(batch.steps, config.minibatches, generator)
    value_parts = [
        minibatches(batch.steps, config.minibatches, generator) for _ in range(value_epochs)
    ]

    def policy() -> list[PolicyStep]:
        return policy_pass(networks, batch, parts, surrogate, advantages, config, decay)

    def value() -> float:
        for each in value_parts:
            loss = value_pass(networks, batch, each, targets, config, decay)
        return loss

    return side_by_side(policy, value)


def policy_pass(
    networks: Networks,
    batch: Batch,
    parts: Sequence[Tensor],
    surrogate: Surrogate,
    advantages: np.ndarray,
    config: TrainConfig,
    decay: float,
) -> list[PolicyStep]:
    """One pass over all steps; it ends where the policy has gone too far.

    Args:
        parts: the minibatches.
        surrogate: what to maximise.
        advantages: float64 [N], normalised here over the whole batch.
        decay: factor of the learning rate.
    """
    # What became infinite becomes NaN, and the update is refused.
    with np.errstate(over="ignore", invalid="ignore"):
        normalized = torch.from_numpy(normalize(advantages).astype(np.float32))
    steps: list[PolicyStep] = []
    for index in parts:
        steps.append(
            networks.step_policy(
                batch,
                index,
                surrogate,
                normalized,
                entropy_coefficient=config.entropy_coefficient,
                max_grad_norm=config.max_grad_norm,
                learning_rate=config.learning_rate * decay,
                max_kl=config.max_kl,
            )
        )
        if not steps[-1].taken:
            break
    return steps


def value_pass(
    networks: Networks,
    batch: Batch,
    parts: Sequence[Tensor],
    targets: np.ndarray,
    config: TrainConfig,
    decay: float,
) -> float:
    """One pass over all steps, in minibatches `parts`, towards the targets, float64 [N]; returns
    the mean loss."""
    with np.errstate(over="ignore"):
        wanted = torch.from_numpy(targets.astype(np.float32))
    losses = [
        networks.step_value(
            batch,
            index,
            wanted,
            max_grad_norm=config.max_grad_norm,
            learning_rate=config.value_learning_rate * decay,
        )
        for index in parts
    ]
    return sum(losses) / len(losses)


def minibatches(steps: int, count: int, generator: np.random.Generator) -> Sequence[Tensor]:
    """All steps in random order, int64, in `count` parts or fewer larger ones; 1: in order."""
    count = min(count, max(1, steps // LEAST_MINIBATCH))
    if count == 1:
        return (torch.arange(steps),)
    return torch.from_numpy(generator.permutation(steps)).tensor_split(count)


def policy_metrics(steps: Sequence[PolicyStep]) -> dict[str, float]:
    """Means over the steps."""
    return {
        "loss": float(np.mean([step.loss for step in steps])),
        "gradient_norm": float(np.mean([step.gradient_norm for step in steps])),
        "policy_entropy": steps[-1].entropy,
    }


def value_metrics(loss: float, predicted: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """The loss, and which share of the targets' variance was predicted before the update."""
    # What is not finite is refused later.
    with np.errstate(over="ignore", invalid="ignore"):
        variance = targets.var()
        explained = 1 - (targets - predicted).var() / variance if variance > 0 else 0.0
    return {"value_loss": loss, "explained_variance": float(explained)}
