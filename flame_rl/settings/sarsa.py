"""Settings of SARSA with a deep network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from flame_rl.settings.checks import (
    Count,
    CountOrZero,
    Fraction,
    Positive,
    UpdatesPerStep,
    check_fields,
)


@dataclass(frozen=True)
class Sarsa:
    """Settings of SARSA (Sutton and Barto 2018, sections 6.4 and 6.6), for discrete actions."""

    title: ClassVar[str] = "SARSA"
    learner: ClassVar[str] = "flame_rl.learner.algorithms.sarsa:sarsa"
    # Values that replace the defaults, by environment id; "" is for all of them.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "": {"hidden_sizes": (256, 256), "activation": "relu", "steps_per_iter": 1000},
        "CartPole-v1": {"iterations": 60, "steps_per_iter": 500, "epsilon_steps": 5_000},
    }

    expected: bool = True
    """Bootstrap the expectation over the next action of the latest policy; if False, the value of
    the action that was taken next."""

    learning_rate: Positive = 1e-3
    """Step size of Adam."""

    learning_rate_decay: bool = False
    """Let the step size fall linearly to 0 at the last iteration."""

    capacity: Count = 10_000
    """Steps of replayed experience; the oldest episodes make way for new ones. Without `expected`,
    targets take the next actions of the policies that played; few steps keep them recent."""

    warm_up_steps: CountOrZero = 1_000
    """Env steps before the first gradient step."""

    batch_size: Count = 128
    """Steps drawn for each gradient step."""

    updates_per_step: UpdatesPerStep = 0.5
    """Gradient steps for each env step."""

    epsilon_start: Fraction = 1.0
    """Probability of a random action at the beginning of the run."""

    epsilon_end: Fraction = 0.02
    """Probability of a random action after `epsilon_steps`."""

    epsilon_steps: CountOrZero = 10_000
    """Env steps in which epsilon falls linearly from its start to its end."""

    tau: Fraction = 0.005
    """Share by which the target network moves towards the trained one in each gradient step."""

    max_grad_norm: Positive = 10.0
    """Greatest norm of a gradient; longer ones are scaled down to it."""

    def __post_init__(self) -> None:
        check_fields(self)
