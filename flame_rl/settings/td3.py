"""Settings of twin delayed DDPG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flame_rl.settings.checks import Count, Noise, NonNegative
from flame_rl.settings.groups import PENDULUM, WIDE_LAYERS, ActionNoise


@dataclass(frozen=True)
class TD3Settings(ActionNoise):
    """Settings of twin delayed DDPG (Fujimoto et al. 2018), for continuous actions."""

    learner = "flame_rl.learner.algorithms.td3:td3"
    presets: ClassVar = {
        "": WIDE_LAYERS,
        "Pendulum-v1": PENDULUM
        | {
            "learning_rate": 3e-3,
            "updates_per_step": 2.0,
            "tau": 0.01,
            # With the defaults, some episodes that start near the bottom cost up to a third more.
            "policy_delay": 1,
            "target_noise": 0.05,
        },
    }

    policy_delay: Count = 2
    """Gradient steps of the critics for each one of the policy and the target networks."""

    target_noise: Noise = 0.2
    """Standard deviation of the noise that smooths the target policy."""

    target_noise_clip: NonNegative = 0.5
    """Greatest noise of the target policy."""
