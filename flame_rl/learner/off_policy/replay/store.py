"""A replay store: the latest whole episodes in preallocated arrays.

Steps are numbered from the beginning of the run; the number of a step is its position, which stays
its own after the step was overwritten. An episode of T steps takes T+1 rows of a ring, one for each
observation: the next observation of a step is the row after its own. Episodes may begin near the
end of the ring and go on at its beginning.
"""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from flame_rl.learner.training.frames import stacked_rows, step_rows, time_steps
from flame_rl.wire.inputs import OBSERVATIONS
from flame_rl.wire.messages import Column, Episodes

# A step's row is int64, its time and the number of steps left are int32.
_BYTES_OF_A_STEP = 8 + 4 + 4


class ReplayStore:
    """The latest whole episodes; an episode overwrites the oldest ones, as many as must make way.

    The real numbers of a row are float32 side by side in one array, so that one read fetches them;
    other columns have arrays of their own, of their own type.

    Attributes:
        capacity: rows of the ring less one, which is also the most steps of one episode. An episode
            of T steps takes T+1 rows, so of such episodes capacity * T / (T+1) steps are kept.
        frames: k, how many observations are read as one.
        episodes, steps: how many were ever added; the newest step has position `steps - 1`.
        first: position of the oldest step that is kept.
    """

    def __init__(self, columns: Sequence[Column], capacity: int, frames: int = 1) -> None:
        self.capacity, self.columns, self.frames = capacity, tuple(columns), frames
        self.episodes = self.steps = self.first = 0
        # Lengths of the episodes that are kept, the oldest first.
        self._lengths: deque[int] = deque()
        self._numbers = np.zeros((capacity + 1, _width(columns)), np.float32)
        self._observed = [each.name for each in columns if each.name.startswith(OBSERVATIONS)]
        self._others = {
            column.name: np.zeros((capacity + 1, *column.shape), column.dtype)
            for column in columns
            if not _is_real(column)
        }
        self._row = np.zeros(capacity, np.int64)
        self._time = np.zeros(capacity, np.int32)
        self._left = np.zeros(capacity, np.int32)

    @property
    def size(self) -> int:
        """Number of steps that are kept."""
        return self.steps - self.first

    @property
    def oldest(self) -> int:
        """Number of episodes that were overwritten: the number of the oldest one kept, from 0."""
        return self.episodes - len(self._lengths)

    def begin(self, episodes: int, steps: int) -> None:
        """Forget everything, and count on from these numbers of episodes and steps."""
        self.episodes, self.steps, self.first = episodes, steps, steps
        self._lengths.clear()

    def add(self, episodes: Episodes) -> None:
        """Add episodes in their order. Raises ValueError as `check_columns` does, or if an episode
        is longer than the capacity; nothing was added then."""
        check_columns(self.columns, episodes)
        if (longest := int(episodes.lengths.max())) > self.capacity:
            raise ValueError(f"{longest} steps do not fit into a replay store of {self.capacity}")
        self._lengths.extend(episodes.lengths.tolist())
        self.episodes += len(episodes)
        self.steps += episodes.steps
        while self.size + len(self._lengths) > self.capacity + 1:
            self.first += self._lengths.popleft()
        # Of very many episodes, the first may be overwritten by the last.
        self._write(episodes, max(0, len(episodes) - len(self._lengths)))

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """The rows of steps, int64 like `positions`. Raises ValueError if one is not kept."""
        if positions.size and not self.first <= positions.min() <= positions.max() < self.steps:
            raise ValueError(
                f"positions: {positions.min()} to {positions.max()}, but the store keeps "
                f"{self.first} to {self.steps - 1}; draw positions after the last episodes came"
            )
        return self._row.take(positions % self.capacity)

    def times(self, positions: np.ndarray) -> np.ndarray:
        """Steps of the episode before each of these, int32."""
        return self._time.take(positions % self.capacity)

    def left(self, positions: np.ndarray) -> np.ndarray:
        """Steps of the episode from each of these on, itself included: at least 1, int32."""
        return self._left.take(positions % self.capacity)

    def read(self, rows: np.ndarray, times: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The columns of rows, new arrays of shape [*rows.shape, ...]; rows beyond the ring's end
        go on at its beginning.

        With more than one frame, and `times`, integers [*rows.shape], how many observations of its
        episode are before each row, "observations" are [*rows.shape, k, D], the latest last, and
        zeros before the episode's first, which are "missing", bool [*rows.shape, k].

        Real numbers are float32, and so are "observations" of several inputs, side by side.
        "continues", float32, is 0 for the last step of a terminated episode and otherwise 1. In the
        row of an episode's last observation it is 0, and so is all that belongs to a step.
        """
        numbers = self._numbers.take(rows, axis=0, mode="wrap")
        read, start = {}, 0
        for column in self.columns:
            if not _is_real(column):
                read[column.name] = self._others[column.name].take(rows, axis=0, mode="wrap")
                continue
            stop = start + math.prod(column.shape)
            read[column.name] = numbers[..., start:stop].reshape(*rows.shape, *column.shape)
            start = stop
        if len(self._observed) > 1:
            inputs = [read.pop(name) for name in self._observed]
            read[OBSERVATIONS] = np.concatenate(inputs, axis=-1, dtype=np.float32)
        if self.frames > 1 and times is not None:
            read[OBSERVATIONS], read["missing"] = self._stacks(rows, times)
        return read | {"continues": numbers[..., -1]}

    def _stacks(self, rows: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        earlier, missing = stacked_rows(rows, times, self.frames)
        apart = self._others.get(OBSERVATIONS)
        if apart is None:
            stacks = self.read(earlier)[OBSERVATIONS]
        else:
            stacks = apart.take(earlier, axis=0, mode="wrap")
        stacks[missing] = 0
        return stacks, missing

    def _write(self, episodes: Episodes, skipped: int) -> None:
        """Write all episodes but the first `skipped`, whose steps are counted already."""
        lengths = episodes.lengths[skipped:]
        past = int(episodes.lengths[:skipped].sum())
        count = int(lengths.sum())
        slots = np.arange(self.steps - count, self.steps) % self.capacity
        # Each episode so far has one row more than steps.
        end = self.steps + self.episodes
        rows = np.arange(end - count - len(lengths), end) % (self.capacity + 1)
        of_steps = rows[step_rows(lengths)]
        time = time_steps(lengths)
        self._row[slots], self._time[slots] = of_steps, time
        self._left[slots] = np.repeat(lengths, lengths) - time
        numbers = np.zeros((len(rows), self._numbers.shape[1]), np.float32)
        in_steps, start = step_rows(lengths), 0
        for column in self.columns:
            of_column = slice(None) if column.per_observation else in_steps
            array = episodes.columns[column.name][past + skipped * column.per_observation :]
            if not _is_real(column):
                self._others[column.name][rows] = 0
                self._others[column.name][rows[of_column]] = array
                continue
            stop = start + math.prod(column.shape)
            numbers[of_column, start:stop] = array.reshape(len(array), -1)
            start = stop
        numbers[in_steps, -1] = 1
        last = np.cumsum(lengths + 1) - 2
        numbers[last[episodes.terminated[skipped:]], -1] = 0
        self._numbers[rows] = numbers


def check_columns(columns: Sequence[Column], episodes: Episodes) -> None:
    """Raise ValueError if there is an episode without steps or no episode at all, or if one of
    these columns is missing or has another type or shape."""
    lengths = episodes.lengths
    if len(lengths) == 0 or lengths.min() < 1:
        raise ValueError("lengths: an episode without steps, or no episode at all")
    for column in columns:
        rows = episodes.steps + len(lengths) * column.per_observation
        array, wanted = episodes.columns.get(column.name), (rows, *column.shape)
        if array is None or (array.dtype, array.shape) != (column.dtype, wanted):
            found = "missing" if array is None else f"{array.dtype} {array.shape}"
            raise ValueError(f"{column.name}: {found}, and {column.dtype} {wanted} is expected")


def bytes_needed(columns: Sequence[Column], capacity: int) -> int:
    """Bytes of the arrays of a `ReplayStore`."""
    others = sum(
        math.prod(column.shape) * np.dtype(column.dtype).itemsize
        for column in columns
        if not _is_real(column)
    )
    return (capacity + 1) * (4 * _width(columns) + others) + capacity * _BYTES_OF_A_STEP


def capacity_in_words(env_id: str, capacity: int, needed: int) -> str:
    """What a capacity needs, in words: "1,000,000 steps of Ant-v5 need 0.5 GB"."""
    # In GB, a small store would need 0.0.
    size = f"{needed / 1e9:.1f} GB" if needed >= 1e8 else f"{needed / 1e6:.1f} MB"
    return f"{capacity:,} steps of {env_id} need {size}"


def _is_real(column: Column) -> bool:
    return np.dtype(column.dtype).kind == "f"


def _width(columns: Sequence[Column]) -> int:
    """Real numbers of a row, "continues" included."""
    return sum(math.prod(column.shape) for column in columns if _is_real(column)) + 1
