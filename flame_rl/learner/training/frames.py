"""Observations of whole episodes, which follow one another: index arithmetic over their rows,
inputs side by side, and stacked frames.

The inputs of an observation, such as a picture and numbers, keep a column and a type each, and are
put side by side, in float32, for the rows that a network computes at once. A frame stack is the
last k observations of an episode as one input, with zeros for those before its start. Observations
are sent and stored once; the learner gathers stacks for the rows that a network computes at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flame_rl.wire.messages import observation_arrays


def time_steps(lengths: np.ndarray) -> np.ndarray:
    """The time step of each entry within its episode, from 0, int64 [N]."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def step_rows(lengths: np.ndarray) -> np.ndarray:
    """The rows of the steps among N + E observations: all but each episode's last, int64 [N]."""
    return np.arange(lengths.sum()) + np.repeat(np.arange(len(lengths)), lengths)


@dataclass(frozen=True)
class SideBySide:
    """Observations of several inputs: a lazy array float32 [B, D]. `inputs`: a column of each,
    float32 or uint8 [B, ...]."""

    inputs: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.inputs[0])

    def __getitem__(self, places: slice | np.ndarray) -> SideBySide:
        return SideBySide(tuple(each[places] for each in self.inputs))

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(self.inputs, axis=-1, dtype=dtype or np.float32)

    def take(self, places: np.ndarray, axis: int = 0, mode: str = "raise") -> SideBySide:
        """Like `np.ndarray.take` along the first axis."""
        return SideBySide(tuple(each.take(places, axis=0, mode=mode) for each in self.inputs))


def observations_of(columns: dict[str, np.ndarray]) -> np.ndarray | SideBySide:
    """The observations among columns, [B, ...]."""
    inputs = observation_arrays(columns)
    return inputs[0] if len(inputs) == 1 else SideBySide(tuple(inputs))


@dataclass(frozen=True)
class Stacks:
    """B stacks of the last k observations, the latest last: a lazy array [B, k, D].

    Attributes:
        observations: those of all episodes, one after another, [R, D], perhaps lazy.
        time: the time step of each observation in its episode, from 0, int64 [R].
        rows: the row of the latest observation of each stack, int64 [B].
        frames: k.
    """

    observations: np.ndarray | SideBySide
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

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        rows, missing = self.stacked()
        stacks = np.asarray(self.observations.take(rows, axis=0, mode="clip"), dtype)
        stacks[missing] = 0
        return stacks

    def stacked(self) -> tuple[np.ndarray, np.ndarray]:
        """See `stacked_rows`."""
        return stacked_rows(self.rows, self.time[self.rows], self.frames)


def stacked_rows(rows: np.ndarray, times: np.ndarray, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """For observations at `rows`, integers [...], with `times` earlier ones in their episodes: the
    rows of the last `frames` observations of each, the latest last, and which of them precede the
    episode, integers and bool [..., frames]."""
    before = np.arange(frames - 1, -1, -1)
    return rows[..., None] - before, times[..., None] < before
