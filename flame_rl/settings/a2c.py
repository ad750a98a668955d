"""Settings of advantage actor-critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from flame_rl.settings.checks import Count, Span
from flame_rl.settings.groups import (
    MILLION,
    MILLION_IN_LARGE_PARTS,
    SHORT_ITERATIONS,
    SMALL_ACTIONS,
    GeneralizedAdvantages,
)


@dataclass(frozen=True)
class A2CSettings(GeneralizedAdvantages):
    """Settings of advantage actor-critic (Mnih et al. 2016), synchronous."""

    learner = "flame_rl.learner.algorithms.a2c:a2c"
    presets: ClassVar = {
        "": SHORT_ITERATIONS,
        "CartPole-v1": {
            "iterations": 30,
            "steps_per_iter": 2000,
            "first_episodes": 8,
            "learning_rate": 2e-3,
            "value_learning_rate": 3e-3,
            "gae_lambda": 0.98,
            "max_kl": 0.02,
        },
        # With less noise many runs slide on the robot's back.
        "HalfCheetah-v5": MILLION | {"gamma": 0.97, "initial_log_std": 0.0},
        "Hopper-v5": MILLION,
        "Walker2d-v5": MILLION,
        "Ant-v5": MILLION_IN_LARGE_PARTS | SMALL_ACTIONS,
    }

    value_epochs: Annotated[Count, Span(1, 10, log=True)] = 5
    """Epochs of the value network over each batch; the policy makes one, and so do both with
    --shared-torso."""
