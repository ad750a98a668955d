"""A replay store as a Python list of episodes, and views of it as loops."""

from dataclasses import dataclass

import numpy as np

from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.wire.messages import Column, Episodes

D, A = 2, 3
CONTINUOUS = (
    Column("observations", "float32", (D,), True),
    Column("actions", "float32", (A,), False),
    Column("rewards", "float64", (), False),
)
# A column of integers comes first, and there are integers with a row for each observation.
DISCRETE = (
    Column("actions", "int32", (), False, (5,)),
    Column("pixels", "uint8", (2, 2), True),
    Column("rewards", "float64", (), False),
    Column("observations", "float32", (D,), True),
    Column("matrix", "float32", (2, 2), False),
    Column("action_masks", "uint8", (3,), True),
)


# What comes with each observation.
SEEN = {"observations", "action_masks"}


@dataclass
class One:
    """An episode; rows by column name."""

    columns: dict[str, list]
    terminated: bool
    first: int  # position of its first step

    @property
    def length(self) -> int:
        return len(self.columns["rewards"])


def make_episodes(lengths, terminated, seed=0, columns=CONTINUOUS) -> Episodes:
    """Random numbers; rewards that float32 holds exactly. What is not terminated is truncated."""
    rng = np.random.default_rng(seed)
    lengths, terminated = np.array(lengths, np.int64), np.array(terminated, bool)
    made = {}
    for column in columns:
        rows = int(lengths.sum()) + column.per_observation * len(lengths)
        numbers = rng.integers(1, 5, (rows, *column.shape))
        if column.dtype.startswith("float"):
            numbers = numbers + rng.integers(0, 1 << 10, numbers.shape) / 1024
        made[column.name] = numbers.astype(column.dtype)
    return Episodes(np.arange(len(lengths)), lengths, terminated, ~terminated, made)


class Oracle:
    """Keeps as many of the latest episodes as have at most capacity + 1 observations."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.all: list[One] = []

    def add(self, episodes: Episodes) -> None:
        for episode in episodes:
            first = self.all[-1].first + self.all[-1].length if self.all else 0
            rows = {name: list(array) for name, array in episode.columns.items()}
            self.all.append(One(rows, episode.terminated, first))

    @property
    def kept(self) -> list[One]:
        kept, room = [], self.capacity + 1
        for episode in reversed(self.all):
            room -= episode.length + 1
            if room < 0:
                break
            kept.insert(0, episode)
        return kept

    @property
    def positions(self) -> list[int]:
        return [one.first + t for one in self.kept for t in range(one.length)]

    def find(self, position: int) -> tuple[One, int]:
        """The episode of a step, and the step's time."""
        for one in self.all:
            if one.first <= position < one.first + one.length:
                return one, position - one.first
        raise LookupError(position)

    def n_step(self, position: int, n: int, discount: float) -> dict:
        one, t = self.find(position)
        total, k = 0.0, 0
        while k < n and t + k < one.length:
            total += discount**k * float(one.columns["rewards"][t + k])
            k += 1
        ended = one.terminated and t + k == one.length
        return {name: rows[t] for name, rows in one.columns.items()} | {
            "rewards": total,
            **{f"next_{name}": rows[t + k] for name, rows in one.columns.items() if name in SEEN},
            "discounts": 0.0 if ended else discount**k,
            "between": [one.columns["observations"][t + min(i, k)] for i in range(1, n)]
            or np.zeros((0, D), np.float32),
            "between_discounts": np.array([discount**i * (i < k) for i in range(1, n)], np.float32),
        }

    def sequence(self, position: int, length: int, overlap: int, discount: float) -> dict:
        one, time = self.find(position)
        begins = [0]
        while begins[-1] + length < one.length:
            begins.append(begins[-1] + length - overlap)
        begin = min(b for b in begins if time < b + length)
        steps = []
        for t in range(begin, begin + length):
            inside = t < one.length
            row = {
                name: rows[min(t, len(rows) - 1)]
                if len(rows) > one.length
                else (rows[t] if inside else np.zeros_like(rows[0]))
                for name, rows in one.columns.items()
            }
            last = t == one.length - 1
            for name in SEEN & one.columns.keys():
                row[f"next_{name}"] = one.columns[name][min(t + 1, one.length)]
            row["discounts"] = discount if inside and not (last and one.terminated) else 0.0
            row["mask"] = float(inside)
            steps.append(row)
        return {name: [row[name] for row in steps] for name in steps[0]} | {
            "starts": one.first + begin
        }


def store_bytes(store: ReplayStore) -> int:
    """Bytes of all arrays that a store holds."""
    held = [*vars(store).values(), *store._others.values()]
    return sum(array.nbytes for array in held if isinstance(array, np.ndarray))
