"""Settings of successor features with a deep network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flame_rl.settings.groups import WIDE_LAYERS, EpsilonGreedy, Replay


@dataclass(frozen=True)
class SuccessorSettings(EpsilonGreedy, Replay):
    """Settings of successor features (Barreto et al. 2017), for discrete actions and rewards of
    several parts."""

    title = "Successor features"
    learner = "flame_rl.learner.algorithms.successor:Successor"
    presets: ClassVar = {
        "": WIDE_LAYERS,
        "CartPole-v1": {"iterations": 60, "steps_per_iter": 500, "epsilon_steps": 5_000},
    }
    may_change = ("reward_weights",)
