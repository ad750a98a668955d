"""The journal: every episode of a replay store is appended to files once, so that a checkpoint
holds no more than a place in them.

A journal is a folder of segments, each named by the number of episodes before it. A segment is a
row of records, which are episodes that were appended together: `MAGIC`, the length of the body
(uint64, little-endian), the digest of the record before it, its own digest, and the body, a message
of `flame_rl.wire.packing`. A digest is the SHA-256 of the digest before it and the body, so that
the last one stands for all records. Nothing is pickled.

What follows the place of the checkpoint from which a run resumes is cut off, once all before it was
read: the run plays it again, to the bit.
"""

import hashlib
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.system.files import open_regular, sync
from flame_rl.wire.codec import take_array, take_episodes
from flame_rl.wire.fields import Within, value_from_data
from flame_rl.wire.messages import ABOUT_EPISODES, Column, Episodes
from flame_rl.wire.packing import Buffer, pack_buffers, unpack

MAGIC = b"flameRP2"
_HEAD = struct.Struct("<8sQ32s32s")
_KIND = "replay"
# Below 2**63 even with what follows.
_Before = Annotated[int, Within(0, (1 << 62) - 1, "an integer from 0 to 2**62 - 1")]
# Begins the name of a column among a record's arrays.
_COLUMN = "column "
# The digest before the first record.
NO_DIGEST = bytes(hashlib.sha256().digest_size)
_SEGMENT_BYTES = 16_000_000
_OWN_NAME = re.compile(r"\d{12}\.replay")


class JournalError(ValueError):
    """The journal lacks what a checkpoint needs."""


class Place(NamedTuple):
    """How far a store and its journal have got.

    Attributes:
        capacity: of the store, in steps.
        episodes, steps: how many were added.
        oldest: number of the oldest episode that the store keeps.
        segment, end: the last record ends at byte `end` of the segment `segment`.
        digest: of that record, and so of all before it.
    """

    capacity: int
    episodes: int = 0
    steps: int = 0
    oldest: int = 0
    segment: int = 0
    end: int = 0
    digest: bytes = NO_DIGEST


@dataclass(frozen=True)
class Record:
    """Episodes that were appended together, after so many episodes and steps. It ends at byte `end`
    of its segment; for the digests see above."""

    before: int
    steps_before: int
    episodes: Episodes
    segment: int
    end: int
    previous: bytes
    digest: bytes


class Journal:
    """Appends episodes to the newest segment, and begins another when that is large enough.

    `restore` comes first; `read` alone leaves the folder as it is. `folder`: of the segments.
    `columns`: what every step must have; more are kept as they are.
    """

    def __init__(
        self, folder: Path, columns: Sequence[Column], segment_bytes: int = _SEGMENT_BYTES
    ) -> None:
        self.folder, self.columns = folder, columns
        self._segment_bytes = segment_bytes
        self._place, self._synced = Place(0), False

    def append(self, episodes: Episodes) -> None:
        """Append episodes as one record. Raises OSError if the disk refuses; the journal is then as
        it was, and the same episodes can be appended later."""
        _, before, steps, _, segment, end, digest = self._place
        if end >= self._segment_bytes:
            sync(self.path(segment))
            segment, end = before, 0
        chunks, digest = _in_bytes(before, steps, digest, episodes)
        self._synced = False
        end = _write_from(self.path(segment), end, chunks)
        total = before + len(episodes), steps + episodes.steps
        self._place = Place(0, *total, 0, segment, end, digest)

    def place(self, store: ReplayStore) -> Place:
        """What a checkpoint holds of a store, all of whose episodes were appended, once the journal
        is safely on disk. Raises OSError if the disk refuses."""
        if self._place.end and not self._synced:
            sync(self.path(self._place.segment))
            sync(self.folder)
            self._synced = True
        return self._place._replace(capacity=store.capacity, oldest=store.oldest)

    def restore(self, store: ReplayStore, place: Place) -> None:
        """Bring a store, which forgets what it holds, to this place, and cut off the journal there.
        A place of a capacity alone is that before the first episode. Raises as `read` does, and
        JournalError if the store has another capacity; nothing is cut off then."""
        self.folder.mkdir(parents=True, exist_ok=True)
        store.begin(0, 0)
        # What another run has left in the folder needs not be of this form.
        for record in self.read(place) if place.end else ():
            if store.episodes == 0:
                store.begin(record.before, record.steps_before)
            store.add(record.episodes)
        if (store.capacity, store.episodes, store.steps, store.oldest) != place[:4]:
            raise _incomplete(place)
        self._place = place
        for segment in self.segments():
            if segment > place.segment or place.end == 0:
                self.path(segment).unlink()
        if place.end:
            os.truncate(self.path(place.segment), place.end)

    def read(self, place: Place | None = None) -> Iterator[Record]:
        """The records that a place needs, or all up to one that is torn, the oldest first; the
        folder stays as it is. Raises JournalError if one that the place needs is missing, damaged
        or of another run; ValueError if a sound one has another form; OSError."""
        last, digest = (0, 0), None
        for segment in self.segments(0 if place is None else place.oldest):
            for record in self._records(segment):
                if place is not None and (segment, record.end) > (place.segment, place.end):
                    break
                if digest not in (None, record.previous):
                    raise self._foreign(segment)
                if place is not None and digest is None and record.before > place.oldest:
                    raise _incomplete(place)
                last, digest = (segment, record.end), record.digest
                yield record
        if place is not None and last != (place.segment, place.end):
            raise _incomplete(place)
        if place is not None and (digest or NO_DIGEST) != place.digest:
            raise self._foreign(place.segment)

    def forget(self, oldest: int) -> None:
        """Delete the segments that no place needs; `oldest` is the least of all places that may be
        restored. Raises OSError if the disk refuses."""
        for segment, following in pairwise(self.segments()):
            if following <= oldest:
                self.path(segment).unlink()

    def path(self, segment: int) -> Path:
        """The file of a segment."""
        return self.folder / f"{segment:012d}.replay"

    def segments(self, oldest: int = 0) -> list[int]:
        """The segments, ascending: all that have an episode of number `oldest` or later. Files of
        other names are not the journal's own."""
        own = [path for path in self.folder.iterdir() if _OWN_NAME.fullmatch(path.name)]
        segments = sorted(int(path.stem) for path in own if path.is_file())
        begin = max((segment for segment in segments if segment <= oldest), default=0)
        return [segment for segment in segments if segment >= begin]

    def _records(self, segment: int) -> Iterator[Record]:
        """The records of a segment, up to the first one that is torn or damaged."""
        path, end = self.path(segment), 0
        size = path.stat().st_size
        with open_regular(path) as file:
            while end + _HEAD.size <= size:
                magic, length, previous, digest = _HEAD.unpack(file.read(_HEAD.size))
                end += _HEAD.size + length
                if magic != MAGIC or end > size:
                    return
                body = bytearray(file.read(length))
                if hashlib.sha256(previous + body).digest() != digest:
                    return
                content = _content(body, self.columns)
                yield Record(*content, segment, end, previous, digest)

    def _foreign(self, segment: int) -> JournalError:
        return JournalError(
            f"records of {self.path(segment).name} are those of another run; put the run's own back"
        )


def _incomplete(place: Place) -> JournalError:
    return JournalError(
        f"the checkpoint needs the episodes {place.oldest} to {place.episodes - 1}, not all of "
        "which are sound; put them back, or resume from another checkpoint, "
        "RUN/checkpoints/NAME.ckpt"
    )


def _in_bytes(
    before: int, steps_before: int, previous: bytes, episodes: Episodes
) -> tuple[list[Buffer], bytes]:
    """A record in chunks to write one after another, and its digest; for arguments see `Record`."""
    header = {"episodes": before, "steps": steps_before}
    arrays = {name: getattr(episodes, name) for name in ABOUT_EPISODES}
    arrays |= {_COLUMN + name: array for name, array in episodes.columns.items()}
    body = pack_buffers(_KIND, header, arrays)
    digest = hashlib.sha256(b"".join([previous, *body])).digest()
    return [_HEAD.pack(MAGIC, sum(map(len, body)), previous, digest), *body], digest


def _content(body: bytearray, columns: Sequence[Column]) -> tuple[int, int, Episodes]:
    """The first three fields of a `Record`, from its bytes, which are untrusted. Raises ValueError
    if something is wrong with them."""
    header, arrays = unpack(body, _KIND)
    before, steps_before = (
        value_from_data(_Before, header.get(name), name) for name in ("episodes", "steps")
    )
    episodes = take_episodes(arrays, columns, _COLUMN)
    others = {name.removeprefix(_COLUMN): take_array(arrays, name) for name in [*arrays]}
    return before, steps_before, replace(episodes, columns=episodes.columns | others)


def _write_from(path: Path, start: int, chunks: Sequence[Buffer]) -> int:
    """Write the chunks from byte `start` on, where the file then ends; returns that end. Raises
    OSError if the disk refuses; the next write begins at `start` again."""
    with path.open("r+b" if path.exists() else "xb") as file:
        file.truncate(start)
        file.seek(start)
        file.writelines(chunks)
        return file.tell()
