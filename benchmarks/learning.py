"""Learning curves: `uv run python -m benchmarks.learning`. Runs that are done are not run again.

Every run is a command of main.py; the same command by hand gives the same metrics.csv. Results go
to docs/learning: README.md, results.csv with a row per run, and per environment a picture and its
data.
"""

from __future__ import annotations

import csv
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tyro

from flame_rl.report.curves import read_run, smooth

ROOT = Path(__file__).resolve().parent.parent

# Of each environment, env steps in all and about how many of them in one iteration.
STEPS = {
    "CartPole-v1": (60_000, 2_000),
    "HalfCheetah-v5": (1_000_000, 10_000),
    "Hopper-v5": (1_000_000, 4_000),
    "Walker2d-v5": (1_000_000, 4_000),
    "Ant-v5": (1_000_000, 10_000),
}
ALGORITHMS = ("reinforce", "a2c", "ppo")
# What a cell says besides its presets.
FLAGS: dict[tuple[str, str], str] = {}


@dataclass(frozen=True)
class Options:
    """Train every cell of the table with every seed, evaluate, and write it all down."""

    seeds: tuple[int, ...] = (10, 11, 12)
    """Seeds of each cell."""

    envs: tuple[str, ...] = tuple(STEPS)
    """Environments of the table."""

    algorithms: tuple[str, ...] = ALGORITHMS
    """Algorithms of the table."""

    scale: float = 1.0
    """Factor of all env steps, to try the benchmark out."""

    at_once: int = 1
    """Runs side by side."""

    workers: int = 1
    """Worker processes of each run; it changes no result."""

    runs: Path = Path("runs/learning")
    """Where the run folders go."""

    output: Path = ROOT / "docs" / "learning"
    """Where results go."""


@dataclass(frozen=True)
class Run:
    """One cell with one seed."""

    env: str
    algorithm: str
    seed: int
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.env}-{self.algorithm}-{self.seed}"

    @property
    def command(self) -> tuple[str, ...]:
        cell = ("--env", self.env, "--algorithm", self.algorithm, "--seed", str(self.seed))
        return (*cell, *self.flags)


def table(options: Options) -> Iterator[Run]:
    """All runs, seeds last, so that every cell has a result early."""
    for seed in options.seeds:
        for env in options.envs:
            steps, per_iteration = STEPS[env]
            iterations = max(1, round(options.scale * steps / per_iteration))
            amount = ("--iterations", str(iterations), "--steps-per-iter", str(per_iteration))
            for algorithm in options.algorithms:
                own = tuple(shlex.split(FLAGS.get((env, algorithm), "")))
                yield Run(env, algorithm, seed, (*amount, *own))


def do(run: Run, options: Options) -> dict[str, object]:
    """Train and evaluate, as far as that is not done; the row of the run."""
    folder = options.runs / run.name
    result = folder / "learning.json"
    if not result.exists():
        where = ("--local", "--workers", str(options.workers))
        begun = (folder / "config.json").exists()
        what = ("--resume", str(folder)) if begun else (*run.command, "--output", str(folder))
        main(*what, *where)
        evaluated = json.loads(main("evaluate", str(folder), "--episodes", "20", "--json", *where))
        learned = read_run(folder)
        row = {
            "env": run.env,
            "algorithm": run.algorithm,
            "seed": run.seed,
            "env_steps": int(learned.env_steps[-1]),
            "last_tenth": float(smooth(learned.rewards)[-1]),
            "evaluation": evaluated["reward_mean"],
            "evaluation_low": evaluated["reward_low"],
            "evaluation_high": evaluated["reward_high"],
            "command": shlex.join(run.command),
        }
        result.write_text(json.dumps(row))
    row = json.loads(result.read_text())
    if row["command"] != shlex.join(run.command):
        sys.exit(f"{folder} was made by `{row['command']}`; remove it, or name another --runs")
    print(f"{run.name}: {row['last_tenth']:.1f}, evaluated {row['evaluation']:.1f}", flush=True)
    return row


def main(*arguments: str) -> str:
    """What main.py prints. Ends the benchmark if it fails."""
    command = [sys.executable, str(ROOT / "main.py"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


def write_results(rows: list[dict[str, object]], options: Options) -> None:
    """See the top of this file."""
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for env in options.envs:
        folders = [options.runs / run.name for run in table(options) if run.env == env]
        main("plot", *map(str, folders), "--output", str(options.output / f"{env}.png"))
        with (options.output / f"{env}.csv").open("w", newline="") as file:
            points = csv.writer(file, lineterminator="\n")
            points.writerow(("algorithm", "seed", "env_steps", "seconds", "reward_mean"))
            for run in map(read_run, folders):
                for steps, seconds, reward in zip(
                    run.env_steps, run.seconds, run.rewards, strict=True
                ):
                    cell = (run.config.algorithm, run.config.seed, int(steps))
                    points.writerow((*cell, f"{seconds:.2f}", f"{reward:.3f}"))
    (options.output / "README.md").write_text(markdown(rows, options))


def markdown(rows: list[dict[str, object]], options: Options) -> str:
    """The page: of every cell all seeds, and of every run its command."""
    lines = [
        "# Learning curves",
        "",
        "Written by `uv run python -m benchmarks.learning`. Of each run, for seeds "
        f"{', '.join(map(str, options.seeds))}: the mean return of the last tenth of its "
        "iterations, exploring / of 20 evaluation episodes, not exploring.",
        "",
        "| environment | algorithm | env steps | last tenth / evaluation, by seed | means |",
        "|---|---|---|---|---|",
    ]
    for env in options.envs:
        for algorithm in options.algorithms:
            cell = [row for row in rows if (row["env"], row["algorithm"]) == (env, algorithm)]
            each = ", ".join(f"{r['last_tenth']:.0f} / {r['evaluation']:.0f}" for r in cell)
            steps, *means = (
                statistics.fmean(row[name] for row in cell)
                for name in ("env_steps", "last_tenth", "evaluation")
            )
            both = " / ".join(f"{mean:.0f}" for mean in means)
            lines.append(f"| {env} | {algorithm} | {steps:,.0f} | {each} | {both} |")
    lines += ["", *(f"![{env}]({env}.png)" for env in options.envs), "", "## Commands", "", "```"]
    lines += [f"uv run main.py {row['command']}" for row in rows]
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    options = tyro.cli(Options, description=__doc__)
    with ThreadPoolExecutor(options.at_once) as pool:
        write_results(list(pool.map(lambda run: do(run, options), table(options))), options)
