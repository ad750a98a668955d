"""How the collection rate grows with workers: `uv run python -m benchmarks.scaling`.

- Processes on this machine, up to its number of cores, play HalfCheetah, a simulator that computes.
- Processes, and executors of a Flame cluster where there is one, play an environment that waits in
  real time (waiting.py: 50 steps of 20 ms an episode), as a robot or a remote simulator does. There
  may be more of them than cores.

Every measurement is a run of its own; its first iteration, in which workers start, does not count.
Rates are episodes per second of collecting in the second iteration.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tyro

from benchmarks.flame import cluster
from benchmarks.table import Table, compare, in_turn, write
from flame_rl import TrainConfig, Trainer
from flame_rl.system.machine import available_cores


@dataclass(frozen=True)
class Options:
    """Compare numbers of workers."""

    workers: tuple[int, ...] = (1, 5, 10, 20)
    """Numbers of processes and of executors that play the waiting environment."""

    episodes: int = 100
    """Episodes per iteration."""

    repetitions: int = 3
    """Number of measurements of each row."""

    where: tuple[str, ...] = ("computing", "processes", "executors")
    """The tables to measure, of these three."""

    quick: bool = False
    """Shorter and fewer episodes, 1 and 5 workers, once: within a minute."""

    output: Path = Path("runs/benchmarks")
    """Folder for the JSON file and the plot."""


def main(options: Options) -> None:
    # The environment is a module of its own, found and sent without the rest of this folder.
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    counts = (1, 5) if options.quick else options.workers
    repetitions, episodes = (1, 20) if options.quick else (options.repetitions, options.episodes)
    waiting = "waiting:Short-v0" if options.quick else "waiting:Robot-v0"
    tables = []

    def add(title: str, env: str, counts: tuple[int, ...], place: str) -> None:
        tables.append(measure(title, env, counts, place, episodes, repetitions))
        print(f"\n{tables[-1]}", flush=True)

    if "computing" in options.where:
        add("HalfCheetah-v5", "halfcheetah", tuple(range(1, available_cores() + 1)), "processes")
    if "processes" in options.where:
        add("Waiting, processes", waiting, counts, "processes")
    if "executors" in options.where:
        with cluster():
            add("Waiting, executors", waiting, counts, "executors")
    write("scaling", tables, options.output)


def measure(
    title: str, env: str, counts: tuple[int, ...], place: str, episodes: int, repetitions: int
) -> Table:
    """One table with a row for each count; its ratios compare them with the first count."""
    rows = {f"{count} {place}": partial(rate, env, count, place, episodes) for count in counts}
    first, *others = rows
    return compare(
        f"{title}, {episodes} episodes an iteration",
        "episodes per second",
        in_turn(rows, repetitions),
        [(name, first) for name in others],
    )


def rate(env: str, count: int, place: str, episodes: int, k: int) -> float:
    """Episodes per second of collecting in a run's second iteration; the run's seed is `k`."""
    where = {"workers": count, "local": True} if place == "processes" else {"executors": count}
    with Trainer(TrainConfig(env=env, episodes_per_iter=episodes, seed=k, **where)) as trainer:
        trainer.train()
        return episodes / trainer.train().timing.collecting


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
