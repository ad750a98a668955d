"""Checkpoints, the state of a run in a file: which to read, and which are written and kept.

It is `MAGIC`, the SHA-256 of all that follows, and a message of `flame_rl.wire`: a JSON header and
a safetensors block with weights and optimiser, and no random state, which follows from seed and
iteration. Nothing is pickled."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy

from flame_rl.learner.state import part_of
from flame_rl.run.folder import BEST_NAME, CHECKPOINTS_NAME, STARTS_NAME, library_versions
from flame_rl.run.results import IterationResult, Number, RunState, Totals
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import RunError, UsageError
from flame_rl.system.files import open_regular, refused_as, write_atomically
from flame_rl.wire.codec import starts_to_arrays, take_starts
from flame_rl.wire.fields import WireError, from_data, to_data
from flame_rl.wire.messages import EnvironmentSpec
from flame_rl.wire.packing import pack_buffers, unpack

if TYPE_CHECKING:
    from flame_rl.run.trainer import Trainer

MAGIC = b"flameCP1"
FORMAT = 6
_TABLE = "table "  # begins the name of a table among the arrays
_TABLE_BYTES = 1 << 26  # what a table may unpack to, beyond a hundred times its size
# In the header, the fields of `Totals` but for the starts of fragments, which are arrays.
_COUNTS = ("iterations", "episodes", "env_steps", "length_mean", "mean_return")


class CheckpointError(ValueError):
    """A file is not a sound checkpoint; the message names it."""


@dataclass(frozen=True)
class Checkpoint(RunState):
    """Everything that a run needs to resume. `score` is the mean return of the last iteration, or
    of the best; `spec` describes the environment, so that the networks can be made without it;
    `tables` has the text of the CSV files, by name. A file of `Trainer.save` has no score and no
    tables."""

    score: Number | None
    spec: EnvironmentSpec
    config: dict[str, Any]
    versions: dict[str, str]
    tables: dict[str, bytes]


def refused_by_the_disk(path: Path) -> AbstractContextManager[None]:
    """Within the block, an OSError becomes a RunError about this checkpoint."""
    remedy = "Earlier checkpoints are untouched; once it can be written, go on with --resume"
    return refused_as(RunError, f"the checkpoint {path} could not be written", f". {remedy}")


def encode_checkpoint(
    state: RunState,
    score: float | None,
    spec: EnvironmentSpec,
    config: TrainConfig,
    tables: dict[str, bytes] | None = None,
) -> bytes:
    """The bytes of a checkpoint; see `Checkpoint` for the arguments."""
    header = {
        "format": FORMAT,
        **{name: getattr(state.totals, name) for name in _COUNTS},
        "score": score,
        "spec": to_data(spec),
        "config": config.to_data(),
        "versions": library_versions(),
        "networks_file": state.networks_file,
    }
    compressed = {_TABLE + name: zlib.compress(text) for name, text in (tables or {}).items()}
    texts = {name: np.frombuffer(text, np.uint8) for name, text in compressed.items()}
    starts = starts_to_arrays(state.totals.starts)
    body = pack_buffers("checkpoint", header, state.learner | texts | starts)
    checksum = hashlib.sha256()
    for buffer in body:
        checksum.update(buffer)
    return b"".join([MAGIC, checksum.digest(), *body])


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises CheckpointError if it is torn, altered or something else."""
    try:
        with open_regular(path) as file:
            # A huge file that is not a checkpoint is not read to its end.
            if file.read(len(MAGIC)) != MAGIC:
                raise WireError("not a checkpoint")
            checksum, body = file.read(hashlib.sha256().digest_size), file.read()
        if hashlib.sha256(body).digest() != checksum:
            raise WireError("the checksum does not match; the file is damaged")
        return _decode(memoryview(body))
    except (OSError, WireError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _decode(body: memoryview) -> Checkpoint:
    header, arrays = unpack(body, "checkpoint")
    if (found := header.pop("format", None)) != FORMAT:  # first: another one has other fields
        raise WireError(f"written by another version of flame_rl, in format {found!s:.40}")
    tables, starts = {}, take_starts(arrays)
    for name, array in list(arrays.items()):
        if name.startswith(_TABLE):
            tables[name.removeprefix(_TABLE)] = _read_table(arrays.pop(name))
        elif array.dtype.kind == "f" and not np.isfinite(array).all():
            raise WireError(f"{name}: not finite")
    counts = {name: header.pop(name, None) for name in _COUNTS}  # older ones have no mean return
    totals = from_data(Totals, counts, starts=starts)
    return from_data(Checkpoint, header, totals=totals, learner=arrays, tables=tables)


def _read_table(array: np.ndarray) -> bytes:
    reader = zlib.decompressobj()
    with contextlib.suppress(zlib.error):
        text = reader.decompress(array.tobytes(), _TABLE_BYTES + 100 * array.size)
    if not reader.eof:
        raise WireError("a table: damaged, or too large")
    return text


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints that a run wrote into a folder, named for their iterations, newest first."""
    own = [path for path in folder.glob("*.ckpt") if re.fullmatch(r"\d{8,}", path.stem)]
    return sorted(filter(Path.is_file, own), key=lambda path: int(path.stem), reverse=True)


def checkpoints_of(folder: Path) -> list[Path]:
    """The checkpoints of a run, in the order in which they are tried: the best comes last."""
    best = folder / CHECKPOINTS_NAME / BEST_NAME
    return list_checkpoints(folder / CHECKPOINTS_NAME) + [best] * best.exists()


def find_checkpoint(path: Path, best: bool = False) -> tuple[Checkpoint, list[str]]:
    """The newest sound checkpoint of a run folder, or its best, or a checkpoint file; and warnings
    of what is wrong with newer ones. Raises UsageError if there is none."""
    file = path / CHECKPOINTS_NAME / BEST_NAME if best and path.is_dir() else path
    if not file.is_dir():
        try:
            return read_checkpoint(file), []
        except CheckpointError as error:
            raise UsageError(f"{error}. Name a run folder, or a checkpoint in one") from error
    damaged = []
    for file in checkpoints_of(path):
        try:
            checkpoint = read_checkpoint(file)
        except CheckpointError as error:
            damaged.append(str(error))
        else:
            used = f"the checkpoint of iteration {checkpoint.totals.iterations - 1} is used"
            return checkpoint, [f"{damage}; {used}" for damage in damaged]
    remedy = f"name a run that has saved one, or take the version of flame_rl in {STARTS_NAME}"
    hint = f"{path} holds no sound checkpoint in {CHECKPOINTS_NAME}/; {remedy}"
    raise UsageError("\n".join([hint, *damaged]))


class Checkpointer:
    """Saves a run's state every N iterations, and when asked to; and the best: the policy of the
    best evaluation, or without evaluations the one that collected the best mean return of training,
    from before that iteration's update, or with `overlap` one update earlier. Where the run goes on
    from before the best, that is found anew."""

    def __init__(self, folder: Path, trainer: Trainer, tables: Mapping[str, bytearray]) -> None:
        """`tables` has, by file name, all text of each CSV file, also what is not on disk yet."""
        self._folder = folder / CHECKPOINTS_NAME
        self._best_path = self._folder / BEST_NAME
        self._trainer, self._tables = trainer, tables
        self._lengths = tuple(map(len, tables.values()))
        self._score: float | None = None  # of the latest iteration; None once it is saved
        self.best = -math.inf, 0  # the best mean return and its iteration
        # The best state and the tables' lengths then, while it is not on disk.
        self._better: tuple[RunState, tuple[int, ...]] | None = None
        self._needed: dict[Path, int] = {}  # the first replayed episode that each kept file needs
        with contextlib.suppress(CheckpointError):  # none yet, or a damaged one
            best = read_checkpoint(self._best_path)
            if best.score is not None and best.totals.iterations <= trainer.totals.iterations:
                evaluated = trainer.config.experiment.evaluate_every is not None
                self.best = best.score, best.totals.iterations - evaluated

    def begin(self) -> None:
        """Save the state before the first iteration. Raises RunError if the disk refuses."""
        self._write(self._folder / f"{0:08d}.ckpt", self._latest(), self._lengths, None)

    def report(self, result: IterationResult) -> None:
        """Call after every iteration. Raises RunError if the disk refuses."""
        config, before = self._trainer.config, self._lengths
        self._lengths, self._score = tuple(map(len, self._tables.values())), result.reward_mean
        every, done = config.experiment.evaluate_every, result.iteration + 1
        if every is None and result.reward_mean > self.best[0]:
            self.best = result.reward_mean, result.iteration
            self._better = with_collector(self._trainer.before), before
        # The last policy is evaluated in any case, and is not the last in a longer run.
        if every is not None and done % every == 0 and result.evaluation.reward_mean > self.best[0]:
            self.best = result.evaluation.reward_mean, result.iteration
            self._better = self._latest(), self._lengths
            self._save_best()
        if done % config.output.checkpoint_every == 0:
            self.save()

    def save(self) -> None:
        """Save the latest state unless it is saved. Raises RunError if the disk refuses."""
        if self._score is None:
            return
        latest = self._latest()
        path = self._folder / f"{latest.totals.iterations:08d}.ckpt"
        self._write(path, latest, self._lengths, self._score)
        self._score = None
        self._save_best()
        own = list_checkpoints(self._folder)
        # Later ones are of before the run went on from an earlier one.
        done = [each for each in own if int(each.stem) <= latest.totals.iterations]
        kept = done[: self._trainer.config.output.keep_checkpoints]
        with refused_by_the_disk(self._folder):
            for old in set(own) - set(kept):
                old.unlink(missing_ok=True)
            if (replay := self._trainer.replay) is not None:
                self._needed[path] = replay.first_needed(latest.learner)
                for each in set(kept) - self._needed.keys():
                    # Written before the run was resumed. Nobody can resume from a damaged one.
                    with contextlib.suppress(CheckpointError):
                        self._needed[each] = replay.first_needed(read_checkpoint(each).learner)
                self._needed = {each: self._needed[each] for each in kept if each in self._needed}
                replay.forget_before(min(self._needed.values()))

    def _save_best(self) -> None:
        if self._better is not None:
            self._write(self._best_path, *self._better, self.best[0])
            self._better = None

    def _latest(self) -> RunState:
        """The state now, as views: it must be written before the next iteration."""
        trainer, file = self._trainer, self._trainer.learner.networks_file
        return RunState(trainer.totals, trainer.learner.state_dict(), networks_file=file)

    def _write(
        self, path: Path, state: RunState, lengths: tuple[int, ...], score: float | None
    ) -> None:
        texts = zip(self._tables.items(), lengths, strict=True)
        tables = {name: bytes(text[:length]) for (name, text), length in texts}
        spec, config = self._trainer.spec, self._trainer.config
        data = encode_checkpoint(state, score, spec, config, tables)
        with refused_by_the_disk(path):
            self._folder.mkdir(exist_ok=True)  # not its parents: a moved folder is not made again
            write_atomically(path, data)


def with_collector(state: RunState) -> RunState:
    """The state with the policy that collects next in place of the latest one, which is the part
    `policy`, or `shared` where one network is policy and value."""
    part = "shared" if part_of(state.learner, "shared") else "policy"
    collector = part_of(state.learner, "collector")
    own = {f"{part}.{name}": array for name, array in collector.items()}
    return replace(state, learner=state.learner | own)


def save_weights(folder: Path, weights: dict[str, np.ndarray]) -> None:
    """Write weights.safetensors, for any tool. Raises RunError if the disk refuses."""
    path = folder / "weights.safetensors"
    # The format takes no array whose numbers are in another order than their bytes.
    ordered = {name: np.asarray(array, order="C") for name, array in weights.items()}
    with refused_as(RunError, f"{path} could not be written"):
        write_atomically(path, safetensors.numpy.save(ordered))
