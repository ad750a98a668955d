"""Beginning a run with what another one has learned: its networks, its normalisation and, if asked
for, its replay memory. All else begins anew: optimisers, versions, counters, random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flame_rl.run.saved.checkpoint import Checkpoint
from flame_rl.run.saved.folder import files_of
from flame_rl.run.saved.resume import find_checkpoint
from flame_rl.settings.algorithms import Replay
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError

if TYPE_CHECKING:
    from flame_rl.learner.learner import Learner

# After a run folder: its best checkpoint.
_BEST = "best"


@dataclass(frozen=True)
class Begun:
    """What a run began with.

    Attributes:
        digest: SHA-256 of the other run's state; see `arrays_digest`.
        note: what was taken, in words.
        warnings: what was not, and why.
    """

    digest: str
    note: str
    warnings: list[str]


def begin_from(learner: Learner, config: TrainConfig) -> Begun | None:
    """Give a new learner what fits of the run that `config.experiment.from_` names; None if it
    names none. See `flame_rl.learner.transfer.take`.

    Raises:
        UsageError: there is no sound checkpoint, its state is not that of `from_digest`, nothing of
            it fits, or with `with_replay` its replay memory does not.
    """
    from flame_rl.learner.learner import arrays_digest
    from flame_rl.learner.transfer import take

    path, with_replay = config.experiment.from_, _takes_replay(config)
    if path is None:
        return None
    best = path.name == _BEST and not path.exists() and path.parent.is_dir()
    run = path.parent if best else path
    try:
        checkpoint, damaged = find_checkpoint(run, best)
    except UsageError as error:
        raise UsageError(f"--from: {error}") from error
    digest, whose = arrays_digest(checkpoint.learner), _whose(checkpoint)
    if config.experiment.from_digest not in (None, digest):
        raise UsageError(
            f"--from: {path} has gone on or was replaced: the SHA-256 of its state is {digest}, "
            f"not {config.experiment.from_digest}. Name the checkpoint that the run began with, or "
            "begin a new run without --from-digest"
        )
    taken = take(learner, checkpoint.learner)
    if not taken.parts:
        raise UsageError(
            f"--from: nothing of {path}, {whose}, fits these networks: {'; '.join(taken.left)}. "
            "Give the networks that it has (--hidden-sizes, --memory, --shared-torso), or leave "
            "the flag out"
        )
    if with_replay:
        _take_replay(learner, config, checkpoint, files_of(run))
    names = ", ".join([*taken.parts, *["replay"] * with_replay])
    anew = [f"--from: {reason}; it begins anew" for reason in taken.left]
    if _normalizes(checkpoint.learner) and not _normalizes(learner.state_dict()):
        anew.append(
            f"--from: {path} normalises observations, and this run does not, so that its networks "
            "see other numbers than they know; --normalize-observations True, where "
            f"{config.algorithm_name} has it"
        )
    return Begun(digest, f"Begun with {path}, {whose}: {names}", damaged + anew)


def _takes_replay(config: TrainConfig) -> bool:
    taken = isinstance(config.algorithm, Replay) and config.algorithm.with_replay
    if taken and config.experiment.from_ is None:
        raise UsageError("--with-replay: of which run? --from RUN names it")
    return taken


def _normalizes(state: dict[str, np.ndarray]) -> bool:
    return any("normalizer" in name.split(".") for name in state)


def _whose(checkpoint: Checkpoint) -> str:
    name = TrainConfig.from_data(checkpoint.config).algorithm_name
    return f"{name} on {checkpoint.spec.env_id} after {checkpoint.iterations} iterations"


def _take_replay(
    learner: Learner, config: TrainConfig, checkpoint: Checkpoint, files: Path
) -> None:
    """Add the other run's episodes to the replay memory. The gradient steps that are due for them
    count as taken: what comes is learned from at the usual pace."""
    from flame_rl.learner.off_policy.replay.replay import PART
    from flame_rl.learner.off_policy.update import gradient_steps_due
    from flame_rl.learner.transfer import of_part

    state, replay = of_part(PART, checkpoint.learner), learner.algorithm.files
    if not state:
        raise UsageError(
            f"--with-replay: {_whose(checkpoint)} has no replay memory; leave the flag out"
        )
    try:
        replay.take_over(state, files)
    except (KeyError, ValueError, OSError) as error:
        raise UsageError(f"--with-replay: {files}: {error}") from error
    due = gradient_steps_due(config.algorithm, replay.env_steps, 0)
    learner.algorithm.steps.count = due
