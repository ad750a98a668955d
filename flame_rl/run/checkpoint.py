"""A checkpoint: the state of a run in a file; and which of a run's checkpoints to read.

It is `MAGIC`, the SHA-256 of all that follows, and a message of `flame_rl.wire`: a JSON header and
a safetensors block with weights and optimiser. Nothing is pickled. Random state is not in it: that
follows from seed and iteration.
"""

import contextlib
import hashlib
import re
import sys
import zlib
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import safetensors.numpy

from flame_rl.run.folder import BEST_NAME, CHECKPOINTS_NAME, STARTS_NAME, library_versions
from flame_rl.run.results import RunState, Totals
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import RunError, UsageError
from flame_rl.system.files import open_regular, refused_as, write_atomically
from flame_rl.wire.codec import starts_to_arrays, take_starts
from flame_rl.wire.fields import Whole, WireError, Within, from_data, to_data
from flame_rl.wire.messages import EnvironmentSpec, Start
from flame_rl.wire.packing import pack_buffers, unpack

MAGIC = b"flameCP1"
FORMAT = 6
WEIGHTS_NAME = "weights.safetensors"
# Names that a run gives its checkpoints.
_OWN_NAME = re.compile(r"\d{8,}\.ckpt")
_HASH_BYTES = 32
# Begins the name of a table among the arrays.
_TABLE = "table "
# What a table may unpack to, beyond a hundred times its size.
_TABLE_BYTES = 1 << 26
Number = Annotated[float, Within(-sys.float_info.max, sys.float_info.max, "finite")]


class CheckpointError(ValueError):
    """A file is not a sound checkpoint; the message names it."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a run needs to resume.

    Attributes:
        score: the mean return of the last iteration, or what made it the best; None in a file of
            `Trainer.save`.
        spec: describes the environment, so that the networks can be made without it.
        config: `TrainConfig.to_data`.
        versions: see `library_versions`.
        learner: the learner's state by name.
        tables: the text of the run's CSV files, by file name; none in a file of `Trainer.save`.
        all others: see `Totals`.
    """

    iterations: Whole
    episodes: Whole
    env_steps: Whole
    length_mean: Number
    score: Number | None
    spec: EnvironmentSpec
    config: dict[str, Any]
    versions: dict[str, str]
    learner: dict[str, np.ndarray]
    tables: dict[str, bytes]
    mean_return: Number | None = None
    starts: dict[int, Start] = field(default_factory=dict)

    @property
    def totals(self) -> Totals:
        """How far the run was."""
        return Totals(**{each.name: getattr(self, each.name) for each in fields(Totals)})


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
        **{name: value for name, value in vars(state.totals).items() if name != "starts"},
        "score": score,
        "spec": to_data(spec),
        "config": config.to_data(),
        "versions": library_versions(),
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
            checksum, body = file.read(_HASH_BYTES), file.read()
        if hashlib.sha256(body).digest() != checksum:
            raise WireError("the checksum does not match; the file is damaged")
        return _decode(memoryview(body))
    except (OSError, WireError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _decode(body: memoryview) -> Checkpoint:
    header, arrays = unpack(body, "checkpoint")
    # The format comes first: another one has other fields.
    if (found := header.pop("format", None)) != FORMAT:
        raise WireError(f"written by another version of flame_rl, in format {found!s:.40}")
    tables, starts = {}, take_starts(arrays)
    for name, array in list(arrays.items()):
        if name.startswith(_TABLE):
            tables[name.removeprefix(_TABLE)] = _read_table(arrays.pop(name))
        elif array.dtype.kind == "f" and not np.isfinite(array).all():
            raise WireError(f"{name}: not finite")
    return from_data(Checkpoint, header, learner=arrays, tables=tables, starts=starts)


def _read_table(array: np.ndarray) -> bytes:
    reader = zlib.decompressobj()
    with contextlib.suppress(zlib.error):
        text = reader.decompress(array.tobytes(), _TABLE_BYTES + 100 * array.size)
    if not reader.eof:
        raise WireError("a table: damaged, or too large")
    return text


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints that the run itself wrote into a folder, the newest first."""
    own = [path for path in folder.glob("*.ckpt") if _OWN_NAME.fullmatch(path.name)]
    return sorted((path for path in own if path.is_file()), key=iterations_of, reverse=True)


def iterations_of(checkpoint: Path) -> int:
    """The number of iterations that the name of a run's own checkpoint says."""
    return int(checkpoint.stem)


def checkpoints_of(folder: Path) -> list[Path]:
    """The checkpoints of a run, in the order in which they are tried: the best comes last."""
    best = folder / CHECKPOINTS_NAME / BEST_NAME
    return list_checkpoints(folder / CHECKPOINTS_NAME) + [best] * best.exists()


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest sound checkpoint of a run, otherwise the best one; and warnings of what is wrong
    with each that was tried before."""
    damaged = []
    for path in checkpoints_of(folder):
        try:
            checkpoint = read_checkpoint(path)
        except CheckpointError as error:
            damaged.append(str(error))
        else:
            used = f"the checkpoint of iteration {checkpoint.iterations - 1} is used"
            return checkpoint, [f"{damage}; {used}" for damage in damaged]
    return None, damaged


def find_checkpoint(path: Path, best: bool = False) -> tuple[Checkpoint, list[str]]:
    """The newest sound checkpoint of a run folder, or its best, or a checkpoint file; and warnings
    of what is wrong with newer ones. Raises UsageError if there is none."""
    file = path / CHECKPOINTS_NAME / BEST_NAME if best and path.is_dir() else path
    try:
        if not file.is_dir():
            return read_checkpoint(file), []
    except CheckpointError as error:
        raise UsageError(
            f"{error}. Name a run folder or a checkpoint, runs/…/{CHECKPOINTS_NAME}/….ckpt"
        ) from error
    checkpoint, warnings = load_newest(path)
    if checkpoint is None:
        raise UsageError(
            f"{path} holds no sound checkpoint in {CHECKPOINTS_NAME}/; name the folder of a run "
            f"that has saved one, or take the version of flame_rl that {STARTS_NAME} names"
            + "".join(f"\n{warning}" for warning in warnings)
        )
    return checkpoint, warnings


def save_weights(folder: Path, weights: dict[str, np.ndarray]) -> None:
    """Write weights.safetensors, for any tool. Raises RunError if the disk refuses."""
    path = folder / WEIGHTS_NAME
    # The format takes no array whose numbers are in another order than their bytes.
    ordered = {name: np.asarray(array, order="C") for name, array in weights.items()}
    with refused_as(RunError, f"{path} could not be written"):
        write_atomically(path, safetensors.numpy.save(ordered))
