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

from flame_rl.learner.off_policy.replay.records import in_bytes, records, sync, write
from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.wire.messages import Episodes

_SEGMENT_BYTES = 16_000_000
_SUFFIX = ".replay"


class JournalError(ValueError):
    """The journal lacks what a checkpoint needs."""


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
        parts = in_bytes(self._episodes, self._steps, episodes)
        self._synced = False
        self._end = write(self._path(segment), end, parts)
        self._segment = segment
        self._episodes += len(episodes)
        self._steps += episodes.steps

    def state(self, store: ReplayStore) -> dict[str, int]:
        """What a checkpoint holds of a store, once the journal is safely on disk.

        "episodes" and "steps" were added to a store of "capacity" steps; "oldest" is the number of
        the oldest episode kept; the last record ends at byte "end" of the segment "segment".

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
        return {
            "capacity": store.capacity,
            "episodes": self._episodes,
            "steps": self._steps,
            "oldest": store.oldest,
            "segment": self._segment,
            "end": self._end,
        }

    def restore(self, store: ReplayStore, state: dict[str, int] | None) -> None:
        """Bring a store to the state, and cut off the journal there.

        Args:
            store: whatever it holds is forgotten.
            state: as `state` returned it; None: nothing was added.

        Raises:
            ValueError: the store has another capacity.
            JournalError: an episode of the state is missing or damaged. Nothing is cut off, and the
                store is of no use.
            OSError: the disk refuses.
        """
        if state is None:
            state = dict.fromkeys(("episodes", "steps", "oldest", "segment", "end"), 0)
        elif state["capacity"] != store.capacity:
            raise ValueError(
                f"capacity: {store.capacity} steps, but the checkpoint is of a replay store of "
                f"{state['capacity']}; resume with the same capacity"
            )
        place, reached = (state["segment"], state["end"]), (0, 0)
        store.begin(0, 0)
        for segment in self._segments(state["oldest"]):
            for record in records(self._path(segment)):
                if (segment, record.end) > place:
                    break
                if store.episodes == 0:
                    store.begin(record.before, record.steps_before)
                store.add(record.episodes)
                reached = (segment, record.end)
        found = (reached, store.episodes, store.steps, store.oldest)
        if found != (place, state["episodes"], state["steps"], state["oldest"]):
            raise JournalError(
                f"the checkpoint needs the episodes {state['oldest']} to "
                f"{state['episodes'] - 1}, and {store.episodes - store.oldest} of them are there "
                "and sound; resume from another checkpoint of the run, or begin it anew"
            )
        self._episodes, self._steps = state["episodes"], state["steps"]
        self._segment, self._end = place
        self._cut_off()

    def forget(self, oldest: int) -> None:
        """Delete the segments that no state needs.

        Args:
            oldest: the least "oldest" of all states that may be restored.

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
