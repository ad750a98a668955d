"""Settings of SARSA with a deep network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flame_rl.settings.checks import Count, EpsilonEnd
from flame_rl.settings.groups import WIDE_LAYERS, EpsilonGreedy, Replay


@dataclass(frozen=True)
class SarsaSettings(EpsilonGreedy, Replay):
    """Settings of SARSA (Sutton and Barto 2018, sections 6.4 and 6.6), for discrete actions."""

    learner = "flame_rl.learner.algorithms.sarsa:Sarsa"
    presets: ClassVar = {
        "": WIDE_LAYERS,
        "CartPole-v1": {"iterations": 60, "steps_per_iter": 500, "epsilon_steps": 5_000},
    }

    capacity: Count = 10_000
    """Steps of replayed experience; the oldest episodes make way for new ones. Without `expected`,
    targets take the next actions of the policies that played; few steps keep them recent."""

    epsilon_end: EpsilonEnd = 0.02

    expected: bool = True
    """Bootstrap the expectation over the next action of the latest policy; if False, the value of
    the action that was taken next."""
