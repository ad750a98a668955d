"""Settings of recurrent deep Q-learning."""

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
class R2D2:
    """Settings of deep Q-learning with a memory (Kapturowski et al. 2019), for discrete actions."""

    title: ClassVar[str] = "R2D2"
    learner: ClassVar[str] = "flame_rl.learner.algorithms.r2d2:r2d2"
    # Values that replace the defaults, by environment id; "" is for all of them.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "": {"memory": "lstm", "steps_per_iter": 1000},
        "CartPole-v1": {"iterations": 60, "steps_per_iter": 500, "epsilon_steps": 5_000},
    }

    learning_rate: Positive = 1e-3
    """Step size of Adam."""

    learning_rate_decay: bool = False
    """Let the step size fall linearly to 0 at the last iteration."""

    capacity: Count = 100_000
    """Steps of replayed experience; the oldest episodes make way for new ones."""

    warm_up_steps: CountOrZero = 1_000
    """Env steps before the first gradient step."""

    batch_size: Count = 32
    """Sequences drawn for each gradient step."""

    sequence_length: Count = 20
    """Steps of a sequence that are learned from."""

    burn_in: CountOrZero = 20
    """Steps before these that only bring the memory up to date, from an empty one; a sequence from
    an episode's first step needs none, and is learned from whole."""

    updates_per_step: UpdatesPerStep = 0.1
    """Gradient steps for each env step."""

    epsilon_start: Fraction = 1.0
    """Probability of a random action at the beginning of the run."""

    epsilon_end: Fraction = 0.05
    """Probability of a random action after `epsilon_steps`."""

    epsilon_steps: CountOrZero = 10_000
    """Env steps in which epsilon falls linearly from its start to its end."""

    tau: Fraction = 0.02
    """Share by which the target network moves towards the trained one in each gradient step."""

    max_grad_norm: Positive = 10.0
    """Greatest norm of a gradient; longer ones are scaled down to it."""

    def __post_init__(self) -> None:
        check_fields(self)
