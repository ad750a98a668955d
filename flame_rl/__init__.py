"""Actor-learner reinforcement learning on Flame Runner.

    from flame_rl import Policy, TrainConfig, Trainer

Importing this package alone imports nothing else: an executor imports `flame_rl.actor` where
neither torch nor the learner's part of the package is installed.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flame_rl.run.policy import Policy
    from flame_rl.run.trainer import Trainer
    from flame_rl.settings.config import TrainConfig

__version__ = "0.1.0"

# Looked up where they are asked for.
_MODULES = {
    "Policy": "flame_rl.run.policy",
    "TrainConfig": "flame_rl.settings.config",
    "Trainer": "flame_rl.run.trainer",
}

__all__ = ["Policy", "TrainConfig", "Trainer"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
