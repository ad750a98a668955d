"""Frame stacking where it is learned: the last few observations of an episode as one input.

Observations are sent and stored once. The stacks are index arithmetic over them, gathered for the
rows that a network computes at once. Where an episode has not so many observations yet, the missing
ones are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Stacks:
    """The last k observations of each of B rows, not gathered yet: it stands for an array
    [B, k, D], the latest observation last.

    Attributes:
        observations: those of all episodes, one after another, [R, D].
        time: of each of the R in its episode, from 0, int64 [R].
        rows: which of the R are wanted, int64 [B].
        frames: k.
    """

    observations: np.ndarray
    time: np.ndarray
    rows: np.ndarray
    frames: int

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, places: slice | np.ndarray) -> Stacks:
        return replace(self, rows=self.rows[places])

    def take(self, places: np.ndarray, axis: int = 0) -> Stacks:
        """Like `np.ndarray.take` along the first axis, the only one."""
        return self[places]

    def gathered(self) -> np.ndarray:
        """The stacks as an array, [B, k, D]."""
        rows, missing = stacked_rows(self.rows, self.time[self.rows], self.frames)
        stacks = self.observations.take(rows, axis=0, mode="clip")
        stacks[missing] = 0
        return stacks


def stacked_rows(rows: np.ndarray, times: np.ndarray, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the last observations up to these, and which of them are not in the episode.

    Args:
        rows: of observations that follow each other in an episode, integers [...].
        times: how many observations of its episode are before each, integers [...].
        frames: k.

    Returns:
        Integers and bool, [..., k] each, the latest last.
    """
    before = np.arange(frames - 1, -1, -1)
    return rows[..., None] - before, times[..., None] < before


def gathered(column: np.ndarray | Stacks) -> np.ndarray:
    """The array that a column is, or stands for."""
    return column.gathered() if isinstance(column, Stacks) else column
