"""A policy from disk: of a run folder or of a checkpoint file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

import model
from flame_rl.learner.learner import Learner
from flame_rl.run.checkpoint import (
    BEST_NAME,
    Checkpoint,
    CheckpointError,
    load,
    load_newest,
    load_state,
)
from flame_rl.run.folder import CHECKPOINTS_NAME
from flame_rl.run.loop import Totals
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec, PolicySnapshot


@dataclass(frozen=True)
class Saved:
    """A policy as it was saved, ready to act.

    Attributes:
        config: of the run, presets filled in.
        env_id: the Gymnasium id.
        spec: what the networks were made for.
        snapshot: what acts in NumPy.
        policy: the same as a torch module, in evaluation mode.
        totals: what of the run had been done.
        warnings: for the user: newer checkpoints that are damaged.
    """

    config: TrainConfig
    env_id: str
    spec: EnvironmentSpec
    snapshot: PolicySnapshot
    policy: nn.Module
    totals: Totals
    warnings: tuple[str, ...]


def load_saved(path: Path, best: bool = False) -> Saved:
    """The policy of a run folder's newest sound checkpoint, or of its best, or of one file.

    Raises:
        UsageError: there is none, it is damaged, or it does not fit the networks in model.py.
    """
    checkpoint, warnings = find_checkpoint(path, best)
    config = TrainConfig.from_values(checkpoint.config)
    policy, value = model.make_networks(checkpoint.spec, config)
    learner = Learner(config, policy, value)
    load_state(learner, checkpoint, path)
    return Saved(
        config=config,
        env_id=checkpoint.spec.env_id,
        spec=checkpoint.spec,
        snapshot=learner.snapshot(),
        policy=policy.eval(),
        totals=checkpoint.totals,
        warnings=tuple(warnings),
    )


def find_checkpoint(path: Path, best: bool = False) -> tuple[Checkpoint, list[str]]:
    """As in `load_saved`; also warnings of what is wrong with newer checkpoints."""
    file = path / CHECKPOINTS_NAME / BEST_NAME if best and path.is_dir() else path
    try:
        if not file.is_dir():
            return load(file), []
    except CheckpointError as error:
        raise UsageError(
            f"{error}. Name a run folder or a checkpoint, runs/…/{CHECKPOINTS_NAME}/….ckpt"
        ) from error
    checkpoint, warnings = load_newest(path)
    if checkpoint is None:
        raise UsageError(
            f"{path} holds no sound checkpoint in {CHECKPOINTS_NAME}/; name the folder of a run "
            "that has saved one, or a checkpoint file" + "".join(f"\n{text}" for text in warnings)
        )
    return checkpoint, warnings
