"""The journal: every episode of a replay store is appended to files once, so that a checkpoint
holds no more than a place in them.

A journal is a folder of segments, each named by the number of episodes before it. A segment is a
row of records; see records.py. What follows the place of the checkpoint from which a run resumes
is cut off: the run plays it again, to the bit.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from flame_rl.learner.off_policy.replay.records import in_bytes, records, sync, write_from
from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.wire.messages import Episodes

_SEGMENT_BYTES = 16_000_000
_SUFFIX = ".replay"


class JournalError(ValueError):
    """The journal lacks what a checkpoint needs."""


class Place(NamedTuple):
    """How far a store and its journal have got.

    Attributes:
        capacity: of the store, in steps.
        episodes, steps: how many were added.
        oldest: number of the oldest episode that the store keeps.
        segment, end: the last record ends at byte `end` of the segment `segment`.
    """

    capacity: int
    episodes: int = 0
    steps: int = 0
    oldest: int = 0
    segment: int = 0
    end: int = 0


class Journal:
    """Appends episodes to the newest segment, and begins another when that is large enough.

    Opening a journal cuts off a torn tail: all that follows the last sound record.

    Attributes:
        folder: of the segments.
    """

    def __init__(self, folder: Path, segment_bytes: int = _SEGMENT_BYTES) -> None:
        """Open the folder, or make it. Raises OSError if the disk refuses."""
        self.folder = folder
        self._segment_bytes = segment_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._episodes = self._steps = self._segment = self._end = 0
        self._synced = False
        for segment in reversed(self._segments()):
            for record in records(self._path(segment)):
                self._segment, self._end = segment, record.end
                self._episodes = record.before + len(record.episodes)
                self._steps = record.steps_before + record.episodes.steps
            if self._end:
                break
        self._cut_off()

    def append(self, episodes: Episodes) -> None:
        """Append episodes as one record.

        Raises:
            OSError: the disk refuses. The journal is as it was; the same episodes can be appended
                later.
        """
        segment, end = self._segment, self._end
        if end >= self._segment_bytes:
            sync(self._path(segment))
            segment, end = self._episodes, 0
        chunks = in_bytes(self._episodes, self._steps, episodes)
        self._synced = False
        self._end = write_from(self._path(segment), end, chunks)
        self._segment = segment
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
            sync(self._path(self._segment))
            sync(self.folder)
            self._synced = True
        kept = store.capacity, self._episodes, self._steps, store.oldest
        return Place(*kept, self._segment, self._end)

    def restore(self, store: ReplayStore, place: Place) -> None:
        """Bring a store to this place, and cut off the journal there.

        Args:
            store: whatever it holds is forgotten.
            place: as `place` returned it; one of a capacity alone: nothing was added.

        Raises:
            JournalError: an episode before the place is missing or damaged, or the store has
                another capacity. Nothing is cut off, and the store is of no use.
            OSError: the disk refuses.
        """
        reached = (0, 0)
        store.begin(0, 0)
        for segment in self._segments(place.oldest):
            for record in records(self._path(segment)):
                if (segment, record.end) > (place.segment, place.end):
                    break
                if store.episodes == 0:
                    store.begin(record.before, record.steps_before)
                store.add(record.episodes)
                reached = (segment, record.end)
        if Place(store.capacity, store.episodes, store.steps, store.oldest, *reached) != place:
            raise JournalError(
                f"the checkpoint needs the episodes {place.oldest} to {place.episodes - 1}, and "
                f"{store.episodes - store.oldest} of them are there and sound; resume from another "
                "checkpoint of the run, or begin it anew"
            )
        self._episodes, self._steps = place.episodes, place.steps
        self._segment, self._end = place.segment, place.end
        self._cut_off()

    def forget(self, oldest: int) -> None:
        """Delete the segments that no place needs.

        Args:
            oldest: the least `oldest` of all places that may be restored.

        Raises:
            OSError: the disk refuses.
        """
        for segment, following in pairwise(self._segments()):
            if following <= oldest:
                self._path(segment).unlink()

    def _path(self, segment: int) -> Path:
        return self.folder / f"{segment:012d}{_SUFFIX}"

    def _segments(self, oldest: int = 0) -> list[int]:
        """The segments, ascending: all that have an episode of number `oldest` or later."""
        stems = [path.stem for path in self.folder.glob("*" + _SUFFIX)]
        segments = sorted(int(stem) for stem in stems if stem.isdecimal())
        begin = max((segment for segment in segments if segment <= oldest), default=0)
        return [segment for segment in segments if segment >= begin]

    def _cut_off(self) -> None:
        """Remove all that follows the last record."""
        for segment in self._segments():
            path = self._path(segment)
            if segment > self._segment or self._end == 0:
                path.unlink()
            elif segment == self._segment and path.stat().st_size > self._end:
                os.truncate(path, self._end)
