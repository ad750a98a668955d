"""Settings of deep deterministic policy gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flame_rl.settings.checks import (
    Count,
    CountOrZero,
    Fraction,
    NonNegative,
    Positive,
    UpdatesPerStep,
    check_fields,
)


@dataclass(frozen=True)
class DDPG:
    """Settings of DDPG (Lillicrap et al. 2016), for continuous actions."""

    title: ClassVar[str] = "DDPG"
    learner: ClassVar[str] = "flame_rl.learner.algorithms.ddpg:ddpg"
    # Values that replace the defaults, by environment id; "" is for all of them.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "": {
            "hidden_sizes": (256, 256),
            "activation": "relu",
            "steps_per_iter": 1000,
        },
        # An episode in each iteration.
        "Pendulum-v1": {
            "iterations": 93,
            "steps_per_iter": 200,
            "warm_up_steps": 1_000,
            "learning_rate": 1e-3,
            "value_learning_rate": 3e-3,
            "learning_rate_decay": True,
            "batch_size": 128,
            "updates_per_step": 4.0,
            "layer_norm": True,
            # Returns are as low as -1,500; see docs/replay.md.
            "reward_scale": 0.1,
        },
    }

    learning_rate: Positive = 3e-4
    """Step size of the policy's Adam."""

    value_learning_rate: Positive = 3e-4
    """Step size of the critics' Adam."""

    learning_rate_decay: bool = False
    """Let the step sizes fall linearly to 0 at the last iteration."""

    capacity: Count = 1_000_000
    """Steps of replayed experience; the oldest episodes make way for new ones."""

    warm_up_steps: CountOrZero = 5_000
    """Env steps before the first gradient step; until then the noise has standard deviation 1."""

    batch_size: Count = 256
    """Steps drawn for each gradient step."""

    updates_per_step: UpdatesPerStep = 1.0
    """Gradient steps for each env step."""

    tau: Fraction = 0.005
    """Share by which the target networks move towards the trained ones in each gradient step."""

    n_step: Count = 1
    """The n of n-step returns: the number of rewards in a target before the bootstrapped value."""

    reward_scale: Positive = 1.0
    """Factor of the rewards that the critics learn from (Henderson et al. 2018): large values are
    slow to learn precisely. Printed rewards are not scaled."""

    normalize_observations: bool = False
    """Normalise observations to mean 0 and standard deviation 1, over all observations so far."""

    layer_norm: bool = False
    """Normalise the layers of the critics (Ball et al. 2023): a gradient step takes about a third
    longer."""

    noise: NonNegative = 0.1
    """Standard deviation of the noise that is added to actions, whose bounds are -1 and 1; of
    Ornstein-Uhlenbeck noise, of what each step adds to it."""

    noise_process: Literal["gaussian", "ornstein-uhlenbeck"] = "gaussian"
    """The noise of each step is independent, or each step keeps most of the one before."""

    noise_theta: Fraction = 0.15
    """How far each step draws Ornstein-Uhlenbeck noise back to 0."""

    def __post_init__(self) -> None:
        check_fields(self)
