"""Settings of proximal policy optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from flame_rl.settings.checks import Count, MaxKL, Minibatches, Positive, Span
from flame_rl.settings.groups import (
    MILLION,
    MILLION_IN_LARGE_PARTS,
    SHORT_ITERATIONS,
    SMALL_ACTIONS,
    GeneralizedAdvantages,
)

# Presets of environments that are learned from for long: step sizes fall to 0 at the end.
LONG = MILLION | {"learning_rate_decay": True}
LONG_IN_LARGE_PARTS = MILLION_IN_LARGE_PARTS | {"learning_rate_decay": True}


@dataclass(frozen=True)
class PPOSettings(GeneralizedAdvantages):
    """Settings of proximal policy optimisation (Schulman et al. 2017)."""

    learner = "flame_rl.learner.algorithms.ppo:ppo"
    presets: ClassVar = {
        "": SHORT_ITERATIONS,
        "CartPole-v1": {
            "iterations": 30,
            "steps_per_iter": 2000,
            "first_episodes": 8,
            "learning_rate_decay": True,
            "learning_rate": 1e-3,
            "minibatches": 32,
        },
        "HalfCheetah-v5": LONG_IN_LARGE_PARTS,
        "Hopper-v5": LONG,
        # Half the epochs with a wider clip range get as far in less time; HalfCheetah and Hopper
        # do worse with them.
        "Walker2d-v5": LONG | {"epochs": 5, "clip_range": 0.3},
        "Ant-v5": LONG_IN_LARGE_PARTS | SMALL_ACTIONS,
    }

    # In an unknown environment runs are short, and smaller steps cost more than they gain.
    learning_rate_decay: bool = False

    minibatches: Minibatches = 16
    max_kl: MaxKL = 0.1

    epochs: Annotated[Count, Span(1, 20, log=True)] = 10
    """Epochs over each batch."""

    clip_range: Annotated[Positive, Span(0.1, 0.4)] = 0.2
    """Epsilon of the clipped objective: how far from 1 the probability ratio may go."""

    recompute_advantages: bool = True
    """Recompute the advantages before every epoch."""
