"""The state of a run on disk, written so that a file is either whole or not there.

A checkpoint is `MAGIC`, the SHA-256 of all that follows, and a message of `flame_rl.wire`: a JSON
header (format, iteration, configuration, library versions) and a safetensors block with weights and
optimiser. Nothing is pickled. Random state is not in it: that follows from seed and iteration.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from flame_rl import wire
from flame_rl.config import TrainConfig
from flame_rl.errors import RunError, UsageError
from flame_rl.files import write_atomically
from flame_rl.report.files import rows_on_disk
from flame_rl.run_folder import CHECKPOINTS_NAME
from flame_rl.train import IterationResult, Learner, Totals

MAGIC = b"flameCP1"
FORMAT = 2
WEIGHTS_NAME = "weights.safetensors"
BEST_NAME = "best.ckpt"
_HASH_BYTES = 32


class CheckpointError(ValueError):
    """A file that is no sound checkpoint; the message names it."""


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on.

    Attributes:
        totals: what had been done.
        score: the mean reward of the last iteration done.
        learner: the learner's state by name.
        config: the configuration, as in config.json.
        versions: of the libraries that decide bits.
    """

    totals: Totals
    score: float
    learner: dict[str, Tensor]
    config: dict[str, Any]
    versions: dict[str, str]


class Checkpointer:
    """Saves a run's state every so many iterations, and when asked to."""

    def __init__(self, folder: Path, config: TrainConfig, learner: Learner) -> None:
        self._folder = folder / CHECKPOINTS_NAME
        self._config = config
        self._learner = learner
        self._unsaved: IterationResult | None = None
        self._best = -math.inf
        with contextlib.suppress(CheckpointError):  # none yet, or one that is worth nothing
            self._best = load(self._folder / BEST_NAME).score

    def report(self, result: IterationResult) -> None:
        """Call after every update. Raises RunError if the disk refuses."""
        self._unsaved = result
        if (result.iteration + 1) % self._config.checkpoint_every == 0:
            self.save()

    def save(self) -> None:
        """Save the latest state unless it is saved. Raises RunError if the disk refuses."""
        result = self._unsaved
        if result is None:
            return
        totals = Totals(result.iteration + 1, result.episodes, result.env_steps, result.length_mean)
        data = encode(totals, result.reward_mean, self._learner.state_dict(), self._config)
        path = self._folder / f"{totals.iterations:08d}.ckpt"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
            if result.reward_mean > self._best:
                write_atomically(self._folder / BEST_NAME, data)
                self._best = result.reward_mean
            # Newer ones can only be damaged: this run was taken up from before them.
            kept = [file for file in numbered(self._folder) if file.name <= path.name]
            for file in set(numbered(self._folder)) - set(kept[: self._config.keep_checkpoints]):
                file.unlink()
        except OSError as error:
            raise RunError(
                f"the checkpoint {path} could not be written: {error}. Earlier checkpoints are "
                "untouched; make room and go on with --resume"
            ) from error
        self._unsaved = None


def encode(totals: Totals, score: float, learner: dict[str, Tensor], config: TrainConfig) -> bytes:
    """The bytes of a checkpoint."""
    header = {
        "format": FORMAT,
        "iterations": totals.iterations,
        "episodes": totals.episodes,
        "env_steps": totals.env_steps,
        "length_mean": totals.length_mean,
        "score": score,
        "config": json.loads(config.to_json()),
        "versions": _versions(),
    }
    body = wire.pack("checkpoint", header, {name: t.numpy() for name, t in learner.items()})
    return MAGIC + hashlib.sha256(body).digest() + body


def load(path: Path) -> Checkpoint:
    """Read one file. Raises CheckpointError if it is torn, altered or something else."""
    try:
        with path.open("rb") as file:
            # Something huge that is no checkpoint is not read.
            data = file.read(len(MAGIC))
            data += file.read() if data == MAGIC else b""
    except OSError as error:
        raise CheckpointError(f"{path}: {error}") from error
    start = len(MAGIC) + _HASH_BYTES
    if data[: len(MAGIC)] != MAGIC:
        raise CheckpointError(f"{path}: not a checkpoint")
    body = memoryview(data)[start:]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : start]:
        raise CheckpointError(f"{path}: the checksum does not match; the file is damaged")
    try:
        header, arrays = wire.unpack(body, "checkpoint")
    except wire.WireError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{path}: format {header.get('format')}, not {FORMAT}")
    counts = [header.get(name) for name in ("iterations", "episodes", "env_steps")]
    if any(type(count) is not int or count < 0 for count in counts):
        raise CheckpointError(f"{path}: iterations, episodes, env_steps: not counts: {counts}")
    for name in ("score", "length_mean"):
        if not isinstance(header.get(name), float) or not math.isfinite(header[name]):
            raise CheckpointError(f"{path}: {name}: not a finite number")
    for name in ("config", "versions"):
        if not isinstance(header.get(name), dict):
            raise CheckpointError(f"{path}: {name}: missing")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CheckpointError(f"{path}: {name}: not finite")
    return Checkpoint(
        totals=Totals(*counts, header["length_mean"]),
        score=header["score"],
        # A copy, because torch must be able to write to it.
        learner={name: torch.from_numpy(array.copy()) for name, array in arrays.items()},
        config=header["config"],
        versions=header["versions"],
    )


def load_newest(folder: Path, most: float = math.inf) -> tuple[Checkpoint | None, list[str]]:
    """The newest sound checkpoint of a run with at most so many iterations, otherwise the best one,
    and what is wrong with each that was tried before."""
    damaged = []
    best = folder / CHECKPOINTS_NAME / BEST_NAME
    for path in [*numbered(folder / CHECKPOINTS_NAME), *([best] if best.exists() else [])]:
        try:
            checkpoint = load(path)
        except CheckpointError as error:
            damaged.append(str(error))
            continue
        if checkpoint.totals.iterations <= most:
            return checkpoint, damaged
        damaged.append(f"{path}: metrics.csv has only {most} rows")
    return None, damaged


def restore(config: TrainConfig, learner: Learner) -> tuple[Totals, list[str]]:
    """Bring the learner of a resumed run to where the run was; a new run begins at the beginning.

    Returns:
        What was done, and warnings for the user.

    Raises:
        UsageError: the newest sound checkpoint is not one of this learner's.
    """
    if config.resume is None:
        return Totals(), []
    checkpoint, warnings = load_newest(config.resume, rows_on_disk(config.resume))
    if checkpoint is None:
        return Totals(), [*warnings, "no sound checkpoint: the run begins at the beginning"]
    used = f"the checkpoint of iteration {checkpoint.totals.iterations - 1} is used"
    warnings = [f"{damage}; {used}" for damage in warnings]
    try:
        learner.load_state_dict(checkpoint.learner)
    except (KeyError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"--resume: the checkpoint in {config.resume} does not fit the network in model.py: "
            f"{error}"
        ) from error
    now = _versions()
    warnings += [
        f"the run was made with {name} {version}, this is {now.get(name)}: results may differ"
        for name, version in checkpoint.versions.items()
        if now.get(name) != version
    ]
    return checkpoint.totals, warnings


def numbered(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the newest first."""
    return sorted(folder.glob("[0-9]*.ckpt"), reverse=True)


def save_weights(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write the weights to weights.safetensors, for any tool that reads such files.

    Raises:
        RunError: the disk refuses.
    """
    path = folder / WEIGHTS_NAME
    data = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
    try:
        write_atomically(path, data)
    except OSError as error:
        raise RunError(f"{path} could not be written: {error}") from error


def load_weights(folder: Path) -> dict[str, Tensor]:
    """The inverse of `save_weights`."""
    return safetensors.torch.load_file(folder / WEIGHTS_NAME)


def _versions() -> dict[str, str]:
    names = ("torch", "numpy", "gymnasium", "mujoco", "safetensors")
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in names
    }
