"""Settings of recurrent deep Q-learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flame_rl.settings.checks import CountOrZero, Tau, UpdatesPerStep
from flame_rl.settings.groups import EpsilonGreedy, Sequences


@dataclass(frozen=True)
class R2D2Settings(EpsilonGreedy, Sequences):
    """Settings of deep Q-learning with a memory (Kapturowski et al. 2019), for discrete actions."""

    learner = "flame_rl.learner.algorithms.r2d2:R2D2"
    presets: ClassVar = {
        "": {"memory": "lstm", "steps_per_iter": 1000},
        "CartPole-v1": {"iterations": 60, "steps_per_iter": 500, "epsilon_steps": 5_000},
    }

    updates_per_step: UpdatesPerStep = 0.1
    tau: Tau = 0.02

    burn_in: CountOrZero = 20
    """Steps before these that only bring the memory up to date, from an empty one; a sequence from
    an episode's first step needs none, and is learned from whole."""
