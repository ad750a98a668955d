"""Records: episodes as bytes in a file that only grows, each with a checksum.

A record is `MAGIC`, the length of its body (uint64, little-endian), the digest of the record before
it, its own digest, and the body: a message of `flame_rl.wire.packing`. A digest is the SHA-256 of
the digest before it and the body, so that the last one stands for all records. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from flame_rl.wire.fields import WireError, Within, value_from_data
from flame_rl.wire.messages import Column, Episodes
from flame_rl.wire.packing import Buffer, pack_buffers, unpack

MAGIC = b"flameRP2"
# The digest before the first record.
NO_DIGEST = bytes(hashlib.sha256().digest_size)
_HEAD = struct.Struct("<8sQ32s32s")
_KIND = "replay"
_ABOUT_EPISODES = {"index": "int64", "lengths": "int64", "terminated": "bool", "truncated": "bool"}
# Below 2**63 even with what follows.
_Before = Annotated[int, Within(0, (1 << 62) - 1, "an integer from 0 to 2**62 - 1")]
# Begins the name of a column among a record's arrays.
_COLUMN = "column "


@dataclass(frozen=True)
class Record:
    """Episodes that were appended together.

    Attributes:
        before: number of episodes before these.
        steps_before: number of the steps before these.
        episodes: what was appended.
        end: the byte of the segment at which the record ends.
        previous, digest: see above.
    """

    before: int
    steps_before: int
    episodes: Episodes
    end: int
    previous: bytes
    digest: bytes


def in_bytes(
    before: int, steps_before: int, previous: bytes, episodes: Episodes
) -> tuple[list[Buffer], bytes]:
    """A record in chunks, to be written one after another, and its digest; for the arguments see
    `Record`."""
    header = {"episodes": before, "steps": steps_before}
    arrays = {name: getattr(episodes, name) for name in _ABOUT_EPISODES}
    arrays |= {_COLUMN + name: array for name, array in episodes.columns.items()}
    body = pack_buffers(_KIND, header, arrays)
    hashed = hashlib.sha256(previous)
    for chunk in body:
        hashed.update(chunk)
    digest = hashed.digest()
    return [_HEAD.pack(MAGIC, sum(map(len, body)), previous, digest), *body], digest


def records(path: Path) -> Iterator[Record]:
    """The records of a segment, up to the first one that is torn or damaged. Raises WireError if
    one is sound and of another form."""
    size, end = path.stat().st_size, 0
    with path.open("rb") as file:
        while end + _HEAD.size <= size:
            magic, length, previous, digest = _HEAD.unpack(file.read(_HEAD.size))
            end += _HEAD.size + length
            if magic != MAGIC or end > size:
                return
            body = bytearray(length)
            file.readinto(body)
            hashed = hashlib.sha256(previous)
            hashed.update(body)
            if hashed.digest() != digest:
                return
            before, steps_before, episodes = _content(body)
            yield Record(before, steps_before, episodes, end, previous, digest)


def _content(body: bytearray) -> tuple[int, int, Episodes]:
    """The fields of a `Record` that are in its body; whoever adds the episodes to a store checks
    lengths and columns, and `refuse_wrong_numbers` what is in these."""
    header, arrays = unpack(body, _KIND)
    before, steps_before = (
        value_from_data(_Before, header.get(name), name) for name in ("episodes", "steps")
    )
    count = arrays.get("lengths", np.zeros(0)).shape[:1]
    about = {name: arrays.pop(name, None) for name in _ABOUT_EPISODES}
    for name, dtype in _ABOUT_EPISODES.items():
        array = about[name]
        if array is None or (array.dtype, array.shape) != (dtype, count):
            raise WireError(f"{name}: not {dtype}, one for each episode")
    if not (about["terminated"] | about["truncated"]).all():
        raise WireError("terminated, truncated: an episode ends by one of them")
    columns = {name.removeprefix(_COLUMN): array for name, array in arrays.items()}
    return before, steps_before, Episodes(**about, columns=columns)


def refuse_wrong_numbers(columns: Sequence[Column], episodes: Episodes) -> None:
    """Raise WireError if a number in these columns is not finite, or none of its choices."""
    for column in columns:
        name, array = f"{_COLUMN}{column.name}", episodes.columns[column.name]
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise WireError(f"{name}: not finite")
        column.refuse_other_choices(name, array)


def write_from(path: Path, start: int, chunks: Sequence[Buffer]) -> int:
    """Write the chunks from byte `start` on, where the file then ends; returns that end.

    Raises OSError if the disk refuses; the file then ends at `start`, now or at the next write.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        os.ftruncate(descriptor, start)
        end = start
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                # On a disk that is nearly full, fewer bytes than asked for.
                written = os.pwrite(descriptor, rest, end)
                rest, end = rest[written:], end + written
        return end
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, start)
        raise
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Make a file, or a folder's list of files, outlast a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
