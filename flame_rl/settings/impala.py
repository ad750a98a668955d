"""Settings of an actor-critic that learns from replay with V-trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from flame_rl.settings.checks import (
    Count,
    CountOrZero,
    Fraction,
    LogStd,
    NonNegative,
    Positive,
    UpdatesPerStep,
    check_fields,
)


@dataclass(frozen=True)
class Impala:
    """Settings of an actor-critic with V-trace (Espeholt et al. 2018), for any actions."""

    title: ClassVar[str] = "IMPALA"
    learner: ClassVar[str] = "flame_rl.learner.algorithms.impala:impala"
    # Values that replace the defaults, by environment id; "" is for all of them.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "": {"steps_per_iter": 1000},
        "CartPole-v1": {"iterations": 60},
    }

    learning_rate: Positive = 2e-4
    """Step size of the policy's Adam."""

    value_learning_rate: Positive = 1e-3
    """Step size of the value network's Adam."""

    learning_rate_decay: bool = False
    """Let the step sizes fall linearly to 0 at the last iteration."""

    capacity: Count = 20_000
    """Steps of replayed experience; the oldest episodes make way for new ones. V-trace gives little
    weight to what the policy would no longer do, so that much more is of little use."""

    warm_up_steps: CountOrZero = 1_000
    """Env steps before the first gradient step."""

    batch_size: Count = 32
    """Sequences drawn for each gradient step."""

    sequence_length: Count = 20
    """Steps of a sequence."""

    updates_per_step: UpdatesPerStep = 0.05
    """Gradient steps for each env step."""

    trace_lambda: Fraction = 0.95
    """Lambda of V-trace, from 0 (one step and the value after it) to 1 (the whole sequence)."""

    entropy_coefficient: NonNegative = 0.003
    """Weight of the policy's entropy in the objective; above 0 the policy explores for longer."""

    max_grad_norm: Positive = 0.5
    """Greatest norm of a gradient; longer ones are scaled down to it."""

    normalize_observations: bool = True
    """Normalise observations to mean 0 and standard deviation 1, over all observations so far."""

    initial_log_std: LogStd = -0.5
    """Logarithm of the initial standard deviation of continuous actions."""

    def __post_init__(self) -> None:
        check_fields(self)
