"""Settings of an actor-critic that learns from replay with V-trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flame_rl.settings.checks import Count, EntropyCoefficient, Lambda, LearningRate, UpdatesPerStep
from flame_rl.settings.groups import PolicyGradient, Sequences


@dataclass(frozen=True)
class ImpalaSettings(PolicyGradient, Sequences):
    """Settings of an actor-critic with V-trace (Espeholt et al. 2018), for any actions."""

    learner = "flame_rl.learner.algorithms.impala:Impala"
    presets: ClassVar = {
        # With 2,048 steps one run in three failed in CartPole and in Taxi, with 500 in CartPole.
        "": {"steps_per_iter": 1000, "first_episodes": None},
        "CartPole-v1": {"iterations": 60, "first_episodes": 8},
    }

    learning_rate: LearningRate = 2e-4
    entropy_coefficient: EntropyCoefficient = 0.003
    updates_per_step: UpdatesPerStep = 0.05

    capacity: Count = 20_000
    """Steps of replayed experience; the oldest episodes make way for new ones. V-trace gives little
    weight to what the policy would no longer do, so that much more is of little use."""

    trace_lambda: Lambda = 0.95
    """Lambda of V-trace, from 0 (one step and the value after it) to 1 (the whole sequence)."""
