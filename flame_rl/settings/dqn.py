"""Settings of deep Q-learning, from DQN to Rainbow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from flame_rl.settings.checks import Count, Fraction, NStep, Number, Tau, refuse
from flame_rl.settings.groups import (
    WIDE_LAYERS,
    EpsilonGreedy,
    Hindsight,
    Prioritized,
    Replay,
)


@dataclass(frozen=True)
class DQNSettings(EpsilonGreedy, Prioritized, Hindsight, Replay):
    """Settings of deep Q-learning (Mnih et al. 2015), for discrete actions."""

    learner = "flame_rl.learner.algorithms.dqn:DQN"
    presets: ClassVar = {
        "": WIDE_LAYERS,
        "CartPole-v1": {
            "iterations": 90,
            "steps_per_iter": 500,
            "learning_rate": 5e-4,
            "updates_per_step": 1.0,
            "n_step": 3,
            "epsilon_steps": 5_000,
            "epsilon_end": 0.02,
        },
        "Acrobot-v1": {"iterations": 93, "learning_rate": 6.3e-4, "epsilon_end": 0.1, "atoms": 25},
        # Its only reward is the goal's, which independent random actions never reach.
        "MountainCar-v0": {
            "iterations": 118,
            "learning_rate": 5e-4,
            "n_step": 10,
            "epsilon_steps": 24_000,
            "epsilon_end": 0.07,
            "epsilon_repeat": 0.9,
        },
        "LunarLander-v3": {
            "iterations": 180,
            "double": True,
            "dueling": True,
            "n_step": 3,
            "learning_rate": 6e-4,
            "learning_rate_decay": True,
            "updates_per_step": 1.0,
            "epsilon_steps": 24_000,
            "epsilon_end": 0.02,
        },
    }

    tau: Tau = 0.005
    """Share by which the target network moves towards the trained one each time; 1 copies it."""

    target_period: Count = 1
    """The target network moves after every N gradient steps."""

    epsilon_repeat: Fraction = 0.0
    """Probability that a step keeps the choice of the step before: its random action, or to act
    greedily. Where single actions undo each other, it leads further (Dabney et al. 2021)."""

    n_step: NStep = 1
    """The n of n-step returns: the number of rewards in a target before the bootstrapped value."""

    double: bool = True
    """The online network selects the action that the target network values (van Hasselt et al.
    2016)."""

    dueling: bool = False
    """The network has a part for the state's value and one for the actions' advantages (Wang et al.
    2016)."""

    distribution: Literal["none", "c51", "quantiles"] = "none"
    """Learn the distribution of returns: its probabilities on fixed atoms (C51, Bellemare et al.
    2017) or its quantiles (QR-DQN, Dabney et al. 2018); none: its mean."""

    atoms: Count = 51
    """Atoms or quantiles of a distribution."""

    lowest_return: Number = -100.0
    """The lowest atom of C51; returns below it count as it."""

    highest_return: Number = 100.0
    """The highest atom of C51."""

    rainbow: bool = False
    """Rainbow but for its noisy layers (Hessel et al. 2018): turns on double, dueling and
    prioritized; n_step becomes 3 where it is 1, and distribution c51 where it is none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rainbow:
            changes = {
                "double": True,
                "dueling": True,
                "prioritized": True,
                "n_step": 3 if self.n_step == 1 else self.n_step,
                "distribution": "c51" if self.distribution == "none" else self.distribution,
            }
            for name, value in changes.items():
                object.__setattr__(self, name, value)  # the dataclass is frozen
        if self.distribution == "c51" and self.atoms < 2:
            refuse("atoms", "at least 2 with C51", self.atoms)
        if self.lowest_return >= self.highest_return:
            refuse("lowest_return", f"less than {self.highest_return}", self.lowest_return)
