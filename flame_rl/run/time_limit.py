"""Warnings about time limits that are missing or have no effect."""

from __future__ import annotations

from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import EnvironmentSpec


def time_limit_warnings(config: TrainConfig, spec: EnvironmentSpec) -> list[str]:
    """What a run's user should know of the time limit before the first episode."""
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
