"""Batches per second from replay, on one core: `uv run python -m benchmarks.replay`.

The store holds a million steps of HalfCheetah-v5's shapes (17 numbers observed, 6 acted), random
numbers in episodes of 1000 steps; a batch has 256 steps. The first table compares:

- `five arrays`: a plain array for each of observations, actions, rewards, next observations and
  ends, which holds each observation twice;
- `one row`: all five side by side in one float32 array, read with `take(out=)`: about the most that
  NumPy gives;
- `transitions`, `3 steps`, `sequences`: the store's views of uniformly drawn positions; a batch of
  sequences is 13 of 20 steps.

The second table has what priorities cost:

- `running sum`: positions drawn from the running sum of all priorities, made anew for each batch;
- `draw`: positions and weights of a batch from the sum tree;
- `update`: setting the priorities of a batch;
- `add`: adding an episode of 1000 steps and drawing one, so that the priorities follow.

Rates are per second of CPU time, because a busy machine disturbs that less; it disturbs caches all
the same.
"""

from __future__ import annotations

import os

# One thread; set before NumPy is imported.
os.environ |= {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import tyro

from benchmarks.table import compare, in_turn, write
from flame_rl.learner.off_policy.replay.samplers import PrioritizedSampler, uniform
from flame_rl.learner.off_policy.replay.store import ReplayStore, bytes_needed, capacity_in_words
from flame_rl.learner.off_policy.replay.views import n_step, sequences
from flame_rl.wire.messages import Column, Episodes

OBSERVATION, ACTION, BATCH, EPISODE = 17, 6, 256, 1000
COLUMNS = (
    Column("observations", "float32", (OBSERVATION,), per_observation=True),
    Column("actions", "float32", (ACTION,), per_observation=False),
    Column("rewards", "float64", (), per_observation=False),
)
# Columns of `one row`: two observations, action, reward, discount.
WIDTH = 2 * OBSERVATION + ACTION + 2
# Batches of a measurement.
BATCHES = 2000


@dataclass(frozen=True)
class Options:
    """Measure reading from and writing to replay."""

    capacity: int = 1_000_000
    """Steps of the store."""

    repetitions: int = 7
    """Number of measurements of each row."""

    quick: bool = False
    """Two repetitions with an eighth of the batches: within a minute."""

    output: Path = Path("runs/benchmarks")
    """Folder for the JSON file and the plot."""


def main(options: Options) -> None:
    repetitions, batches = (2, BATCHES // 8) if options.quick else (options.repetitions, BATCHES)
    rng = np.random.default_rng(0)
    store = ReplayStore(COLUMNS, options.capacity)
    # Beyond the capacity, so that the ring has begun anew.
    for _ in range(options.capacity // EPISODE * 5 // 4):
        store.add(episode(rng))
    prioritized = PrioritizedSampler(store, alpha=0.6)
    prioritized.update(np.arange(store.first, store.steps), rng.random(store.size) + 0.01)
    reading = {
        "five arrays": five_arrays(options.capacity, rng),
        "one row": one_row(options.capacity, rng),
        "transitions": lambda: n_step(store, uniform(store, BATCH, rng), 1, 0.99),
        "3 steps": lambda: n_step(store, uniform(store, BATCH, rng), 3, 0.99),
        "sequences": lambda: sequences(store, uniform(store, BATCH // 20 + 1, rng), 20, 10, 0.99),
    }
    new, priorities = episode(rng), rng.random(BATCH) + 0.01

    def add() -> None:
        store.add(new)
        prioritized.sample(1, 0.4, rng)

    prioritizing = {
        "running sum": running_sum(store.size, rng),
        "draw": lambda: prioritized.sample(BATCH, 0.4, rng),
        "update": lambda: prioritized.update(uniform(store, BATCH, rng), priorities),
        "add": add,
    }
    needed = bytes_needed(COLUMNS, options.capacity)
    print(capacity_in_words("HalfCheetah-v5", options.capacity, needed))
    tables = []
    for title, rows, plain in (
        (f"batches of {BATCH} steps", reading, "five arrays"),
        (f"priorities of batches of {BATCH} steps", prioritizing, "running sum"),
    ):
        timed = {name: partial(rate, row, batches) for name, row in rows.items()}
        rates = in_turn(timed, repetitions)
        pairs = [(name, plain) for name in rows if name not in (plain, "update", "add")]
        title = f"{title}, from {store.size:,} steps, {repetitions} repetitions"
        tables.append(compare(title, "times per second of CPU", rates, pairs))
        print(f"\n{tables[-1]}", flush=True)
    write("replay", tables, options.output)


def episode(rng: np.random.Generator) -> Episodes:
    """One truncated episode of random numbers."""
    return Episodes(
        index=np.zeros(1, np.int64),
        lengths=np.full(1, EPISODE),
        terminated=np.zeros(1, bool),
        truncated=np.ones(1, bool),
        columns={
            "observations": rng.standard_normal((EPISODE + 1, OBSERVATION), np.float32),
            "actions": rng.standard_normal((EPISODE, ACTION), np.float32),
            "rewards": rng.standard_normal(EPISODE),
        },
    )


def rate(row: Callable[[], object], count: int, k: int) -> float:
    """Calls per second of CPU time, in repetition k: at most `count`, in at most a second."""
    began, calls, seconds = time.process_time(), 0, 0.0
    while calls < count and seconds < 1:
        row()
        calls, seconds = calls + 1, time.process_time() - began
    return calls / seconds


def five_arrays(capacity: int, rng: np.random.Generator) -> Callable[[], object]:
    widths = (OBSERVATION, ACTION, 1, OBSERVATION, 1)
    arrays = [rng.standard_normal((capacity, width), np.float32) for width in widths]

    def batch() -> list[np.ndarray]:
        rows = rng.integers(0, capacity, BATCH)
        return [array[rows] for array in arrays]

    return batch


def one_row(capacity: int, rng: np.random.Generator) -> Callable[[], object]:
    rows, out = rng.standard_normal((capacity, WIDTH), np.float32), np.empty((BATCH, WIDTH), "f4")
    return lambda: rows.take(rng.integers(0, capacity, BATCH), axis=0, out=out, mode="clip")


def running_sum(size: int, rng: np.random.Generator) -> Callable[[], object]:
    priorities = rng.random(size)

    def batch() -> np.ndarray:
        sums = priorities.cumsum()
        return sums.searchsorted(rng.random(BATCH) * sums[-1])

    return batch


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
