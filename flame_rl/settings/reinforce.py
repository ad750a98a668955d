"""Settings of REINFORCE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flame_rl.settings.checks import Count, LogStd, NonNegative, Positive, check_fields


@dataclass(frozen=True)
class Reinforce:
    """Settings of REINFORCE (Williams 1992), with a baseline."""

    title: ClassVar[str] = "REINFORCE"
    learner: ClassVar[str] = "flame_rl.learner.algorithms.reinforce:reinforce"
    # In place of the defaults below, by environment; the best of a few that were tried with seeds
    # 0 to 2, where no other reason is given.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # CartPole is small, and its rewards are sure: steps may be longer.
        "CartPole-v1": {"learning_rate": 3e-3, "value_learning_rate": 3e-3, "max_kl": 0.03},
        # A restless ant falls over: with small actions it survives from the start, and learns to
        # walk. More than one value epoch costs time and gains nothing: returns are predicted soon.
        "Ant-v5": {"initial_log_std": -2.0, "learning_rate": 3e-4, "value_epochs": 1},
    }

    learning_rate: Positive = 7e-4
    """Step size of the policy's Adam."""

    value_learning_rate: Positive = 1e-3
    """Step size of the value network's Adam."""

    learning_rate_decay: bool = True
    """Let both step sizes fall linearly to 0 at the last iteration."""

    baseline: Literal["none", "leave-one-out", "value"] = "value"
    """What returns are compared with: nothing, the other episodes at the same time step, or a value
    network."""

    value_epochs: Count = 5
    """Passes of the value network over each batch; the policy makes one."""

    minibatches: Count = 32
    """Minibatches in each epoch; fewer where they would have less than 64 steps. 1: the whole batch
    at once."""

    # One epoch without a ratio collapses where it goes far; this limit stops few good updates.
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
