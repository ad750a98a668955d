"""Settings of behaviour cloning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from flame_rl.settings.algorithms import AlgorithmSettings
from flame_rl.settings.checks import Count, LogStd, Positive, SquashedStd
from flame_rl.settings.groups import Cloning


@dataclass(frozen=True)
class BCSettings(Cloning, AlgorithmSettings):
    """Settings of behaviour cloning (Pomerleau 1991), from --demonstrations alone."""

    frame: ClassVar[str] = "flame_rl.learner.demonstrations.cloning:imitation"
    learner = "flame_rl.learner.algorithms.bc:bc"
    presets: ClassVar = {
        # The episodes of an iteration only say how good the policy is.
        "": {
            "iterations": 20,
            "episodes_per_iter": 10,
            "hidden_sizes": (256, 256),
            "activation": "relu",
        },
    }

    learning_rate_decay: bool = True

    clone_epochs: Count = 10

    max_grad_norm: Positive = 1.0
    """Greatest norm of a gradient; longer ones are scaled down to it."""

    normalize_observations: bool = True
    """Normalise observations to mean 0 and standard deviation 1, over the demonstrations."""

    policy: Literal["gaussian", "squashed", "deterministic"] = "gaussian"
    """Policy of real-valued actions: a Gaussian; one that tanh squashes, as sac has it; or one
    action for each observation, as ddpg and td3 have it, which learns by squared error."""

    initial_log_std: LogStd = -0.5
    """Logarithm of the initial standard deviation of a Gaussian's actions."""

    initial_std: SquashedStd = 1.0
    """About the initial standard deviation of a squashed Gaussian's actions, before tanh."""
