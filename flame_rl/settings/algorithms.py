"""The algorithms by name; `flame_rl.settings.NAME` holds the settings of each."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, ClassVar

from flame_rl.settings.checks import LearningRate, check_fields, refuse

# Each algorithm's name, which is also its module in this folder, and its settings' class there.
ALGORITHMS = {
    "reinforce": "ReinforceSettings",
    "a2c": "A2CSettings",
    "ppo": "PPOSettings",
    "dqn": "DQNSettings",
    "sarsa": "SarsaSettings",
    "successor": "SuccessorSettings",
    "r2d2": "R2D2Settings",
    "impala": "ImpalaSettings",
    "ddpg": "DDPGSettings",
    "td3": "TD3Settings",
    "sac": "SACSettings",
    "bc": "BCSettings",
}


@dataclass(frozen=True)
class AlgorithmSettings:
    """What every algorithm's settings have. Each field is a flag; the groups in `groups` add those
    that several algorithms share, and an algorithm its own, or another default.

    Attributes:
        learner: "module:function", or class, of the algorithm.
        frame: "module:function" of what feeds it, from fresh episodes or from replay; a group says
            which.
        presets: values that replace the defaults, by environment id; "" is for every environment.
            Fields of `Experiment` may be among them. Where no reason is given, they were the best
            of a few that were tried with seeds 0 to 2.
        may_change: fields of `Experiment` that a trained policy may be given anew.
        overlap: whether the next iteration's episodes are collected during an update.
        shared_torso: whether policy and values share layers.
    """

    learner: ClassVar[str]
    frame: ClassVar[str]
    presets: ClassVar[dict[str, dict[str, Any]]]
    may_change: ClassVar[tuple[str, ...]] = ()
    overlap: ClassVar[bool] = False
    shared_torso: ClassVar[bool] = False

    learning_rate: LearningRate = 1e-3
    """Step size of Adam."""

    learning_rate_decay: bool = False
    """Let step sizes fall linearly to 0 at the end of the run: the last of N iterations has 1/N."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def name(self) -> str:
        """The algorithm's name on the command line."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def title(self) -> str:
        """The algorithm's name as people write it: most are abbreviations."""
        return self.name.upper()


def settings_class(algorithm: str) -> type[AlgorithmSettings]:
    """The class of an algorithm's settings. Raises UsageError for an unknown name."""
    if algorithm not in ALGORITHMS:
        refuse("algorithm", " or ".join(ALGORITHMS), algorithm)
    module = importlib.import_module(f"flame_rl.settings.{algorithm}")
    return getattr(module, ALGORITHMS[algorithm])
