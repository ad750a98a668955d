"""Learning curves: `uv run --group learning python -m benchmarks.learning`.

Every run is a command of main.py; the same command by hand gives the same metrics.csv. A benchmark
that was stopped goes on where it was: finished runs are not run again. Results go to docs/learning:
README.md, results.csv with a row for each run, and a picture for each environment; with `--replay`,
of the algorithms that replay, to docs/learning/replay. Cells that are not run keep their rows.

A cell is an algorithm in an environment. Of its runs the interquartile mean is given, with a 95 %
interval by the stratified bootstrap (Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge
of the Statistical Precipice"), and each run.
"""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import tyro

from benchmarks.table import machine
from flame_rl.report.runs import final_score, read_run
from flame_rl.run.folder import STARTS_NAME

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ("CartPole-v1", "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5")
ALGORITHMS = ("reinforce", "a2c", "ppo")
# Presets give the settings but these. REINFORCE's own defaults are those of `--env ant`, with a
# hundred episodes in an iteration.
_SHORT = ("--env-steps", "1000000", "--steps-per-iter", "2000")
FLAGS = {
    ("CartPole-v1", "reinforce"): ("--env-steps", "60000", "--steps-per-iter", "2000"),
    # With less noise many runs get stuck at a return of 1,000, sliding on the robot's back; so they
    # do with a longer horizon, because returns then say little about a single action.
    ("HalfCheetah-v5", "reinforce"): (
        *(*_SHORT, "--gamma", "0.92", "--initial-log-std", "0"),
        *("--value-epochs", "5"),
    ),
    ("Hopper-v5", "reinforce"): (
        *("--env-steps", "1000000", "--steps-per-iter", "4000"),
        *("--minibatches", "62"),
    ),
    # Seeds 0 to 2 had 1,805, 861 and 2,480; with 7e-4 they had 1,321, 922 and 1,904.
    ("Walker2d-v5", "reinforce"): (*_SHORT, "--learning-rate", "1e-3"),
    ("Ant-v5", "reinforce"): (
        *("--env-steps", "1000000", "--steps-per-iter", "4000"),
        *("--learning-rate", "1e-4", "--value-epochs", "5"),
    ),
}
# With `--replay`: environment and algorithm of each cell, and further flags.
REPLAY = {
    ("CartPole-v1", "dqn"): (),
    ("CartPole-v1", "pqn"): (),
    ("MountainCar-v0", "dqn"): (),
    ("LunarLander-v3", "dqn"): (),
    ("Pendulum-v1", "ddpg"): (),
    ("Pendulum-v1", "td3"): (),
    ("Pendulum-v1", "sac"): (),
    ("Acrobot-v1", "dqn"): (),
    ("Acrobot-v1", "dqn, quantiles"): ("--distribution", "quantiles"),
    ("HalfCheetah-v5", "sac"): ("--env-steps", "100000"),
    ("Hopper-v5", "sac"): ("--env-steps", "100000"),
    ("Walker2d-v5", "sac"): ("--env-steps", "100000"),
    ("Ant-v5", "sac"): ("--env-steps", "100000"),
}
# The mean return at which an environment counts as learned.
LEARNED = {"CartPole-v1": 475}
# The columns of results.csv.
COLUMNS = (
    *("env", "name", "seed", "env_steps", "learned_at", "first", "last_tenth", "evaluation"),
    *("evaluation_low", "evaluation_high", "command", "commit", "processor", "versions"),
)
RESAMPLES = 2_000
Row = dict[str, object]


@dataclass(frozen=True)
class Options:
    """Train and evaluate every cell of the table with every seed, and write the results."""

    seeds: tuple[int, ...] = ()
    """Seeds of each cell; default: 10 to 19, with --replay 10 to 14."""

    envs: tuple[str, ...] = ()
    """Environments that are run; default: all of the table."""

    algorithms: tuple[str, ...] = ()
    """Algorithms that are run; default: all of the table."""

    replay: bool = False
    """The runs that learn from replay instead."""

    env_steps: int | None = None
    """Another length of all runs, to try the benchmark out."""

    at_once: int = 1
    """Number of runs at the same time."""

    workers: int = 1
    """Worker processes of each run; it changes no result."""

    runs: Path = Path("runs/learning")
    """Folder of the run folders."""

    output: Path | None = None
    """Folder for the results; default: docs/learning, or docs/learning/replay."""


@dataclass(frozen=True)
class Run:
    """One run of main.py: its cell, seed and command line."""

    env: str
    name: str
    seed: int
    command: tuple[str, ...]

    @property
    def cell(self) -> tuple[str, str]:
        return self.env, self.name


def table(options: Options) -> list[Run]:
    """All runs, first every cell with the first seed, so that every cell has a result early."""
    cells = REPLAY if options.replay else dict.fromkeys(product(ENVIRONMENTS, ALGORITHMS), ())
    runs = []
    for seed in options.seeds or range(10, 15 if options.replay else 20):
        for (env, name), more in cells.items():
            if env not in (options.envs or (env,)) or name not in (options.algorithms or (name,)):
                continue
            flags = ("--env", env, "--algorithm", name.partition(",")[0], *more)
            flags += () if options.replay else FLAGS.get((env, name), ())
            if options.env_steps is not None:
                flags = tuple(w for w in flags if w not in ("--env-steps", "60000", "1000000"))
                flags += ("--env-steps", str(options.env_steps))
            runs.append(Run(env, name, seed, (*flags, "--seed", str(seed))))
    return runs


def folder_of(run: Run, options: Options) -> Path:
    return options.runs / f"{run.env}-{run.name}-{run.seed}".replace(", ", "-")


def result_of(run: Run, options: Options) -> Path:
    """The file with the run's row, which is there once it is finished."""
    return folder_of(run, options) / "learning.json"


def train(run: Run, options: Options) -> None:
    """Train and evaluate, and write the run's row."""
    folder, where = folder_of(run, options), ("--local", "--workers", str(options.workers))
    begun = (folder / "config.json").exists()
    what = ("--resume", str(folder)) if begun else (*run.command, "--output", str(folder))
    main(*what, *where)
    evaluated = json.loads(main("evaluate", str(folder), "--episodes", "20", "--json", *where))
    learned = read_run(folder)
    reached = np.flatnonzero(learned.values >= LEARNED.get(run.env, np.inf))
    start = json.loads((folder / STARTS_NAME).read_text().splitlines()[-1])
    row = {
        **{"env": run.env, "name": run.name, "seed": run.seed},
        "env_steps": int(learned.env_steps[-1]),
        "learned_at": int(learned.env_steps[reached[0]]) if len(reached) else "",
        "first": float(learned.values[0]),
        "last_tenth": final_score(learned),
        "evaluation": evaluated["reward_mean"],
        "evaluation_low": evaluated["reward_low"],
        "evaluation_high": evaluated["reward_high"],
        "command": shlex.join(run.command),
        "commit": start["flame_rl"],
        "processor": machine()["processor"],
        "versions": ", ".join(f"{name} {number}" for name, number in start["versions"].items()),
    }
    result_of(run, options).write_text(json.dumps(row))
    print(f"{folder.name}: {row['last_tenth']:.1f}, evaluated {row['evaluation']:.1f}", flush=True)


def main(*arguments: str) -> str:
    """Run main.py and return what it prints. Ends the benchmark if it fails."""
    command = [sys.executable, str(ROOT / "main.py"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


def with_earlier(rows: Sequence[Row], results: Path) -> list[Row]:
    """The rows, and of cells that have none those of the file, in the order of the table."""
    cells = {(row["env"], row["name"]) for row in rows}
    earlier: list[Row] = []
    if results.exists():
        with results.open(newline="") as file:
            earlier = [
                row for row in csv.DictReader(file) if (row["env"], row["name"]) not in cells
            ]
    names = [*ALGORITHMS, *(name for _, name in REPLAY)]
    envs = [*ENVIRONMENTS, *(env for env, _ in REPLAY)]

    def place(row: Row) -> tuple[int, int, int]:
        return envs.index(row["env"]), names.index(row["name"]), int(row["seed"])

    return sorted([*rows, *earlier], key=place)


def write_results(rows: list[Row], folder: Path) -> None:
    """Write results.csv and README.md."""
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="not recorded", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (folder / "README.md").write_text(markdown(rows, folder))


def by_cell(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of all seeds by environment and name."""
    cells = defaultdict(list)
    for row in rows:
        cells[row["env"], row["name"]].append(row)
    return cells


def interquartile_mean(scores: np.ndarray) -> tuple[float, float, float]:
    """The interquartile mean of the scores of a cell, float64 [seeds], and its 95 % interval."""
    from rliable import library, metrics  # of the group `learning`

    np.random.seed(0)  # rliable draws from NumPy's own generator, whatever it is given
    points, intervals = library.get_interval_estimates(
        {"": scores[:, None]},
        lambda each: np.array([metrics.aggregate_iqm(each)]),
        reps=RESAMPLES,
    )
    (low,), (high,) = intervals[""]
    return float(points[""][0]), float(low), float(high)


def in_words(cell: list[Row], column: str) -> str:
    """The interquartile mean of a column, and its interval."""
    mean, low, high = interquartile_mean(np.array([float(row[column]) for row in cell]))
    return f"{mean:,.0f} ({low:,.0f} to {high:,.0f})"


def markdown(rows: list[Row], folder: Path) -> str:
    """The text of README.md: the results of every cell with all seeds."""
    replay = folder.name == "replay"
    written_by = "uv run --group learning python -m benchmarks.learning" + " --replay" * replay
    columns = (
        "Mean returns of the last tenth of the iterations, actions sampled as training does, and "
        "of 20 other episodes after training, actions deterministic: the interquartile mean over "
        "the seeds with its 95 % interval (bootstrap), and the second of each seed."
    )
    lines = [
        "# Learning curves" + (" of learning from replay" if replay else ""),
        "",
        f"Written by `{written_by}`. "
        + ("Columns are those of the [others](../README.md)." if replay else columns),
        "",
        "| | algorithm | env steps | last tenth | evaluation | each seed |",
        "|---|---|---|---|---|---|",
    ]
    cells = by_cell(rows)
    for (env, name), cell in cells.items():
        steps = np.mean([float(row["env_steps"]) for row in cell])
        each = ", ".join(f"{float(row['evaluation']):.0f}" for row in cell)
        scores = " | ".join(in_words(cell, column) for column in ("last_tenth", "evaluation"))
        lines.append(f"| {env} | {name} | {steps:,.0f} | {scores} | {each} |")
    for env, score in LEARNED.items():
        lines += ["", f"Env steps of {env} until an iteration's mean return was {score}:", ""]
        for (of, name), cell in cells.items():
            if of == env:
                found = ", ".join(str(row["learned_at"] or "never") for row in cell)
                lines.append(f"- {name}: {found}")
    shown = dict.fromkeys(env for env, _ in cells)
    lines += ["", *(f"![{env}]({env}.png)" for env in shown)]
    repeating = (
        "`uv run main.py` with the column `command` of [results.csv](results.csv) repeats a run on "
        "a processor of the same kind; another one rounds differently. Commit, processor and "
        "versions stand beside it; where they were not recorded, a run is of an earlier version, "
        "whose iterations had other sizes. A picture shows only those algorithms whose runs of "
        "this table were at hand when it was drawn."
    )
    if replay:
        repeating = (
            "[results.csv](results.csv) has the commands; LunarLander needs `--group box2d`."
        )
    lines += ["", repeating]
    return "\n".join([*lines, ""])


def in_short(rows: Sequence[Row]) -> str:
    """The table in the package's README: the evaluations of each cell."""
    cells = by_cell(rows)
    lines = ["| | REINFORCE | A2C | PPO |", "|---|---|---|---|"]
    for env in ENVIRONMENTS:
        scores = [in_words(cells[env, name], "evaluation") for name in ALGORITHMS]
        lines.append(f"| {env} | {' | '.join(scores)} |")
    return "\n".join([*lines, ""])


def run_all(options: Options) -> None:
    """Do the runs that are left, and write the results of all that are finished by then."""
    runs = table(options)
    left = [run for run in runs if not result_of(run, options).exists()]
    print(f"{len(runs) - len(left)} of {len(runs)} runs are done", flush=True)
    folder = ROOT / "docs" / "learning"
    output = options.output or (folder / "replay" if options.replay else folder)
    output.mkdir(parents=True, exist_ok=True)
    try:
        with ThreadPoolExecutor(options.at_once) as pool:
            for _ in pool.map(lambda run: train(run, options), left):
                pass
    finally:
        done = [run for run in runs if result_of(run, options).exists()]
        rows = [json.loads(result_of(run, options).read_text()) for run in done]
        for run, row in zip(done, rows, strict=True):
            if row["command"] != shlex.join(run.command):
                sys.exit(f"{folder_of(run, options)}: by `{row['command']}`; name another --runs")
        write_results(with_earlier(rows, output / "results.csv"), output)
        for env in dict.fromkeys(run.env for run in done):
            shown = [str(folder_of(run, options)) for run in done if run.env == env]
            main("plot", *shown, "--output", str(output / f"{env}.png"))
        counts = by_cell([vars(run) for run in runs if run not in done])
        missing = ", ".join(f"{env} {name} {len(each)}" for (env, name), each in counts.items())
        print(f"left: {missing or 'nothing'}", flush=True)


if __name__ == "__main__":
    run_all(tyro.cli(Options, description=__doc__))
