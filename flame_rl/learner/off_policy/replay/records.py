"""Records: episodes as bytes in a file that only grows, each with a checksum.

A record is `MAGIC`, the length of its body (uint64, little-endian), the SHA-256 of the body, and
the body: a message of `flame_rl.wire.packing`. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flame_rl.wire.fields import Whole, value_from_data
from flame_rl.wire.messages import Episodes
from flame_rl.wire.packing import Buffer, pack_buffers, unpack

MAGIC = b"flameRP1"
_HEAD = struct.Struct("<8sQ32s")
_KIND = "replay"
_ABOUT_EPISODES = ("index", "lengths", "terminated", "truncated")
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
    """

    before: int
    steps_before: int
    episodes: Episodes
    end: int


def in_bytes(before: int, steps_before: int, episodes: Episodes) -> list[Buffer]:
    """A record in chunks, to be written one after another; for the arguments see `Record`."""
    header = {"episodes": before, "steps": steps_before}
    arrays = {name: getattr(episodes, name) for name in _ABOUT_EPISODES}
    arrays |= {_COLUMN + name: array for name, array in episodes.columns.items()}
    body = pack_buffers(_KIND, header, arrays)
    digest = hashlib.sha256()
    for chunk in body:
        digest.update(chunk)
    return [_HEAD.pack(MAGIC, sum(map(len, body)), digest.digest()), *body]


def records(path: Path) -> Iterator[Record]:
    """The records of a segment, up to the first one that is torn or damaged. Raises WireError if
    one is sound and of another form."""
    size, end = path.stat().st_size, 0
    with path.open("rb") as file:
        while end + _HEAD.size <= size:
            magic, length, checksum = _HEAD.unpack(file.read(_HEAD.size))
            end += _HEAD.size + length
            if magic != MAGIC or end > size:
                return
            body = bytearray(length)
            file.readinto(body)
            if hashlib.sha256(body).digest() != checksum:
                return
            yield _record(body, end)


def _record(body: bytearray, end: int) -> Record:
    header, arrays = unpack(body, _KIND)
    before, steps_before = (
        value_from_data(Whole, header.get(name), name) for name in ("episodes", "steps")
    )
    about = {name: arrays.pop(name) for name in _ABOUT_EPISODES}
    columns = {name.removeprefix(_COLUMN): array for name, array in arrays.items()}
    return Record(before, steps_before, Episodes(**about, columns=columns), end)


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
