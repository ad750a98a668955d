"""Settings of proximal policy optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from flame_rl.settings.checks import Count, Fraction, LogStd, NonNegative, Positive, check_fields
from flame_rl.settings.losses import check_losses


@dataclass(frozen=True)
class PPO:
    """Settings of proximal policy optimisation (Schulman et al. 2017)."""

    title: ClassVar[str] = "PPO"
    learner: ClassVar[str] = "flame_rl.learner.algorithms.ppo:ppo"
    # Values that replace the defaults below, by environment id. Where no reason is given, they were
    # the best of a few that were tried with seeds 0 to 2.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "CartPole-v1": {"learning_rate": 1e-3, "minibatches": 32},
        # Half the epochs with a wider clip range get as far in less time; HalfCheetah and Hopper
        # do worse with them.
        "Walker2d-v5": {"epochs": 5, "clip_range": 0.3},
        # With large actions an ant falls over: with small ones it survives from the start, and
        # learns to walk.
        "Ant-v5": {"initial_log_std": -2.0, "learning_rate": 3e-4},
    }

    learning_rate: Positive = 7e-4
    """Step size of the policy's Adam."""

    value_learning_rate: Positive = 1e-3
    """Step size of the value network's Adam; not used with --shared-torso."""

    learning_rate_decay: bool = True
    """Let both step sizes fall linearly to 0 at the last iteration."""

    gae_lambda: Fraction = 0.95
    """Lambda of generalised advantages, from 0 (one step and the value after it) to 1 (the whole
    episode)."""

    epochs: Count = 10
    """Epochs over each batch."""

    minibatches: Count = 16
    """Minibatches in each epoch; fewer where they would have fewer than 64 steps. 1: the whole
    batch at once."""

    clip_range: Positive = 0.2
    """Epsilon of the clipped objective: how far from 1 the probability ratio may go."""

    recompute_advantages: bool = True
    """Recompute the advantages before every epoch."""

    max_kl: Positive = 0.1
    """Greatest KL divergence, in nats, between the policy before an update and after it. The
    epoch ends there, and a step beyond it is undone."""

    entropy_coefficient: NonNegative = 0.0
    """Weight of the policy's entropy in the objective; above 0 the policy explores for longer."""

    max_grad_norm: Positive = 0.5
    """Greatest norm of a gradient; longer ones are scaled down to it."""

    normalize_observations: bool = True
    """Normalise observations to mean 0 and standard deviation 1, over all observations so far."""

    initial_log_std: LogStd = -0.5
    """Logarithm of the initial standard deviation of continuous actions."""

    overlap: bool = False
    """Collect the next iteration's episodes during the update, with the policy from before it. What
    that policy did is weighted by V-trace (Espeholt et al. 2018)."""

    shared_torso: bool = False
    """Let policy and values share all layers but the last one of each, the output. The network then
    descends the sum of their losses at --learning-rate."""

    value_weight: Positive = 0.5
    """With --shared-torso, weight of the loss of the values; the policy's loss has weight 1."""

    auxiliary: tuple[str, ...] = ()
    """With --shared-torso, further losses of the shared layers, module:class each, such as
    prediction:NextObservation."""

    auxiliary_weights: tuple[NonNegative, ...] = ()
    """A weight for each of --auxiliary."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_losses(self)
