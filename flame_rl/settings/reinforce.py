"""Settings of REINFORCE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flame_rl.settings.checks import Count, LogStd, NonNegative, Positive, check_fields
from flame_rl.settings.losses import check_losses
from flame_rl.system.errors import UsageError


@dataclass(frozen=True)
class Reinforce:
    """Settings of REINFORCE (Williams 1992), with a baseline."""

    title: ClassVar[str] = "REINFORCE"
    learner: ClassVar[str] = "flame_rl.learner.algorithms.reinforce:reinforce"
    # Values that replace the defaults below, by environment id. Where no reason is given, they were
    # the best of a few that were tried with seeds 0 to 2.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # CartPole is small, and its rewards are free of noise: larger steps are safe.
        "CartPole-v1": {"learning_rate": 3e-3, "value_learning_rate": 3e-3, "max_kl": 0.04},
        # Learns as much as with five value epochs, in half of the seconds of an update.
        "HalfCheetah-v5": {"value_epochs": 1},
        # With large actions an ant falls over: with small ones it survives from the start, and
        # learns to walk. One value epoch is enough: its returns are soon predicted.
        "Ant-v5": {"initial_log_std": -2.0, "learning_rate": 3e-4, "value_epochs": 1},
    }

    learning_rate: Positive = 7e-4
    """Step size of the policy's Adam."""

    value_learning_rate: Positive = 1e-3
    """Step size of the value network's Adam; not used with --shared-torso."""

    learning_rate_decay: bool = True
    """Let both step sizes fall linearly to 0 at the last iteration."""

    baseline: Literal["none", "leave-one-out", "value"] = "value"
    """Baseline subtracted from the returns: nothing, the mean return of the other episodes at the
    same time step, or a value network."""

    value_epochs: Count = 5
    """Epochs of the value network over each batch; the policy makes one, and so do both with
    --shared-torso."""

    minibatches: Count = 32
    """Minibatches in each epoch; fewer where they would have fewer than 64 steps. 1: the whole
    batch at once."""

    # Without PPO's ratio, a policy that moves far in one epoch collapses; this limit stops few
    # good updates.
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

    shared_torso: bool = False
    """Let policy and values share all layers but the last one of each, the output. The network then
    descends the sum of their losses, in one epoch over each batch, at --learning-rate."""

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
        if self.shared_torso and self.baseline != "value":
            raise UsageError(
                f"--shared-torso: --baseline {self.baseline} has no value network to share layers "
                "with; add --baseline value"
            )
