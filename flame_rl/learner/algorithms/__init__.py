"""One file per algorithm, to be read from top to bottom; its flags are in flame_rl/settings/.

Here is the table of them. An algorithm is imported when it is made, with what it needs alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flame_rl.settings.algorithms import BCSettings
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.groups import Replay
from flame_rl.wire.messages import EnvironmentSpec

if TYPE_CHECKING:
    from flame_rl.learner.demonstrations.demonstrations import Demonstrations
    from flame_rl.learner.learner import Algorithm
    from flame_rl.learner.off_policy.gradient_step import GradientStep
    from flame_rl.learner.on_policy.update import Update


def make_algorithm(
    config: TrainConfig, spec: EnvironmentSpec, demonstrations: Demonstrations | None
) -> Algorithm:
    """The configured algorithm, with new networks. Raises UsageError where it is not for these
    actions, or not for these settings."""
    name = config.algorithm_name
    if isinstance(config.algorithm, BCSettings):
        from flame_rl.learner.algorithms.bc import bc
        from flame_rl.learner.imitation.update import imitation

        return imitation(config, spec, bc, demonstrations)
    if isinstance(config.algorithm, Replay):
        from flame_rl.learner.off_policy.update import off_policy

        return off_policy(config, spec, _with_replay(name), demonstrations)
    if demonstrations is not None:
        from flame_rl.learner.on_policy.cloned_first import cloned_first

        return cloned_first(config, spec, _on_policy(name), demonstrations)
    from flame_rl.learner.on_policy.update import on_policy

    return on_policy(config, spec, _on_policy(name))


def _on_policy(name: str) -> Update:
    """What improves the networks once, from the episodes of an iteration."""
    match name:
        case "reinforce":
            from flame_rl.learner.algorithms.reinforce import reinforce as update
        case "a2c":
            from flame_rl.learner.algorithms.a2c import a2c as update
        case "ppo":
            from flame_rl.learner.algorithms.ppo import ppo as update
    return update


def _with_replay(name: str) -> Callable[..., GradientStep]:
    """What makes the algorithm's networks and its gradient step."""
    match name:
        case "dqn":
            from flame_rl.learner.algorithms.dqn import DQN as make  # noqa: N811
        case "sarsa":
            from flame_rl.learner.algorithms.sarsa import Sarsa as make  # noqa: N813
        case "successor":
            from flame_rl.learner.algorithms.successor import Successor as make  # noqa: N813
        case "r2d2":
            from flame_rl.learner.algorithms.r2d2 import R2D2 as make  # noqa: N811
        case "impala":
            from flame_rl.learner.algorithms.impala import Impala as make  # noqa: N813
        case "ddpg":
            from flame_rl.learner.algorithms.ddpg import ddpg as make
        case "td3":
            from flame_rl.learner.algorithms.td3 import td3 as make
        case "sac":
            from flame_rl.learner.algorithms.sac import SAC as make  # noqa: N811
    return make
