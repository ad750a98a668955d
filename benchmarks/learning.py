"""Learning curves: `uv run python -m benchmarks.learning`. Finished runs are not run again.

Every run is a command of main.py; the same command by hand gives the same metrics.csv. Results go
to docs/learning: README.md, results.csv with a row per run, and a picture per environment. With
`--replay`, the runs are those that learn from replay, with their presets, and results go to
docs/learning/replay. Results of environments that are not run, `--envs`, stay as they are.
"""

from __future__ import annotations

import csv
import json
import shlex
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tyro

from flame_rl.report.runs import final_score, read_run

ROOT = Path(__file__).resolve().parent.parent

# Env steps of a run, by environment.
STEPS = {
    "CartPole-v1": 60_000,
    "HalfCheetah-v5": 1_000_000,
    "Hopper-v5": 1_000_000,
    "Walker2d-v5": 1_000_000,
    "Ant-v5": 1_000_000,
}
ALGORITHMS = ("reinforce", "a2c", "ppo")
# Steps per iteration where they are not the usual ones (`steps_per_iteration`). These and the flags
# below were better with seeds 0 to 5; with these, PPO reaches 1,000 in Hopper in a third of the env
# steps.
PER_ITERATION = {
    ("CartPole-v1", "ppo"): 2_000,
    ("Hopper-v5", "reinforce"): 4_000,
    ("Hopper-v5", "ppo"): 2_000,
    ("Walker2d-v5", "ppo"): 2_000,
}
# Further flags of a run.
FLAGS = {
    # With less noise many runs get stuck at a return of 1,000, sliding on the robot's back; so does
    # REINFORCE with a longer horizon, because its returns then say little about a single action.
    ("HalfCheetah-v5", "reinforce"): (
        *("--gamma", "0.92", "--initial-log-std", "0"),
        *("--value-epochs", "5"),
    ),
    ("HalfCheetah-v5", "a2c"): ("--gamma", "0.97", "--initial-log-std", "0"),
    ("Hopper-v5", "reinforce"): ("--minibatches", "62"),
    # The presets are for the default flags, whose iterations have 25 times as many steps.
    ("Ant-v5", "reinforce"): ("--learning-rate", "1e-4", "--value-epochs", "5"),
}
# The README's first command, with the flags' defaults.
DEFAULT = ("--env", "ant", "--iterations", "20")
# With `--replay`: environment and algorithm of each run, with its presets, and further flags.
REPLAY = {
    ("CartPole-v1", "dqn"): (),
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
# What the page says below its table.
ELSEWHERE = (
    "A processor of another kind rounds differently, so that the same command is another run "
    "there. How much three seeds say of a single cell: the same commands of REINFORCE in "
    "Walker2d-v5, on another kind of processor, had 1121, 1243, 1118 / 1160 in the last tenth, and "
    "1315, 2326, 2000 / 1880 in 100 episodes of evaluation. PPO's rows in CartPole-v1, and all "
    "three curves in its picture, are of that kind, too."
)
# The mean return at which an environment counts as learned.
LEARNED = {"CartPole-v1": 475}


@dataclass(frozen=True)
class Options:
    """Train and evaluate every cell of the table with every seed, and write the results."""

    seeds: tuple[int, ...] = (10, 11, 12)
    """Seeds of each cell."""

    envs: tuple[str, ...] = ()
    """Environments that are run; default: all of the table."""

    algorithms: tuple[str, ...] = ALGORITHMS
    """Algorithms of the table."""

    replay: bool = False
    """The runs that learn from replay instead."""

    scale: float = 1.0
    """Factor by which all env steps are multiplied, to try the benchmark out."""

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
    """One run of main.py.

    Attributes:
        picture: name of the picture that shows its curve.
        name: name of its row, shared by all seeds.
        seed: the run's seed.
        flags: the command line without the seed.
    """

    picture: str
    name: str
    seed: int
    flags: tuple[str, ...]

    @property
    def command(self) -> tuple[str, ...]:
        return (*self.flags, "--seed", str(self.seed))


def table(options: Options) -> Iterator[Run]:
    """All runs, first every cell with the first seed, so that every cell has a result early."""
    if options.replay:
        for seed in options.seeds:
            for (env, name), more in REPLAY.items():
                if options.envs and env not in options.envs:
                    continue
                algorithm = name.partition(",")[0]
                yield Run(env, name, seed, ("--env", env, "--algorithm", algorithm, *more))
        return
    for seed in options.seeds:
        for env in options.envs or STEPS:
            for algorithm in options.algorithms:
                per_iteration = steps_per_iteration(env, algorithm)
                iterations = max(1, round(options.scale * STEPS[env] / per_iteration))
                flags = ("--env", env, "--algorithm", algorithm, "--iterations", str(iterations))
                flags += ("--steps-per-iter", str(per_iteration))
                yield Run(env, algorithm, seed, flags + FLAGS.get((env, algorithm), ()))
        if options.scale == 1 and "Ant-v5" in (options.envs or STEPS):
            yield Run("Ant-v5, defaults", "reinforce", seed, DEFAULT)


def steps_per_iteration(env: str, algorithm: str) -> int:
    """More for PPO, which uses every step several times, and for the ant, whose episodes have 1,000
    steps once it stays on its feet."""
    usual = 4_000 if algorithm == "ppo" or env == "Ant-v5" else 2_000
    return PER_ITERATION.get((env, algorithm), usual)


def folder_of(run: Run, options: Options) -> Path:
    return options.runs / f"{run.picture}-{run.name}-{run.seed}".replace(", ", "-")


def do(run: Run, options: Options) -> dict[str, object]:
    """Train and evaluate, unless that is done already; returns the run's row of results."""
    folder = folder_of(run, options)
    result = folder / "learning.json"
    if not result.exists():
        where = ("--local", "--workers", str(options.workers))
        begun = (folder / "config.json").exists()
        what = ("--resume", str(folder)) if begun else (*run.command, "--output", str(folder))
        main(*what, *where)
        evaluated = json.loads(main("evaluate", str(folder), "--episodes", "20", "--json", *where))
        learned = read_run(folder)
        reached = np.flatnonzero(learned.values >= LEARNED.get(run.picture, np.inf))
        row = {
            "picture": run.picture,
            "name": run.name,
            "seed": run.seed,
            "env_steps": int(learned.env_steps[-1]),
            "learned_at": int(learned.env_steps[reached[0]]) if len(reached) else "",
            "first": float(learned.values[0]),
            "last_tenth": final_score(learned),
            "evaluation": evaluated["reward_mean"],
            "evaluation_low": evaluated["reward_low"],
            "evaluation_high": evaluated["reward_high"],
            "command": shlex.join(run.command),
        }
        result.write_text(json.dumps(row))
    row = json.loads(result.read_text())
    if row["command"] != shlex.join(run.command):
        sys.exit(f"{folder} was made by `{row['command']}`; remove it, or name another --runs")
    print(f"{folder.name}: {row['last_tenth']:.1f}, evaluated {row['evaluation']:.1f}", flush=True)
    return row


def main(*arguments: str) -> str:
    """Run main.py and return what it prints. Ends the benchmark if it fails."""
    command = [sys.executable, str(ROOT / "main.py"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


def write_results(rows: list[dict[str, object]], options: Options) -> None:
    """Write results.csv, the pictures and README.md."""
    output = output_of(options)
    output.mkdir(parents=True, exist_ok=True)
    rows = with_earlier(rows, output / "results.csv", options)
    with (output / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    folders = defaultdict(list)
    for run in table(options):
        folders[run.picture].append(str(folder_of(run, options)))
    for picture, shown in folders.items():
        main("plot", *shown, "--output", str(output / file_name(picture)))
    (output / "README.md").write_text(markdown(rows, options))


def with_earlier(
    rows: list[dict[str, object]], results: Path, options: Options
) -> list[dict[str, object]]:
    """The rows, and those of runs that were not run again, in the order of the whole table."""
    named = {(row["picture"], row["name"], row["seed"]): row for row in rows}
    if results.exists():
        with results.open(newline="") as file:
            for row in csv.DictReader(file):
                named.setdefault((row["picture"], row["name"], int(row["seed"])), row)
    whole = table(replace(options, envs=(), algorithms=ALGORITHMS))
    places = [(run.picture, run.name, run.seed) for run in whole]
    return [named[place] for place in places if place in named]


def output_of(options: Options) -> Path:
    folder = ROOT / "docs" / "learning"
    return options.output or (folder / "replay" if options.replay else folder)


def file_name(picture: str) -> str:
    return picture.replace(", ", "-") + ".png"


def markdown(rows: list[dict[str, object]], options: Options) -> str:
    """The text of README.md: the results of every cell with all seeds."""
    written_by = "uv run python -m benchmarks.learning" + " --replay" * options.replay
    lines = [
        "# Learning curves" + (" of learning from replay" if options.replay else ""),
        "",
        f"Written by `{written_by}`. Of the runs with seeds "
        f"{', '.join(map(str, options.seeds))}, in this order: the mean return of the first "
        "iteration; of the last tenth of the iterations, actions sampled as training does; of 20 "
        "other episodes after training, actions deterministic; then the mean of the seeds. The "
        "versions of the libraries were not recorded.",
        "",
        "| | algorithm | env steps | first iteration | last tenth | evaluation |",
        "|---|---|---|---|---|---|",
    ]
    cells = by_cell(rows)
    for (picture, name), cell in cells.items():
        steps = f"{statistics.fmean(float(row['env_steps']) for row in cell):,.0f}"
        columns = (each(cell, column) for column in ("first", "last_tenth", "evaluation"))
        lines.append(f"| {picture} | {name} | {steps} | {' | '.join(columns)} |")
    if not options.replay:
        lines += ["", ELSEWHERE]
    shown = {row["picture"] for row in rows}
    for picture, score in LEARNED.items():
        if picture not in shown:
            continue
        lines += ["", f"Env steps of {picture} until an iteration's mean return was {score}:", ""]
        for (of, name), cell in cells.items():
            if of == picture:
                lines.append(
                    f"- {name}: {', '.join(str(row['learned_at'] or 'never') for row in cell)}"
                )
    pictures = dict.fromkeys(row["picture"] for row in rows)
    lines += ["", *(f"![{picture}]({file_name(picture)})" for picture in pictures)]
    lines += [
        "",
        "`uv run main.py` with the column `command` of [results.csv](results.csv) repeats a run",
    ]
    lines[-1] += "; LunarLander needs `--group box2d`." if options.replay else "."
    return "\n".join([*lines, ""])


def in_short(rows: list[dict[str, object]]) -> str:
    """The table in the package's README: for each cell, the last tenth with every seed."""
    cells = by_cell(rows)
    lines = ["| | REINFORCE | A2C | PPO |", "|---|---|---|---|"]
    for env in STEPS:
        scores = [each(cells[env, algorithm], "last_tenth") for algorithm in ALGORITHMS]
        lines.append(f"| {env} | {' | '.join(scores)} |")
    return "\n".join([*lines, ""])


def by_cell(rows: list[dict[str, object]]) -> dict[tuple[object, object], list[dict[str, object]]]:
    """Group the rows of all seeds by picture and name."""
    cells = defaultdict(list)
    for row in rows:
        cells[row["picture"], row["name"]].append(row)
    return cells


def each(cell: list[dict[str, object]], column: str) -> str:
    """A column's value for each seed, and their mean."""
    values = [float(row[column]) for row in cell]
    return f"{', '.join(f'{value:.0f}' for value in values)} / {statistics.fmean(values):.0f}"


if __name__ == "__main__":
    options = tyro.cli(Options, description=__doc__)
    with ThreadPoolExecutor(options.at_once) as pool:
        write_results(list(pool.map(lambda run: do(run, options), table(options))), options)
