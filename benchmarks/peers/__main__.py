"""Side by side with others on this machine: `uv run python -m benchmarks.peers`.

Stable-Baselines3, sbx (the same in JAX), EnvPool and RLlib are each installed into an environment
of its own, from a dependency group of pyproject.toml in this folder; the project's own environment
stays as it is. What cannot be installed or started is left out, and a line says so. Compared are,
in the same environments and with the same networks (work.py), env steps per second of

- collecting, each the way it is meant to be used: 100 whole episodes on all cores here; 8
  environments in lock step in one process elsewhere (one process each is far slower); two runners
  of 8 of RLlib; 64 environments of EnvPool on two threads, with this package's policy;
- training with PPO, the same work per env step: 10 epochs in minibatches of 64, and, `coarse`, of
  1024;

with `--score`, the seconds from starting a program until its policy is that good; with `--replay`,
gradient steps per second of SAC, TD3 and DQN on one core and on two, beside those of
Stable-Baselines3 and sbx; with both, seconds to a score with DQN and SAC; with `--update`,
minibatch steps of PPO and gradient steps of R2D2 alone, beside loops in JAX that do nothing else;
with `--agents`, what PPO learns with several agents in as many steps, beside Stable-Baselines3
over SuperSuit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import tyro

from benchmarks.peers.work import AGENTS_ENV, SEQUENCES, TASKS, UPDATES
from benchmarks.table import Table, compare, in_turn, write

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# Module and dependency group; without one, the project's own environment is enough.
PEERS = {
    "ours": ("ours", None),
    "Stable-Baselines3": ("sb3", "sb3"),
    "sbx": ("sbx", "sbx"),
    "CleanRL-style": ("clean", None),
    "RLlib": ("rllib", "rllib"),
    "EnvPool": ("pool", "envpool"),
}
SCORES = {"HalfCheetah-v5": 1500.0, "Hopper-v5": 1000.0}
SCORED = ("ours", "Stable-Baselines3", "CleanRL-style")
REPLAY_SCORES = {"CartPole-v1": 475.0, "Acrobot-v1": -100.0, "HalfCheetah-v5": 5000.0}
# Module and dependency group of those that learn from replay up to a score.
REPLAY_SCORED = {"ours": ("replay_ours", None), "Stable-Baselines3": ("replay_sb3", "sb3")}
# Module, dependency group and cores of those that serve gradient steps.
REPLAY_MODULES = {
    "ours": REPLAY_SCORED["ours"],
    "Stable-Baselines3": REPLAY_SCORED["Stable-Baselines3"],
    "sbx": ("replay_sbx", "sbx"),
}
REPLAY_ROWS = {
    f"{name}, {cores} core{'s' * (cores > 1)}": (*module, cores)
    for cores in (1, 2)
    for name, module in REPLAY_MODULES.items()
}
UPDATE_ROWS = {
    "ours, 1 core": ("update_ours", None, 1),
    "ours, 2 cores": ("update_ours", None, 2),
    "JAX, 1 core": ("update_jax", "sbx", 1),
}
# Smaller ones served to choose how many steps an iteration of ours has.
FIRST_SEED = 10
AGENTS_PEERS = {"ours": ("agents_ours", None), "Stable-Baselines3": ("agents_sb3", "agents")}


@dataclass(frozen=True)
class Options:
    """Compare with other packages."""

    envs: tuple[str, ...] = ("HalfCheetah-v5", "Ant-v5")
    """Environments whose speed is compared."""

    repetitions: int = 5
    """How often each row is measured."""

    score: bool = False
    """Compare seconds to a score instead, a seed a repetition."""

    replay: bool = False
    """Compare learning from replay instead."""

    update: bool = False
    """Compare the minibatch steps of PPO, and the gradient steps of R2D2, alone instead."""

    agents: bool = False
    """Compare what several agents learn instead, a seed a repetition; needs the group `agents`."""

    quick: bool = False
    """HalfCheetah, collecting alone, twice, without RLlib, which is slow to start: within a minute,
    once the peers are installed."""

    output: Path = Path("runs/benchmarks")
    """Where JSON and plot go."""


@dataclass
class Peer:
    """A process that does what it is told."""

    process: subprocess.Popen[str]
    tasks: list[str] = field(default_factory=list)

    def rate(self, task: str) -> float:
        """Steps per second."""
        self.process.stdin.write(task + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["steps"] / answer["seconds"]


def main(options: Options) -> None:
    if options.replay and options.score:
        peers = {name: (module, install(group)) for name, (module, group) in REPLAY_SCORED.items()}
        scores = REPLAY_SCORES.items()
        tables = [time_to_score(env_id, target, peers, options) for env_id, target in scores]
        write("replay-score", tables, options.output)
        return
    if options.replay:
        write("replay", replay(options), options.output)
        return
    if options.update:
        write("update", update(options), options.output)
        return
    if options.agents:
        several_agents(options)
        return
    pythons = {}
    for name, (_, group) in PEERS.items():
        if (options.score and name not in SCORED) or (options.quick and name == "RLlib"):
            continue
        try:
            pythons[name] = install(group)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{name} is left out: it cannot be installed: {error}")
    if options.score:
        peers = {name: (PEERS[name][0], python) for name, python in pythons.items()}
        scores = SCORES.items()
        tables = [time_to_score(env_id, target, peers, options) for env_id, target in scores]
        write("score", tables, options.output)
        return
    envs, repetitions = options.envs, options.repetitions
    if options.quick:
        envs, repetitions = envs[:1], 2
    tables = []
    for env_id in envs:
        for table in speed(env_id, pythons, repetitions, options):
            print(f"\n{table}", flush=True)
            tables.append(table)
    write("peers", tables, options.output)


def install(group: str | None) -> Path:
    """The Python of an environment that has what the group names. Uses uv."""
    if group is None:
        return Path(sys.executable)
    environment = HERE / f".venv-{group}"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    subprocess.run(
        ["uv", "sync", "--quiet", "--project", HERE, "--group", group, "--python", version],
        env=os.environ | {"UV_PROJECT_ENVIRONMENT": str(environment)},
        check=True,
    )
    return environment / "bin" / "python"


def start(name: str, python: Path, output: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a peer's program; what it says besides answering goes to a file in `output`."""
    return start_module(PEERS[name][0], python, output, *arguments)


def start_module(
    module: str, python: Path, output: Path, *arguments: str, cores: int = 0
) -> subprocess.Popen[str]:
    """The same for a module of this folder, on so many cores; 0: on all."""
    output.mkdir(parents=True, exist_ok=True)
    name = f"{module}-{cores}" if cores else module
    with (output / f"{name}.log").open("w") as log, limited_to(cores):
        return subprocess.Popen(
            [python, "-m", f"benchmarks.peers.{module}", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


@contextmanager
def limited_to(cores: int) -> Iterator[None]:
    """Programs that are started within the block use so many cores; 0: all."""
    if not cores:
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def timed(module: str, python: Path, output: Path, *arguments: str) -> tuple[str, float]:
    """What a module's program prints, and the seconds from its start to its end."""
    began = time.monotonic()
    process = start_module(module, python, output, *arguments)
    try:
        out, _ = process.communicate()
    finally:
        process.kill()
    return out, time.monotonic() - began


def speed(env_id: str, pythons: dict[str, Path], repetitions: int, options: Options) -> list[Table]:
    """One environment's tables, one for each task; peers that do it, ours first."""
    peers: dict[str, Peer] = {}
    try:
        for name, python in pythons.items():
            # One after another: Ray gives up where starting takes long.
            peers[name] = Peer(start(name, python, options.output, env_id))
            ready = peers[name].process.stdout.readline()
            if ready:
                peers[name].tasks = json.loads(ready)["ready"]
            else:
                log = options.output / f"{PEERS[name][0]}.log"
                print(f"{name} is left out: it does not start with {env_id}; see {log}")
                del peers[name]
        tables = []
        for what in ("collect",) if options.quick else ("collect", "train", "train coarse"):
            rows = {
                name: partial(lambda peer, k, what=what: peer.rate(what), peer)
                for name, peer in peers.items()
                if what in peer.tasks
            }
            first, *others = rows
            title = f"{env_id}, {what}, {repetitions} repetitions"
            rates = in_turn(rows, repetitions)
            tables.append(
                compare(title, "env steps per second", rates, [(first, name) for name in others])
            )
        return tables
    finally:
        for peer in peers.values():
            peer.process.stdin.close()
        for peer in peers.values():
            try:
                peer.process.wait(20)
            except subprocess.TimeoutExpired:
                peer.process.kill()


def served(
    rows: dict[str, tuple[str, str | None, int]],
    tasks: Iterable[str],
    unit: str,
    pairs: list[tuple[str, str]],
    options: Options,
) -> list[Table]:
    """A table for each task.

    Args:
        rows: by name, the module that does the tasks, its dependency group, and its cores.
        tasks: names of what every module serves.
        unit: of the rates.
        pairs: rows, and those that they are compared with.
        options: those of the program.
    """
    peers, tables = {}, []
    try:
        for name, (module, group, cores) in rows.items():
            python = install(group)
            peer = Peer(start_module(module, python, options.output, cores=cores))
            peers[name] = peer
            ready = peer.process.stdout.readline()
            if not ready:
                sys.exit(f"{name} does not start; see {options.output / module}-{cores}.log")
            peer.tasks = json.loads(ready)["ready"]
        for task in tasks:
            measured = {
                name: partial(lambda peer, k, task=task: peer.rate(task), peer)
                for name, peer in peers.items()
            }
            title = f"{task}, {options.repetitions} repetitions"
            tables.append(compare(title, unit, in_turn(measured, options.repetitions), pairs))
            print(f"\n{tables[-1]}", flush=True)
    finally:
        for peer in peers.values():
            peer.process.kill()
            peer.process.wait()
    return tables


def replay(options: Options) -> list[Table]:
    """Gradient steps per second, a table for each task."""
    pairs = [
        (f"ours{cores}", name + cores)
        for cores in (", 1 core", ", 2 cores")
        for name in ("Stable-Baselines3", "sbx")
    ]
    return served(REPLAY_ROWS, TASKS, "gradient steps per second", pairs, options)


def update(options: Options) -> list[Table]:
    """Steps per second, a table for each size and memory; prints the microseconds of each, too."""
    pairs = [(name, "JAX, 1 core") for name in UPDATE_ROWS if name != "JAX, 1 core"]
    tasks = (*UPDATES, *SEQUENCES)
    tables = served(UPDATE_ROWS, tasks, "steps per second", pairs, options)
    for table in tables:
        print(f"\n{table.title}: microseconds a step, median (range)")
        for name, rates in table.rates.items():
            least, middle, most = (1e6 / of(rates) for of in (max, median, min))
            print(f"  {name}: {middle:,.0f} ({least:,.0f} to {most:,.0f})", flush=True)
    return tables


def several_agents(options: Options) -> None:
    """Print the mean return of the agents' last episodes, and the seconds of the run."""
    pythons = {name: install(group) for name, (_, group) in AGENTS_PEERS.items()}
    for seed in range(FIRST_SEED, FIRST_SEED + options.repetitions):
        for name, (peer, _) in AGENTS_PEERS.items():
            out, seconds = timed(peer, pythons[name], options.output, str(seed))
            scored = f"{float(out):.1f} in {seconds:.0f} s" if out else "failed"
            print(f"{AGENTS_ENV} {name} seed {seed}: {scored}", flush=True)


def time_to_score(
    env_id: str, target: float, peers: dict[str, tuple[str, Path]], options: Options
) -> Table:
    """How often per hour it is reached, so that more is faster; where it is not within the run's
    steps, how often those would be done. `peers` are modules of this folder and their Pythons."""

    def per_hour(name: str, k: int) -> float:
        seed = FIRST_SEED + k
        out, seconds = timed(*peers[name], options.output, env_id, str(seed), str(target))
        steps = int(out or 0)
        done = f"{steps:,} steps" if steps else "not reached"
        print(f"{env_id} {name} seed {seed}: {seconds:.1f} s, {done}", flush=True)
        return 3600 / seconds

    rows = {name: partial(per_hour, name) for name in peers}
    title = f"{env_id}, to a mean return of {target:.0f}"
    pairs = [("ours", name) for name in peers if name != "ours"]
    table = compare(title, "times per hour", in_turn(rows, options.repetitions), pairs)
    print(f"\n{table}", flush=True)
    return table


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
