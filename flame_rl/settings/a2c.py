"""Settings of advantage actor-critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flame_rl.settings.checks import Count
from flame_rl.settings.groups import SMALL_ACTIONS, GeneralizedAdvantages


@dataclass(frozen=True)
class A2CSettings(GeneralizedAdvantages):
    """Settings of advantage actor-critic (Mnih et al. 2016), synchronous."""

    learner = "flame_rl.learner.algorithms.a2c:a2c"
    presets: ClassVar = {
        "CartPole-v1": {
            "learning_rate": 2e-3,
            "value_learning_rate": 3e-3,
            "gae_lambda": 0.98,
            "max_kl": 0.02,
        },
        "Ant-v5": SMALL_ACTIONS,
    }

    value_epochs: Count = 5
    """Epochs of the value network over each batch; the policy makes one, and so do both with
    --shared-torso."""
