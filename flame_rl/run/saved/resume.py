"""Resuming a run: which checkpoint to load, whether it fits, and what may differ from before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flame_rl.run.saved.checkpoint import (
    Checkpoint,
    CheckpointError,
    library_versions,
    read_checkpoint,
)
from flame_rl.run.saved.folder import CHECKPOINTS_NAME
from flame_rl.run.saved.retention import BEST_NAME, list_checkpoints
from flame_rl.run.saved.starts import STARTS_NAME
from flame_rl.settings.algorithms import Prioritized
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError

if TYPE_CHECKING:
    from flame_rl.learner.learner import Learner


def find_checkpoint(path: Path, best: bool = False) -> tuple[Checkpoint, list[str]]:
    """The newest sound checkpoint of a run folder, or its best, or a checkpoint file; and warnings
    of what is wrong with newer ones.

    Raises:
        UsageError: there is none, or none that can be used.
    """
    file = path / CHECKPOINTS_NAME / BEST_NAME if best and path.is_dir() else path
    try:
        if not file.is_dir():
            return read_checkpoint(file), []
    except CheckpointError as error:
        raise UsageError(
            f"{error}. Name a run folder or a checkpoint, runs/…/{CHECKPOINTS_NAME}/….ckpt"
        ) from error
    checkpoint, warnings = load_newest(path)
    if checkpoint is not None:
        return checkpoint, warnings
    remedy = "name the folder of a run that has saved one, or a checkpoint file"
    if warnings:
        remedy = (
            f"put back what it was, or take the version of flame_rl that {STARTS_NAME} names. "
            "Nothing was changed:\n" + "\n".join(warnings)
        )
    raise UsageError(f"{path} holds no sound checkpoint in {CHECKPOINTS_NAME}/; {remedy}")


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest sound checkpoint of a run, otherwise the best one; and warnings of what is wrong
    with each that was tried before."""
    damaged = []
    for path in checkpoints_of(folder):
        try:
            checkpoint = read_checkpoint(path)
        except CheckpointError as error:
            damaged.append(str(error))
            continue
        used = f"the checkpoint of iteration {checkpoint.totals.iterations - 1} is used"
        return checkpoint, [f"{damage}; {used}" for damage in damaged]
    return None, damaged


def checkpoints_of(folder: Path) -> list[Path]:
    """The checkpoints of a run, in the order in which they are tried: the best comes last."""
    best = folder / CHECKPOINTS_NAME / BEST_NAME
    return list_checkpoints(folder / CHECKPOINTS_NAME) + [best] * best.exists()


def load_state(learner: Learner, checkpoint: Checkpoint, path: Path) -> None:
    """Load the checkpoint's state into the learner. Raises UsageError if it does not fit."""
    try:
        learner.load_state_dict(checkpoint.learner)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"the checkpoint in {path} does not fit the network in model.py: {error}"
        ) from error


def _length(experiment: dict[str, Any]) -> str:
    """How long a run with these settings is, in words."""
    if experiment.get("env_steps") is not None:
        return f"{experiment['env_steps']} env steps"
    return f"{experiment['iterations']} iterations"


def what_differs(checkpoint: Checkpoint, config: TrainConfig) -> list[str]:
    """Warnings about changes that make results differ from a run that never stopped."""
    warnings, settings = [], config.algorithm
    before, now = _length(checkpoint.config["experiment"]), _length(vars(config.experiment))
    if settings.learning_rate_decay and before != now:
        warnings.append(
            f"learning rates fall to 0 at the end of the run: with {now} in place of {before}, "
            "results differ from now on"
        )
    if isinstance(settings, Prioritized) and settings.prioritized and before != now:
        warnings.append(
            "the exponent of the importance weights rises to 1 at the end of the run: with "
            f"{now} in place of {before}, results differ from now on"
        )
    then = TrainConfig.from_data(checkpoint.config).execution.device
    device = config.execution.device
    if then != device:
        warnings.append(
            f"the run learned with --device {then}, and goes on with --device {device}: results "
            "differ from now on"
        )
    here = library_versions()
    return warnings + [
        f"the run was made with {name} {version}, this is {here.get(name)}: results may differ"
        for name, version in checkpoint.versions.items()
        if here.get(name) != version
    ]
