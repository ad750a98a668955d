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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from flame_rl.report.tables import iterations_on_disk
from flame_rl.run.folder import CHECKPOINTS_NAME
from flame_rl.run.loop import IterationResult, Learner, Totals
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import RunError, UsageError
from flame_rl.system.files import write_atomically
from flame_rl.wire import codec, packing
from flame_rl.wire.messages import EnvironmentSpec

MAGIC = b"flameCP1"
FORMAT = 4
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
        score: the mean reward of the last iteration done, or of the evaluation that made it the
            best; None in a file that somebody asked for.
        learner: the learner's state by name.
        spec: of the environment, so that the networks can be made without it.
        config: the configuration, as in config.json.
        versions: of the libraries that decide bits.
    """

    totals: Totals
    score: float | None
    learner: dict[str, Tensor]
    spec: EnvironmentSpec
    config: dict[str, Any]
    versions: dict[str, str]


class Checkpointer:
    """Saves a run's state every so many iterations, and when asked to; and the best, by the score
    of an evaluation where there are evaluations."""

    def __init__(
        self, folder: Path, config: TrainConfig, spec: EnvironmentSpec, learner: Learner
    ) -> None:
        self._folder = folder / CHECKPOINTS_NAME
        self._config = config
        self._spec = spec
        self._learner = learner
        self._unsaved: IterationResult | None = None
        self._best = -math.inf
        with contextlib.suppress(CheckpointError):  # none yet, or one that is worth nothing
            score = load(self._folder / BEST_NAME).score
            self._best = self._best if score is None else score

    def report(self, result: IterationResult) -> None:
        """Call after every update. Raises RunError if the disk refuses."""
        self._unsaved = result
        if result.evaluation is not None:
            with refused_by_the_disk(self._folder / BEST_NAME):
                self._keep_if_best(result, result.evaluation.reward_mean)
        if (result.iteration + 1) % self._config.checkpoint_every == 0:
            self.save()

    def save(self) -> None:
        """Save the latest state unless it is saved. Raises RunError if the disk refuses."""
        result = self._unsaved
        if result is None:
            return
        path = self._folder / f"{result.totals.iterations:08d}.ckpt"
        with refused_by_the_disk(path):
            self._write(path.name, result, result.reward_mean)
            if self._config.evaluate_every is None:
                self._keep_if_best(result, result.reward_mean)
            # Newer ones can only be damaged: this run was taken up from before them.
            kept = [file for file in numbered(self._folder) if file.name <= path.name]
            for file in set(numbered(self._folder)) - set(kept[: self._config.keep_checkpoints]):
                file.unlink()
        self._unsaved = None

    def _keep_if_best(self, result: IterationResult, score: float) -> None:
        if score > self._best:
            self._write(BEST_NAME, result, score)
            self._best = score

    def _write(self, name: str, result: IterationResult, score: float) -> None:
        state = self._learner.state_dict()
        save(self._folder / name, encode(result.totals, score, state, self._spec, self._config))


def save(path: Path, data: bytes) -> None:
    """Write a checkpoint, making its folder. Raises OSError if the disk refuses."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)


@contextlib.contextmanager
def refused_by_the_disk(path: Path) -> Iterator[None]:
    """Within the block, an OSError becomes a RunError about this checkpoint."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"the checkpoint {path} could not be written: {error}. Earlier checkpoints are "
            "untouched; make room and go on with --resume"
        ) from error


def encode(
    totals: Totals,
    score: float | None,
    learner: dict[str, Tensor],
    spec: EnvironmentSpec,
    config: TrainConfig,
) -> bytes:
    """The bytes of a checkpoint."""
    header = {
        "format": FORMAT,
        "iterations": totals.iterations,
        "episodes": totals.episodes,
        "env_steps": totals.env_steps,
        "length_mean": totals.length_mean,
        "score": score,
        "spec": codec.spec_data(spec),
        "config": json.loads(config.to_json()),
        "versions": _versions(),
    }
    body = packing.pack("checkpoint", header, {name: t.numpy() for name, t in learner.items()})
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
        header, arrays = packing.unpack(body, "checkpoint")
    except packing.WireError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{path}: format {header.get('format')}, not {FORMAT}")
    counts = [header.get(name) for name in ("iterations", "episodes", "env_steps")]
    if any(type(count) is not int or count < 0 for count in counts):
        raise CheckpointError(f"{path}: iterations, episodes, env_steps: not counts: {counts}")
    for name in ("score", "length_mean"):
        value = header.get(name, "missing")
        if name == "score" and value is None:
            continue
        if not isinstance(value, float) or not math.isfinite(value):
            raise CheckpointError(f"{path}: {name}: not a finite number")
    for name in ("config", "spec", "versions"):
        if not isinstance(header.get(name), dict):
            raise CheckpointError(f"{path}: {name}: missing")
    try:
        spec = codec.read_spec(header["spec"])
    except packing.WireError as error:
        raise CheckpointError(f"{path}: spec: {error}") from error
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CheckpointError(f"{path}: {name}: not finite")
    return Checkpoint(
        totals=Totals(*counts, header["length_mean"]),
        score=header["score"],
        # A copy, because torch must be able to write to it.
        learner={name: torch.from_numpy(array.copy()) for name, array in arrays.items()},
        spec=spec,
        config=header["config"],
        versions=header["versions"],
    )


def load_newest(folder: Path, most: float = math.inf) -> tuple[Checkpoint | None, list[str]]:
    """The newest sound checkpoint of a run with at most so many iterations, otherwise the best one,
    and warnings of what is wrong with each that was tried before."""
    damaged = []
    best = folder / CHECKPOINTS_NAME / BEST_NAME
    for path in [*numbered(folder / CHECKPOINTS_NAME), *([best] if best.exists() else [])]:
        try:
            checkpoint = load(path)
        except CheckpointError as error:
            damaged.append(str(error))
            continue
        if checkpoint.totals.iterations <= most:
            used = f"the checkpoint of iteration {checkpoint.totals.iterations - 1} is used"
            return checkpoint, [f"{damage}; {used}" for damage in damaged]
        damaged.append(f"{path}: the CSV files end after {most} iterations")
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
    checkpoint, warnings = load_newest(config.resume, iterations_on_disk(config))
    if checkpoint is None:
        return Totals(), [*warnings, "no sound checkpoint: the run begins at the beginning"]
    load_state(learner, checkpoint, config.resume)
    before = checkpoint.config.get("iterations")
    if config.learning_rate_decay and before != config.iterations:
        warnings.append(
            f"learning rates fall to 0 at the last iteration: with {config.iterations} of them in "
            f"place of {before}, results differ from now on"
        )
    now = _versions()
    warnings += [
        f"the run was made with {name} {version}, this is {now.get(name)}: results may differ"
        for name, version in checkpoint.versions.items()
        if now.get(name) != version
    ]
    return checkpoint.totals, warnings


def load_state(learner: Learner, checkpoint: Checkpoint, path: Path) -> None:
    """Bring the learner to where the checkpoint was. Raises UsageError if it does not fit."""
    try:
        learner.load_state_dict(checkpoint.learner)
    except (KeyError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"the checkpoint in {path} does not fit the network in model.py: {error}"
        ) from error


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
