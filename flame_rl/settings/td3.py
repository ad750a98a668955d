"""Settings of twin delayed DDPG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

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
class TD3:
    """Settings of twin delayed DDPG (Fujimoto et al. 2018), for continuous actions."""

    title: ClassVar[str] = "TD3"
    learner: ClassVar[str] = "flame_rl.learner.algorithms.td3:td3"
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
            "learning_rate": 3e-3,
            "value_learning_rate": 3e-3,
            "learning_rate_decay": True,
            "updates_per_step": 2.0,
            "tau": 0.01,
            # With the defaults, some episodes that start near the bottom cost up to a third more.
            "policy_delay": 1,
            "target_noise": 0.05,
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
    """Standard deviation of the noise that is added to actions, whose bounds are -1 and 1."""

    policy_delay: Count = 2
    """Gradient steps of the critics for each one of the policy and the target networks."""

    target_noise: NonNegative = 0.2
    """Standard deviation of the noise that smooths the target policy."""

    target_noise_clip: NonNegative = 0.5
    """Greatest noise of the target policy."""

    def __post_init__(self) -> None:
        check_fields(self)
