"""The algorithms by name; `flame_rl.settings.NAME` holds the settings of each."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar, Protocol

# Each algorithm's name, which is also its module in this folder, and its settings' class there.
ALGORITHMS = {
    "reinforce": "Reinforce",
    "a2c": "A2C",
    "ppo": "PPO",
    "dqn": "DQN",
    "sarsa": "Sarsa",
    "successor": "Successor",
    "r2d2": "R2D2",
    "impala": "Impala",
    "ddpg": "DDPG",
    "td3": "TD3",
    "sac": "SAC",
}


class AlgorithmSettings(Protocol):
    """A frozen dataclass of an algorithm's flags, with the defaults that suit most environments.

    Attributes:
        title: the algorithm's name as people write it.
        learner: "module:function"; the function makes the algorithm's learner.
        presets: values that replace the defaults, by environment id; "" is for every environment.
            Fields of `Experiment` may be among them.
    """

    title: ClassVar[str]
    learner: ClassVar[str]
    presets: ClassVar[dict[str, dict[str, Any]]]


def settings_class(algorithm: str) -> type[AlgorithmSettings]:
    """The class of an algorithm's settings. Raises KeyError for an unknown name."""
    module = importlib.import_module(f"flame_rl.settings.{algorithm}")
    return getattr(module, ALGORITHMS[algorithm])


def algorithm_name(settings: AlgorithmSettings) -> str:
    """The name of the algorithm that these settings belong to."""
    return type(settings).__module__.rpartition(".")[2]
