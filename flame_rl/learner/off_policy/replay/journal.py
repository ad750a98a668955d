"""The journal: every episode of a replay store is appended to files once, so that a checkpoint
holds no more than a place in them.

A journal is a folder of segments, each named by the number of episodes before it. A segment is a
row of records; see records.py. What follows the place of the checkpoint from which a run resumes
is cut off, once all before it was read: the run plays it again, to the bit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from flame_rl.learner.off_policy.replay.records import (
    NO_DIGEST,
    Record,
    in_bytes,
    records,
    refuse_wrong_numbers,
    sync,
    write_from,
)
from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.wire.messages import Episodes

_SEGMENT_BYTES = 16_000_000
_OWN_NAME = re.compile(r"\d{12}\.replay")
# Takes the name of a segment.
_FOREIGN = (
    "records of {} are those of another run, or were altered: they are not the ones that this "
    "checkpoint was made with. Put the run's own replay folder back"
)


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


class Journal:
    """Appends episodes to the newest segment, and begins another when that is large enough.

    Where the folder has segments, `restore` comes first.

    Attributes:
        folder: of the segments.
    """

    def __init__(self, folder: Path, segment_bytes: int = _SEGMENT_BYTES) -> None:
        """Open the folder, or make it. Raises OSError if the disk refuses."""
        self.folder = folder
        self._segment_bytes = segment_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._episodes = self._steps = self._segment = self._end = 0
        self._digest, self._synced = NO_DIGEST, False

    def append(self, episodes: Episodes) -> None:
        """Append episodes as one record.

        Raises:
            OSError: the disk refuses. The journal is as it was; the same episodes can be appended
                later.
        """
        segment, end = self._segment, self._end
        if end >= self._segment_bytes:
            sync(self.path(segment))
            segment, end = self._episodes, 0
        chunks, digest = in_bytes(self._episodes, self._steps, self._digest, episodes)
        self._synced = False
        self._end = write_from(self.path(segment), end, chunks)
        self._segment, self._digest = segment, digest
        self._episodes += len(episodes)
        self._steps += episodes.steps

    def place(self, store: ReplayStore) -> Place:
        """What a checkpoint holds of a store, once the journal is safely on disk.

        Raises:
            OSError: the disk refuses.
            ValueError: the store has other episodes than the journal.
        """
        if (store.episodes, store.steps) != (self._episodes, self._steps):
            raise ValueError(
                f"replay: {store.episodes} episodes were added to the store and {self._episodes} "
                "to its journal; append to the journal all that the store gets"
            )
        if self._end and not self._synced:
            sync(self.path(self._segment))
            sync(self.folder)
            self._synced = True
        kept = store.capacity, self._episodes, self._steps, store.oldest
        return Place(*kept, self._segment, self._end, self._digest)

    def restore(self, store: ReplayStore, place: Place) -> None:
        """Bring a store to this place, and cut off the journal there.

        Args:
            store: whatever it holds is forgotten.
            place: as `place` returned it; one of a capacity alone: nothing was added.

        Raises:
            JournalError: an episode before the place is missing, damaged or of another run, or the
                store has another capacity. Nothing is cut off, and the store is of no use.
            ValueError: a record is sound and the store does not take it, with the same remark.
            OSError: the disk refuses.
        """
        reached, digest = (0, 0), NO_DIGEST
        store.begin(0, 0)
        for segment in self.segments(place.oldest):
            for record in records(self.path(segment)):
                if (segment, record.end) > (place.segment, place.end):
                    break
                if store.episodes == 0:
                    store.begin(record.before, record.steps_before)
                elif record.previous != digest:
                    raise JournalError(_FOREIGN.format(self.path(segment).name))
                store.add(record.episodes)
                refuse_wrong_numbers(store.columns, record.episodes)
                reached, digest = (segment, record.end), record.digest
        kept = store.capacity, store.episodes, store.steps, store.oldest
        if (*kept, *reached) != place[:-1]:
            raise JournalError(
                f"the checkpoint needs the episodes {place.oldest} to {place.episodes - 1}, and "
                f"{store.episodes - store.oldest} of them are there and sound; put the run's own "
                "files back, resume from another checkpoint of the run, "
                f"--resume RUN/checkpoints/NAME.ckpt, or begin it anew"
            )
        if digest != place.digest:
            raise JournalError(_FOREIGN.format(self.path(place.segment).name))
        self._episodes, self._steps = place.episodes, place.steps
        self._segment, self._end, self._digest = place.segment, place.end, place.digest
        for segment in self.segments():
            path = self.path(segment)
            if segment > self._segment or self._end == 0:
                path.unlink()
            elif segment == self._segment and path.stat().st_size > self._end:
                os.truncate(path, self._end)

    def every(self) -> Iterator[Record]:
        """All records, the oldest first, up to one that is torn.

        Raises:
            JournalError: a segment does not go on where the one before it ends.
            OSError, WireError: it cannot be read, or has another form.
        """
        digest = None
        for segment in self.segments():
            for record in records(self.path(segment)):
                if digest not in (None, record.previous):
                    raise JournalError(_FOREIGN.format(self.path(segment).name))
                digest = record.digest
                yield record

    def forget(self, oldest: int) -> None:
        """Delete the segments that no place needs.

        Args:
            oldest: the least `oldest` of all places that may be restored.

        Raises:
            OSError: the disk refuses.
        """
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


def read_episodes(folder: Path, place: Place) -> Iterator[Episodes]:
    """The episodes of a journal up to this place, the oldest first; the folder stays as it is.

    Raises:
        JournalError: one that the place needs is missing, damaged or of another run.
        OSError: the files cannot be read.
    """
    if not folder.is_dir():
        raise JournalError("the folder is not there; it lies in the run's folder")
    journal, digest, begun = Journal(folder), NO_DIGEST, False
    for segment in journal.segments(place.oldest):
        for record in records(journal.path(segment)):
            if (segment, record.end) > (place.segment, place.end):
                break
            if not begun and record.before > place.oldest:
                break
            if begun and record.previous != digest:
                raise JournalError(_FOREIGN.format(journal.path(segment).name))
            digest, begun = record.digest, True
            yield record.episodes
    if digest != place.digest:
        raise JournalError(
            f"the episodes {place.oldest} to {place.episodes - 1} are not all there and sound"
        )
