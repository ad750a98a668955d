"""Hyper-parameters by algorithm and environment. A flag always wins over what stands here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flame_rl.config import TrainConfig

Preset = dict[str, Any]

# For any environment.
ALGORITHMS: dict[str, Preset] = {
    "reinforce": {
        "learning_rate": 1e-2,
        "value_learning_rate": 1e-3,
        "learning_rate_decay": False,
        "gae_lambda": 1.0,
        "baseline": "none",
        "normalize_observations": False,
        "epochs": 1,
        "value_epochs": 5,
        "minibatch_size": 0,
        "value_minibatch_size": 256,
        "clip_range": 0.2,
        "recompute_advantages": False,
        "max_kl": 0.1,
        "entropy_coefficient": 0.0,
        "max_grad_norm": 1.0,
        "initial_log_std": -0.5,
    },
}
ALGORITHMS["a2c"] = ALGORITHMS["reinforce"] | {
    "learning_rate": 7e-4,
    "learning_rate_decay": True,
    "gae_lambda": 0.95,
    "baseline": "value",
    "normalize_observations": True,
    "minibatch_size": 256,
    "max_grad_norm": 0.5,
}
ALGORITHMS["ppo"] = ALGORITHMS["a2c"] | {
    "learning_rate": 3e-4,
    "value_learning_rate": 3e-4,
    "epochs": 10,
    "minibatch_size": 64,
    "value_minibatch_size": 64,
}

# On top of those.
ENVIRONMENTS: dict[tuple[str, str], Preset] = {}


def with_presets(config: TrainConfig, env_id: str) -> TrainConfig:
    """Fill in what the configuration leaves open."""
    preset = ALGORITHMS[config.algorithm] | ENVIRONMENTS.get((config.algorithm, env_id), {})
    return replace(
        config, **{name: value for name, value in preset.items() if getattr(config, name) is None}
    )
