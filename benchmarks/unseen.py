"""Plain defaults where nobody tuned

Written by `uv run --group learning --group box2d --group minatar python -m benchmarks.unseen`.

This package and Stable-Baselines3 (there), each with its own defaults, learn on as many env steps
where no preset applies; where an environment has no time limit, both get one of 1,000 steps. Mean
returns of the final policies, actions deterministic, in the same 20 episodes (slippery FrozenLake
500, Blackjack 2,000), played by a loop of the benchmark's own: the interquartile mean over the
seeds with its 95 % interval (bootstrap), and each seed. "Above" and "below": each mean is outside
the other's interval. `unseen.csv` beside this page has commands, commits, processors and versions.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import time
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import tyro

from benchmarks.learning import Row, interquartile_mean
from benchmarks.peers.__main__ import ROOT, install, start_module
from benchmarks.peers.work import make_unseen, play
from benchmarks.table import machine
from flame_rl import TrainConfig, Trainer
from flame_rl.run.folder import library_versions, package_version

HERE, THERE = "here", "Stable-Baselines3"
KEYS = ("env", "algorithm", "package", "seed")
Scored = tuple[float, float, float]


@dataclass(frozen=True)
class Task:
    """What is learned in an environment: the algorithm that replays; thousands of env steps of ppo,
    and of that one; arguments of the constructor; the number of episodes that judge."""

    replay: str
    thousands: int
    replay_thousands: int
    arguments: dict[str, object] = field(default_factory=dict)
    episodes: int = 20


# By environment. Where a return is 0 or 1, or luck, more episodes judge.
TASKS = {
    "FrozenLake-v1, not slippery": Task("dqn", 20, 20, {"is_slippery": False}),
    "FrozenLake-v1": Task("dqn", 30, 30, episodes=500),
    "CliffWalking-v1": Task("dqn", 30, 30),
    "Taxi-v4": Task("dqn", 50, 30),
    "Blackjack-v1": Task("dqn", 20, 15, episodes=2000),
    "Acrobot-v1": Task("dqn", 50, 30),
    "LunarLander-v3": Task("dqn", 50, 40),
    "InvertedDoublePendulum-v5": Task("sac", 30, 5),
    "Reacher-v5": Task("sac", 40, 5),
    "Swimmer-v5": Task("sac", 40, 10),
    "Pusher-v5": Task("sac", 40, 10),
    "LunarLander-v3, continuous": Task("sac", 50, 10, {"continuous": True}),
    "BipedalWalker-v3": Task("sac", 50, 10),
    "HumanoidStandup-v5": Task("sac", 20, 10),
}
MINATAR = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
TASKS |= {f"MinAtar/{game}-v1": Task("dqn", 40, 20) for game in MINATAR}


@dataclass(frozen=True)
class Options:
    """Train both packages in every environment with every seed, and write the results."""

    seeds: tuple[int, ...] = (10, 11, 12)
    envs: tuple[str, ...] = tuple(TASKS)
    algorithms: tuple[str, ...] = ("ppo", "dqn", "sac")
    packages: tuple[str, ...] = (HERE, THERE)
    env_steps: int | None = None  # of all runs, to try the benchmark out
    peer: Path | None = None  # a Python with Stable-Baselines3; default: a new one
    runs: Path = Path("runs/unseen")
    output: Path = ROOT / "docs" / "learning"


@dataclass(frozen=True)
class Run:
    """One package's run."""

    env: str
    algorithm: str
    package: str
    seed: int
    env_steps: int

    @property
    def env_id(self) -> str:
        """With the module that registers it, which no preset knows."""
        module = "minatar.gym" if self.env.startswith("MinAtar") else "gymnasium"
        return f"{module}:{self.env.partition(',')[0]}"

    def command(self) -> str:
        """The words of the command line that repeat it here."""
        arguments = [f"{k}={json.dumps(v)}" for k, v in TASKS[self.env].arguments.items()]
        words = ["--env", self.env_id, *(["--env-kwargs", *arguments] if arguments else [])]
        words += ["--algorithm", self.algorithm, "--env-steps", self.env_steps, "--seed", self.seed]
        return shlex.join(map(str, words))

    def file(self, options: Options) -> Path:
        """Where its row is, once it is finished."""
        words = re.findall(r"\w+", " ".join(map(str, vars(self).values())))
        return options.runs / f"{'-'.join(words)}.json"


def table(options: Options) -> list[Run]:
    """All runs: first ppo, then those that replay; of each every environment with a first seed."""
    runs = []
    for algorithm, seed, env in product(options.algorithms, options.seeds, options.envs):
        task = TASKS[env]
        thousands = task.thousands if algorithm == "ppo" else task.replay_thousands
        steps = options.env_steps or 1000 * thousands
        if algorithm in ("ppo", task.replay):
            runs += [Run(env, algorithm, package, seed, steps) for package in options.packages]
    return runs


def returns_here(run: Run) -> list[float]:
    """Train this package; the returns of its final policy."""
    task = TASKS[run.env]
    settings = {"env_steps": run.env_steps, "seed": run.seed, "local": True, "workers": 0}
    config = TrainConfig(run.env_id, run.algorithm, env_kwargs=task.arguments, **settings)
    with Trainer(config) as trainer:
        for _ in trainer:
            pass

        def act(observation: object, info: dict[str, object]) -> object:
            mask = info["action_mask"] if trainer.spec.masked else None
            return trainer.compute_action(observation, action_mask=mask)

        return play(make_unseen(run.env_id, task.arguments), act, task.episodes)


def run_all(options: Options) -> None:
    """Do the runs that are left, and write the results of all that are finished by then."""
    runs = table(options)
    left = [run for run in runs if not run.file(options).exists()]
    print(f"{len(runs) - len(left)} of {len(runs)} runs are done", flush=True)
    options.runs.mkdir(parents=True, exist_ok=True)
    versions = {HERE: ", ".join(f"{name} {each}" for name, each in library_versions().items())}
    if any(run.package == THERE for run in left):
        peer = start_module("unseen_sb3", options.peer or install("unseen"), options.runs)
        versions[THERE] = peer.stdout.readline().strip()
    try:
        for run in left:
            began = time.monotonic()
            if run.package == HERE:
                returns = returns_here(run)
            else:
                asked = vars(run) | vars(TASKS[run.env]) | {"id": run.env_id}
                print(json.dumps(asked), file=peer.stdin, flush=True)
                returns = json.loads(peer.stdout.readline())
            row = vars(run) | {
                "score": float(np.mean(returns)),
                "seconds": round(time.monotonic() - began, 1),
                "command": run.command() if run.package == HERE else "",
                "commit": package_version(),
                "processor": machine()["processor"],
                "versions": versions[run.package],
            }
            run.file(options).write_text(json.dumps(row))
            print(*(row[key] for key in (*KEYS, "score", "seconds")), flush=True)
    finally:
        files = [file for run in runs if (file := run.file(options)).exists()]
        if files:
            write_results([json.loads(file.read_text()) for file in files], options.output)
        print(f"left: {len(runs) - len(files)} of {len(runs)} runs", flush=True)


def write_results(rows: list[Row], folder: Path) -> None:
    """Write unseen.csv and unseen.md, with earlier rows of runs that are not among these."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "unseen.csv"
    earlier = list(csv.DictReader(file.open(newline=""))) if file.exists() else []
    by_run = {tuple(str(row[key]) for key in KEYS): row for row in [*earlier, *rows]}
    columns, rows = [*rows[0]], [by_run[key] for key in sorted(by_run)]
    with file.open("w", newline="") as written:
        writer = csv.DictWriter(written, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (folder / "unseen.md").write_text(markdown(rows))


def verdict(here: Scored, there: Scored) -> str:
    """How scores here compare, both as mean, low and high: "above" or "below" where each mean is
    outside the other's interval."""
    (mean, low, high), (other, other_low, other_high) = here, there
    if mean > other_high and other < low:
        return "above"
    return "below" if mean < other_low and other > high else "level"


def in_words(mean: float, low: float, high: float) -> str:
    """A mean and its interval; of equal scores, or of a single one, the mean."""
    return f"{mean:,.2f}" + (f" ({low:,.2f} to {high:,.2f})" if low < high else "")


def markdown(rows: list[Row]) -> str:
    """The text of unseen.md."""
    lines = [
        f"# {__doc__}",
        "| | algorithm | env steps | here | there | here is | seeds here | seeds there |",
        "|---|---|---|---|---|---|---|---|",
    ]
    not_run: dict[str, list[str]] = {}
    for run in table(Options(seeds=(0,), packages=(HERE,))):
        of_cell = [r for r in rows if (r["env"], r["algorithm"]) == (run.env, run.algorithm)]
        scores = [
            [float(r["score"]) for r in of_cell if r["package"] == each] for each in (HERE, THERE)
        ]
        if not of_cell:
            not_run.setdefault(run.algorithm, []).append(run.env)
            continue
        found = [
            interquartile_mean(np.array(each)) if len(each) > 1 else (*each,) * 3 for each in scores
        ]
        words = [in_words(*f) if f else "not run" for f in found]
        words.append(verdict(*found) if min(map(len, scores)) > 1 else "")
        words += [", ".join(f"{score:,.2f}" for score in each) for each in scores]
        lines.append(f"| {run.env} | {run.algorithm} | {run.env_steps:,} | {' | '.join(words)} |")
    if not_run:
        each = [f"{name} in {', '.join(envs)}" for name, envs in not_run.items()]
        lines += ["", f"Not run yet: {'; '.join(each)}."]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    run_all(tyro.cli(Options, description=__doc__))
