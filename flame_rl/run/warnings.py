"""Warnings about a run and its environment, before the first episode."""

from __future__ import annotations

from gymnasium import spaces

from flame_rl.actor.environments.actions import MAX_BOUND, has_bounds
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.groups import PolicyGradient
from flame_rl.wire.messages import EnvironmentSpec


def environment_warnings(config: TrainConfig, spec: EnvironmentSpec) -> list[str]:
    """What a run's user should know of time limits and the bounds of actions."""
    return _time_limit_warnings(config, spec) + _bounds_warnings(config, spec)


def _time_limit_warnings(config: TrainConfig, spec: EnvironmentSpec) -> list[str]:
    warnings = []
    wanted, limit = config.experiment.max_episode_steps, spec.time_limit
    if wanted is not None and limit is not None and limit < wanted:
        warnings.append(
            f"--max-episode-steps: {wanted} has no effect: {spec.env_id} has a time limit of "
            f"{limit} steps in its own code; change it there"
        )
    if config.experiment.evaluate_every is not None and limit is None:
        warnings.append(
            f"--evaluate-every: Gymnasium knows no time limit of {spec.env_id}, and without "
            "exploration an episode may never end; --max-episode-steps sets one"
        )
    return warnings


def _bounds_warnings(config: TrainConfig, spec: EnvironmentSpec) -> list[str]:
    space = spec.action_space
    if not isinstance(space, spaces.Box) or has_bounds(space).all():
        return []
    unbounded = int((~has_bounds(space)).sum())
    effect = f"the actions of {config.algorithm.title} never leave -1 to 1"
    if isinstance(config.algorithm, PolicyGradient):
        effect = "exploration begins with a standard deviation of exp(--initial-log-std)"
    return [
        f"the action space of {spec.env_id}: {unbounded} of {space.low.size} numbers have no "
        f"bounds below {MAX_BOUND:,.0f}, and {effect} in their own units. Bounds in the "
        "environment are better: actions are scaled to them"
    ]
