"""Env steps per second on one machine: `uv run python -m benchmarks.collection`.

For each environment, it compares:

- `bare`: Gymnasium's `env.step` with recorded actions (of the policy that the collectors run),
  resets included; with MuJoCo's clock, which the package stops;
- `floor`: `mj_step` alone with the same actions, for MuJoCo's environments; without the clock;
- `plain`, `fast`: the collector, which acts by a policy and records episodes, over Gymnasium's
  environments and over the fast simulator;
- `1 worker`, `2 workers`: worker processes with the fast collector, each with the same number of
  episodes;
- `2 apart`: two independent processes with the fast collector. They show the most that two cores
  can give, which may share caches and memory, or be hyperthreads of one core.

Most ratios compare steps per second of CPU time, summed over all processes, because a busy machine
disturbs it less; the gain from a second worker is measured by the clock.
"""

from __future__ import annotations

import os

# One thread, as in the worker processes; set before NumPy is imported.
os.environ |= {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}

import gc
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import tyro

from benchmarks.table import Table, compare, in_turn, write
from flame_rl import TrainConfig, Trainer
from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.environments.making import make_environment, stop_clock
from flame_rl.actor.simulators.choose import choose_simulator
from flame_rl.actor.simulators.simulator import Simulator
from flame_rl.backends.local import ProcessBackend
from flame_rl.backends.tasks import Deadlines
from flame_rl.wire.inputs import step_columns
from flame_rl.wire.messages import CollectRequest, Column, Environment, PolicySnapshot

# Environment, iterations of training before the measurement, episodes per measurement (a second or
# two; at least the number that a twin steps side by side), and their time limit. CartPole is also
# measured after training, because an untrained policy's episodes are much shorter.
CASES = (
    ("cartpole", 0, 4000, 500),
    ("cartpole", 15, 512, 500),
    ("halfcheetah", 0, 64, 500),
    ("hopper", 0, 800, 1000),
    ("walker2d", 0, 640, 1000),
    ("ant", 0, 64, 250),
)


@dataclass(frozen=True)
class Options:
    """Compare episode collectors with bare environments."""

    envs: tuple[str, ...] = tuple(dict.fromkeys(env for env, *_ in CASES))
    """Environments to measure."""

    repetitions: int = 7
    """Number of measurements of each row."""

    quick: bool = False
    """Two repetitions with an eighth of the steps: within a minute."""

    output: Path = Path("runs/benchmarks")
    """Folder for the JSON file and the plot."""


def main(options: Options) -> None:
    repetitions, divisor = (2, 8) if options.quick else (options.repetitions, 1)
    tables = []
    for name, iterations, episodes, limit in CASES:
        if name not in options.envs:
            continue
        if episodes > 64 * divisor:
            episodes //= divisor
        else:
            limit //= divisor
        for table in measure(name, iterations, limit, episodes, repetitions):
            print(f"\n{table}", flush=True)
            tables.append(table)
    write("collection", tables, options.output)


def measure(env: str, iterations: int, limit: int, episodes: int, repetitions: int) -> list[Table]:
    """One environment's two tables: by CPU time, and by the clock.

    Args:
        env: the environment's name.
        iterations: training iterations before the measurement.
        limit: the time limit of an episode, in steps.
        episodes: episodes per measurement.
        repetitions: measurements of each row.
    """
    with Trainer(TrainConfig(env=env, local=True, workers=0)) as trainer:
        for _ in range(iterations):
            trainer.train()
        snapshot = trainer.learner.snapshot()
    env_id, columns = trainer.spec.env_id, step_columns(trainer.spec)
    environment = Environment(env_id, limit)
    plain, _ = choose_simulator(replace(environment, simulator="plain"))
    fast, note = choose_simulator(environment)
    if note:
        print(note)
    ask = partial(request, environment, columns, snapshot)
    recorded = collect_episodes(snapshot, ask(min(episodes, 400), 0), plain)
    actions = recorded.actions
    backends = {
        n: ProcessBackend(n, Deadlines(600, 10**9, 10**6), threading.Event()) for n in (1, 2)
    }
    rows: dict[str, Callable[[int], int]] = {"bare": Bare(env_id, limit, actions)}
    if env_id != "CartPole-v1":
        rows["floor"] = Floor(env_id, limit, actions)
    for name, simulator in (("plain", plain), ("fast", fast)):
        rows[name] = partial(collect, simulator, snapshot, partial(ask, episodes))
    for count, backend in backends.items():
        # Each worker gets the number of episodes that the collectors above get.
        rows[f"{count} worker{'s' * (count > 1)}"] = partial(
            collect_on, backend, snapshot, partial(ask, count * episodes)
        )
    apart = Apart(2, rows["fast"])
    rows["2 apart"] = apart
    try:
        for row in rows.values():  # imports, first touches, self-checks
            row(0)
        # Worker processes hold no torch objects for the garbage collector to scan; skip those here.
        gc.freeze()
        timed = in_turn({name: partial(rates, row) for name, row in rows.items()}, repetitions)
    finally:
        apart.close()
        for backend in backends.values():
            backend.close()
    by_clock, by_cpu = ({n: [rate[i] for rate in r] for n, r in timed.items()} for i in (0, 1))
    pairs = [(name, "bare") for name in rows if name not in ("bare", "2 apart")]
    pairs += [("fast", "floor")] * ("floor" in rows) + [("1 worker", "fast")]
    steps = f"of {len(actions) / len(recorded):.0f} steps"
    what = f"{env_id}, {episodes} episodes {steps}, {repetitions} repetitions"
    return [
        compare(f"{what}, by CPU time", "steps per second of CPU", by_cpu, pairs),
        compare(
            f"{what}, by the clock",
            "steps per second",
            by_clock,
            [("2 workers", "1 worker"), ("2 apart", "fast"), ("2 workers", "2 apart")],
        ),
    ]


def rates(row: Callable[[int], int], k: int) -> tuple[float, float]:
    """Steps per second by the clock, and per second of CPU time."""
    cpu, began = cpu_seconds(), time.perf_counter()
    steps = row(k)
    seconds = time.perf_counter() - began
    return steps / seconds, steps / (cpu_seconds() - cpu)


def cpu_seconds() -> float:
    """CPU time that this process and its children have used so far."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(each.user + each.system for each in times)


def request(
    environment: Environment,
    columns: tuple[Column, ...],
    snapshot: PolicySnapshot,
    episodes: int,
    k: int,
) -> CollectRequest:
    return CollectRequest(
        environment=environment,
        columns=columns,
        run_seed=0,
        iteration=k,
        indices=tuple(range(episodes)),
        policy_version=snapshot.version,
    )


def collect(
    simulator: Simulator, snapshot: PolicySnapshot, ask: Callable[[int], CollectRequest], k: int
) -> int:
    return collect_episodes(snapshot, ask(k), simulator).steps


def collect_on(
    backend: ProcessBackend, snapshot: PolicySnapshot, ask: Callable[[int], CollectRequest], k: int
) -> int:
    return backend.collect(snapshot, ask(k)).episodes.steps


class Apart:
    """Independent processes that all measure the same row at the same time and send back only their
    number of steps."""

    def __init__(self, count: int, row: Callable[[int], int]) -> None:
        context = multiprocessing.get_context("fork")  # copies the row without pickling it
        self._children: list[tuple[BaseProcess, Connection]] = []
        for _ in range(count):
            here, there = context.Pipe()
            child = context.Process(target=repeat, args=(row, there), daemon=True)
            child.start()
            there.close()
            self._children.append((child, here))

    def __call__(self, k: int) -> int:
        for _, connection in self._children:
            connection.send_bytes(k.to_bytes(8, "little"))
        return sum(int.from_bytes(each.recv_bytes(), "little") for _, each in self._children)

    def close(self) -> None:
        for child, connection in self._children:
            child.kill()
            child.join()
            connection.close()


def repeat(row: Callable[[int], int], connection: Connection) -> None:
    """In a process of its own: call the row with every number that is received."""
    while True:
        k = int.from_bytes(connection.recv_bytes(), "little")
        connection.send_bytes(row(k).to_bytes(8, "little"))


class Bare:
    """The row `bare`: Gymnasium's own `step` and `reset`, and nothing else."""

    def __init__(self, env_id: str, limit: int, actions: np.ndarray) -> None:
        self._env = make_environment(Environment(env_id, limit))
        space = self._env.action_space
        if isinstance(space, gymnasium.spaces.Box):
            self._actions = list(np.clip(actions, space.low, space.high))
        else:
            self._actions = actions.tolist()
        self._env.reset(seed=0)

    def __call__(self, k: int) -> int:
        env = self._env
        with mujocos_clock():
            for action in self._actions:
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
        return len(self._actions)


@contextmanager
def mujocos_clock() -> Iterator[None]:
    """With the clock that MuJoCo's Python package sets, as without this package."""
    if "mujoco" in sys.modules:
        sys.modules["mujoco"].set_mjcb_time(None)
    try:
        yield
    finally:
        stop_clock()


class Floor:
    """The row `floor`: `mj_step` alone, from the states to which Gymnasium's environment resets."""

    def __init__(self, env_id: str, limit: int, actions: np.ndarray) -> None:
        import mujoco

        env = make_environment(Environment(env_id, limit))
        own = env.unwrapped
        self._mujoco, self._model, self._data = mujoco, own.model, own.data
        self._frames, self._spec = own.frame_skip, mujoco.mjtState.mjSTATE_INTEGRATION
        self._actions = list(np.clip(actions, -1.0, 1.0))
        # Gymnasium plays the actions once, to find at which state and action each episode begins.
        self._starts: dict[int, np.ndarray] = {}
        env.reset(seed=0)
        ended = True
        for i, action in enumerate(self._actions):
            if ended:
                state = np.empty(mujoco.mj_stateSize(own.model, self._spec))
                mujoco.mj_getState(own.model, own.data, state, self._spec)
                self._starts[i] = state
            _, _, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
            if ended:
                env.reset()

    def __call__(self, k: int) -> int:
        mj_step, physics, data = self._mujoco.mj_step, self._model, self._data
        for i, action in enumerate(self._actions):
            if i in self._starts:
                self._mujoco.mj_setState(physics, data, self._starts[i], self._spec)
            data.ctrl[:] = action
            mj_step(physics, data, nstep=self._frames)
        return len(self._actions)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
