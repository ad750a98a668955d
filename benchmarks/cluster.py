"""The same run on a Flame cluster and on local processes: `uv run python -m benchmarks.cluster`.

Two trainers with default flags, one with the cluster's E executors, one with E local processes,
take turns, one iteration each; the first iteration, in which workers start, does not count. Both
must get the same weights. Rates are env steps per second over stretches of several iterations, once
for collecting and updating together and once for collecting alone.

Also measured are the seconds from starting `main.py` on the cluster to its first episode.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import flamepy.core.client
import numpy as np
import tyro

from benchmarks.flame import cluster
from benchmarks.table import Table, compare, in_turn, write
from flame_rl import TrainConfig, Trainer
from flame_rl.run.results import IterationResult, Timing

ROOT = Path(__file__).resolve().parent.parent
# Iterations to measure, after the first: a whole run where episodes become longer in training.
ITERATIONS = {"cartpole": 98, "halfcheetah": 28, "hopper": 98, "walker2d": 98, "ant": 14}


@dataclass(frozen=True)
class Options:
    """Compare a Flame cluster with an equal number of local processes."""

    envs: tuple[str, ...] = tuple(ITERATIONS)
    """Environments to measure."""

    repetitions: int = 7
    """Number of stretches into which the iterations are divided."""

    quick: bool = False
    """Cartpole alone, 8 iterations: within a minute, once the executors' packages are there."""

    output: Path = Path("runs/benchmarks")
    """Folder for the JSON file and the plot."""


def main(options: Options) -> None:
    envs = ("cartpole",) if options.quick else options.envs
    repetitions, starts = (2, 1) if options.quick else (options.repetitions, 5)
    with cluster():
        executors = cores_of_cluster()
        tables = []
        for env in envs:
            iterations = 8 if options.quick else ITERATIONS[env]
            for table in measure(env, executors, iterations, repetitions):
                print(f"\n{table}", flush=True)
                tables.append(table)
        seconds = sorted(seconds_to_first_episode() for _ in range(starts))
    spread = f"{seconds[0]:.1f} to {seconds[-1]:.1f}"
    print(f"\nFirst episode back after {median(seconds):.1f} s ({spread})")
    write("cluster", tables, options.output, seconds_to_first_episode=seconds)


def cores_of_cluster() -> int:
    """The number of the cluster's cores, each of which gets an executor. Waits up to 10 s for the
    nodes of a cluster that has just started."""
    for _ in range(100):
        nodes = flamepy.core.client.list_nodes()
        if cores := sum(node.status.allocatable.cpu for node in nodes):
            return cores
        time.sleep(0.1)
    sys.exit("no node of the cluster offers a core")


def measure(env: str, executors: int, iterations: int, repetitions: int) -> list[Table]:
    """One environment's two tables: the whole run, and collecting alone."""
    here = TrainConfig(env=env, workers=executors, local=True)
    there = TrainConfig(env=env)
    local, distributed = f"{executors} processes", f"{executors} executors"
    with Trainer(here) as on_processes, Trainer(there) as on_cluster:
        rows = {local: on_processes, distributed: on_cluster}
        results = in_turn(
            {name: lambda k, trainer=trainer: trainer.train() for name, trainer in rows.items()},
            iterations + 1,
        )
    digests = [[result.weights_digest for result in each] for each in results.values()]
    if digests[0] != digests[1]:
        sys.exit(f"{env}: the weights differ between cluster and processes; nothing is comparable")
    title = f"{on_cluster.spec.env_id}, iterations 2 to {iterations + 1}"
    pairs = [(distributed, local)]
    return [
        compare(
            f"{title}, {what}",
            "env steps per second",
            {name: rates(each, seconds, repetitions) for name, each in results.items()},
            pairs,
        )
        for what, seconds in (
            ("the run", lambda timing: timing.collecting + timing.updating),
            ("collecting", lambda timing: timing.collecting),
        )
    ]


def rates(
    results: list[IterationResult], seconds: Callable[[Timing], float], repetitions: int
) -> list[float]:
    """Env steps per second in each stretch of the iterations after the first."""
    steps = np.diff([result.env_steps for result in results])
    times = np.array([seconds(result.timing) for result in results[1:]])
    stretches = np.array_split(np.arange(len(steps)), repetitions)
    return [float(steps[part].sum() / times[part].sum()) for part in stretches]


def seconds_to_first_episode() -> float:
    """Seconds from starting main.py to the end of an iteration with one episode."""
    flags = ("--env", "ant", "--iterations", "1", "--episodes-per-iter", "1")
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "main.py"), *flags, "--output", f"{folder}/run"],
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in process.stdout:
            if line.startswith("Iteration"):
                seconds = time.monotonic() - began
        if process.wait() != 0:
            sys.exit("main.py failed on the cluster")
    return seconds


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
