"""Settings of soft actor-critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from flame_rl.settings.checks import NStep, Number, Positive, Span, SquashedStd
from flame_rl.settings.groups import PENDULUM, WIDE_LAYERS, Critics

# Two robots that fall in their first episodes. With n_step 1 and learning rates of 7e-4 the return
# in Hopper was 814 after 100,000 env steps, and 3,005 with these (seed 0, not exploring).
_WALKING = {
    "iterations": 300,
    "steps_per_iter": 250,
    "warm_up_steps": 1_000,
    "batch_size": 128,
    "learning_rate": 5e-4,
    "value_learning_rate": 5e-4,
    "tau": 0.01,
    "n_step": 3,
    "layer_norm": True,
}


@dataclass(frozen=True)
class SACSettings(Critics):
    """Settings of soft actor-critic (Haarnoja et al. 2018), for continuous actions."""

    learner = "flame_rl.learner.algorithms.sac:SAC"
    presets: ClassVar = {
        "": WIDE_LAYERS,
        "HalfCheetah-v5": {
            "steps_per_iter": 500,
            "normalize_observations": True,
            "warm_up_steps": 2_000,
            "batch_size": 128,
            "learning_rate": 7e-4,
            "value_learning_rate": 7e-4,
            # 1 learns as much in the same time, 2 more in as many env steps; see docs/replay.md.
            "updates_per_step": 2.0,
            "tau": 0.01,
            "layer_norm": True,
            # With the smaller value, some seeds stayed in a slow gait.
            "average_critics": True,
            # From 1, the temperature takes thousands of steps to fall to the size of the rewards.
            "initial_temperature": 0.1,
        },
        "Hopper-v5": _WALKING,
        "Walker2d-v5": _WALKING,
        # Late in a run, single episodes fall back to where the run began, hence the decay. An ant
        # that hardly moves stands, and learns to walk from there; see docs/replay.md.
        "Ant-v5": _WALKING
        | {
            "updates_per_step": 0.5,
            "learning_rate_decay": True,
            "initial_temperature": 0.1,
            "target_entropy": -0.5,
            "initial_std": 0.2,
        },
        "Pendulum-v1": PENDULUM
        | {"learning_rate": 1e-3, "updates_per_step": 2.0, "target_entropy": -2.0},
    }

    n_step: NStep = 1
    """The n of n-step returns: the number of rewards in a target before the bootstrapped value. All
    but the first, and the value, come with an entropy."""

    average_critics: bool = False
    """Let the mean of the two critics count, not the smaller value (Moskovitz et al. 2021): less
    cautious, for tasks without a fall that ends an episode."""

    target_entropy: Number = -1.0
    """Entropy in nats, for each action dimension, at which the temperature keeps the policy."""

    initial_temperature: Annotated[Positive, Span(0.05, 1.0, log=True)] = 1.0
    """The first weight of the entropy."""

    initial_std: SquashedStd = 1.0
    """About the standard deviation of a new policy's actions, before tanh. With a small one, a
    robot that stands by itself is not thrown over at the beginning."""
