"""Settings of deep deterministic policy gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from flame_rl.settings.checks import Fraction, Noise
from flame_rl.settings.groups import PENDULUM, WIDE_LAYERS, ActionNoise


@dataclass(frozen=True)
class DDPGSettings(ActionNoise):
    """Settings of DDPG (Lillicrap et al. 2016), for continuous actions."""

    learner = "flame_rl.learner.algorithms.ddpg:ddpg"
    presets: ClassVar = {
        "": WIDE_LAYERS,
        "Pendulum-v1": PENDULUM
        | {"learning_rate": 1e-3, "batch_size": 128, "updates_per_step": 4.0, "layer_norm": True},
    }

    noise: Noise = 0.1
    """Standard deviation of the noise that is added to actions, whose bounds are -1 and 1; of
    Ornstein-Uhlenbeck noise, of what each step adds to it."""

    noise_process: Literal["gaussian", "ornstein-uhlenbeck"] = "gaussian"
    """The noise of each step is independent, or each step keeps most of the one before."""

    noise_theta: Fraction = 0.15
    """How far each step draws Ornstein-Uhlenbeck noise back to 0."""
