"""A run's policy in another environment than that of its training, to be evaluated or watched."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from gymnasium import spaces

from flame_rl.run.saved.resume import find_checkpoint
from flame_rl.run.trainer import Trainer
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec


def load_policy(
    path: Path,
    best: bool,
    environment: dict[str, Any],
    stop: threading.Event | None = None,
    **changes: Any,
) -> Trainer:
    """A Trainer with the policy of a run, in its environment or in another one, which is not to be
    trained.

    Args:
        path, best, stop, changes: as in `Trainer.load`.
        environment: new values of `env`, `env_kwargs` and `wrapper`; what is None or empty is the
            run's, but another `env` has none of its arguments.

    Raises:
        UsageError: as `Trainer.load`; or the other environment has other spaces.
    """
    given = {name: value for name, value in environment.items() if value}
    if not given:
        return Trainer.load(path, best, stop=stop, **changes)
    checkpoint, warnings = find_checkpoint(path, best)
    if "env" in given:
        given = {"env_kwargs": ()} | given
    config = TrainConfig.from_data(checkpoint.config).changed(**given, **changes)
    trainer = Trainer(config, stop=stop, reports=True)
    try:
        _refuse_other_spaces(checkpoint.spec, trainer.spec)
        trainer.take_up(checkpoint, path)
    except BaseException:
        trainer.close()
        raise
    trainer.warnings = warnings
    return trainer


def _refuse_other_spaces(trained: EnvironmentSpec, here: EnvironmentSpec) -> None:
    """Raise UsageError unless a policy that was trained in one can act in the other. Bounds may
    differ: actions are scaled to those that are there."""
    pairs = {
        "observes": (trained.observation_space, here.observation_space),
        "takes actions of": (trained.action_space, here.action_space),
    }
    for does, (then, now) in pairs.items():
        if _form(then) != _form(now):
            raise UsageError(
                f"--env: the policy was trained in {trained.env_id} and {does} {then}; "
                f"{here.env_id} has {now}. Name an environment with the same spaces, or a wrapper "
                "that makes them so; main.py --env … --from RUN trains in another one"
            )
    if trained.masked != here.masked:
        which = [spec.env_id for spec in (trained, here) if spec.masked]
        raise UsageError(
            f"--env: of {trained.env_id} and {here.env_id}, only {which[0]} has action masks; name "
            "an environment that has them as in training"
        )


def _form(space: spaces.Space) -> object:
    """All of a space but its bounds, to be compared."""
    match space:
        case spaces.Dict():
            # In their order, which is that of the network's inputs.
            return [(name, _form(each)) for name, each in space.items()]
        case spaces.Tuple():
            return [_form(each) for each in space]
        case spaces.Discrete():
            return "Discrete", int(space.n)
        case spaces.MultiDiscrete():
            return "MultiDiscrete", space.nvec.tolist()
    return type(space).__name__, space.shape, str(space.dtype)
