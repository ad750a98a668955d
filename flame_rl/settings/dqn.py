"""Settings of deep Q-learning, from DQN to Rainbow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flame_rl.settings.checks import (
    Count,
    CountOrZero,
    Fraction,
    Number,
    Positive,
    UpdatesPerStep,
    check_fields,
    refuse,
)


@dataclass(frozen=True)
class DQN:
    """Settings of deep Q-learning (Mnih et al. 2015), for discrete actions."""

    title: ClassVar[str] = "DQN"
    learner: ClassVar[str] = "flame_rl.learner.algorithms.dqn:dqn"
    # Values that replace the defaults, by environment id; "" is for all of them.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "": {
            "hidden_sizes": (256, 256),
            "activation": "relu",
            "steps_per_iter": 1000,
        },
        "CartPole-v1": {
            "iterations": 90,
            "steps_per_iter": 500,
            "learning_rate": 5e-4,
            "updates_per_step": 1.0,
            "n_step": 3,
            "epsilon_steps": 5_000,
            "epsilon_end": 0.02,
        },
        "Acrobot-v1": {
            "iterations": 93,
            "learning_rate": 6.3e-4,
            "epsilon_end": 0.1,
            "atoms": 25,
        },
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

    rainbow: bool = False
    """Rainbow but for its noisy layers (Hessel et al. 2018): turns on double, dueling and
    prioritized; n_step becomes 3 where it is 1, and distribution c51 where it is none."""

    learning_rate: Positive = 1e-3
    """Step size of Adam."""

    learning_rate_decay: bool = False
    """Let the step size fall linearly to 0 at the last iteration."""

    capacity: Count = 100_000
    """Steps of replayed experience; the oldest episodes make way for new ones."""

    warm_up_steps: CountOrZero = 1_000
    """Env steps before the first gradient step."""

    batch_size: Count = 128
    """Steps drawn for each gradient step."""

    updates_per_step: UpdatesPerStep = 0.5
    """Gradient steps for each env step."""

    epsilon_start: Fraction = 1.0
    """Probability of a random action at the beginning of the run."""

    epsilon_end: Fraction = 0.05
    """Probability of a random action after `epsilon_steps`."""

    epsilon_steps: CountOrZero = 10_000
    """Env steps in which epsilon falls linearly from its start to its end."""

    epsilon_repeat: Fraction = 0.0
    """Probability that a step keeps the choice of the step before: its random action, or to act
    greedily. Where single actions undo each other, it leads further (Dabney et al. 2021)."""

    target_period: Count = 1
    """The target network moves after every N gradient steps."""

    tau: Fraction = 0.005
    """Share by which the target network moves towards the trained one each time; 1 copies it."""

    n_step: Count = 1
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

    prioritized: bool = False
    """Draw steps by priority, their last TD error (Schaul et al. 2016)."""

    priority_alpha: Fraction = 0.6
    """Exponent of the priorities, from 0, which is uniform, to 1."""

    priority_beta: Fraction = 0.4
    """Exponent of the importance weights at the beginning; it rises to 1 at the last iteration."""

    max_grad_norm: Positive = 10.0
    """Greatest norm of a gradient; longer ones are scaled down to it."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.rainbow:
            changes: dict[str, Any] = {"double": True, "dueling": True, "prioritized": True}
            changes["n_step"] = 3 if self.n_step == 1 else self.n_step
            changes["distribution"] = "c51" if self.distribution == "none" else self.distribution
            for name, value in changes.items():
                object.__setattr__(self, name, value)  # the dataclass is frozen
        if self.distribution == "c51" and self.atoms < 2:
            refuse("atoms", "at least 2 with C51", self.atoms)
        if self.lowest_return >= self.highest_return:
            refuse("lowest_return", f"less than {self.highest_return}", self.lowest_return)
