"""Settings of proximal policy optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from flame_rl.settings.checks import Count, Fraction, LogStd, NonNegative, Positive, check_fields


@dataclass(frozen=True)
class PPO:
    """Settings of proximal policy optimisation (Schulman et al. 2017)."""

    title: ClassVar[str] = "PPO"
    learner: ClassVar[str] = "flame_rl.learner.algorithms.ppo:ppo"
    # In place of the defaults below, by environment; the best of a few that were tried with seeds
    # 0 to 2, where no other reason is given.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "CartPole-v1": {"learning_rate": 1e-3, "minibatches": 32},
        # Wider steps in half the epochs get as far in less time; HalfCheetah and Hopper lose by
        # them.
        "Walker2d-v5": {"epochs": 5, "clip_range": 0.3},
        # A restless ant falls over: with small actions it survives from the start, and learns to
        # walk.
        "Ant-v5": {"initial_log_std": -2.0, "learning_rate": 3e-4},
    }

    learning_rate: Positive = 7e-4
    """Step size of the policy's Adam."""

    value_learning_rate: Positive = 1e-3
    """Step size of the value network's Adam."""

    learning_rate_decay: bool = True
    """Let both step sizes fall linearly to 0 at the last iteration."""

    gae_lambda: Fraction = 0.95
    """Lambda of generalised advantages, from 0 (one step and the value after it) to 1 (the whole
    episode)."""

    epochs: Count = 10
    """Passes over each batch."""

    minibatches: Count = 16
    """Minibatches in each epoch; fewer where they would have less than 64 steps. 1: the whole batch
    at once."""

    clip_range: Positive = 0.2
    """Epsilon of the clipped objective: how far from 1 the probability ratio may go."""

    recompute_advantages: bool = True
    """Recompute the advantages before every epoch."""

    max_kl: Positive = 0.1
    """Greatest KL divergence, in nats, of an update from the policy that collected. The epoch ends
    there, and a step beyond it is taken back."""

    entropy_coefficient: NonNegative = 0.0
    """Weight of the policy's entropy in the objective; above 0 it keeps exploring longer."""

    max_grad_norm: Positive = 0.5
    """Gradients of a greater norm are scaled down to it."""

    normalize_observations: bool = True
    """Bring observations to mean 0 and standard deviation 1, by all observations so far."""

    initial_log_std: LogStd = -0.5
    """Logarithm of the standard deviation with which continuous actions begin to explore."""

    def __post_init__(self) -> None:
        check_fields(self)
