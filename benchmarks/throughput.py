"""Env steps per second, side by side: `uv run python -m benchmarks.throughput`.

Every row of an environment is measured once per round, in turn, so that what else the machine does
meets all rows alike; a ratio compares rows of the same round. Printed are medians, and of ratios
the smallest and the largest. Ratios are of steps per second of CPU, all processes together, so that
a busy machine blurs them less; only what a second worker adds is by the clock.

`bare` is Gymnasium's `env.step` with actions that lie ready (those of the policy that the
collectors run), resets included; `floor` is `mj_step` alone, with the same actions; everything else
acts by a policy and, except for the vector environments, records episodes.
"""

from __future__ import annotations

import argparse
import os

# As in the worker processes; before NumPy is imported.
os.environ |= {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}

import threading
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import gymnasium
import numpy as np
import psutil

import model
from flame_rl.actor.choose import choose_simulator
from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.policy import ActingPolicy
from flame_rl.actor.simulators import Simulator, describe_environment, make_environment
from flame_rl.backends.patience import Patience
from flame_rl.backends.processes import ProcessBackend
from flame_rl.config import TrainConfig
from flame_rl.messages import CollectRequest, Episode, PolicySnapshot
from flame_rl.presets import with_presets

# Episodes of one measurement: about a second each.
EPISODES = {"cartpole": 4000, "halfcheetah": 64, "hopper": 800, "walker2d": 640, "ant": 64}
PEERS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--env", nargs="+", choices=EPISODES, default=list(EPISODES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--peers", action="store_true", help="Gymnasium's vector environments too")
    arguments = parser.parse_args()
    rounds, part = (2, 8) if arguments.quick else (arguments.rounds, 1)
    for name in arguments.env:
        episodes = max(16, EPISODES[name] // part)
        measure(model.ENVIRONMENTS[name], episodes, rounds, arguments.peers)


def measure(env_id: str, episodes: int, rounds: int, peers: bool) -> None:
    """Print the table of one environment."""
    config = with_presets(TrainConfig(env=env_id), env_id)
    policy, _ = model.make_networks(describe_environment(env_id, None), config)
    snapshot = policy.snapshot(0)
    plain, _ = choose_simulator(env_id, None, "plain")
    fast, note = choose_simulator(env_id, None, "auto")
    if note:
        print(note)
    recorded = collect_episodes(snapshot, request(env_id, 0, min(episodes, 400), snapshot), plain)
    actions = np.concatenate([episode.actions for episode in recorded])
    backends = {
        n: ProcessBackend(n, Patience(600, 10**9, 10**6), threading.Event()) for n in (1, 2)
    }
    rows: dict[str, Callable[[int], int]] = {"bare": Bare(env_id, actions)}
    if env_id != "CartPole-v1":
        rows["floor"] = Floor(env_id, actions)
    rows["plain"] = lambda k: collect(snapshot, request(env_id, k, episodes, snapshot), plain)
    rows["fast"] = lambda k: collect(snapshot, request(env_id, k, episodes, snapshot), fast)
    for count, backend in backends.items():
        # Each worker gets as many episodes as the collectors above.
        rows[f"{count} worker{'s' * (count > 1)}"] = partial(
            collect_on, backend, snapshot, env_id, count * episodes
        )
    if peers:
        rows["SyncVectorEnv"] = Vector(env_id, gymnasium.vector.SyncVectorEnv, snapshot)
        rows["AsyncVectorEnv"] = Vector(env_id, gymnasium.vector.AsyncVectorEnv, snapshot)
    try:
        for row in rows.values():  # imports, first touches, self-checks
            row(0)
        by_clock, by_cpu = {name: [] for name in rows}, {name: [] for name in rows}
        for k in range(rounds):
            for name, row in rows.items():
                began, cpu = time.perf_counter(), cpu_seconds()
                steps = row(k)
                by_clock[name].append(steps / (time.perf_counter() - began))
                by_cpu[name].append(steps / (cpu_seconds() - cpu))
    finally:
        for backend in backends.values():
            backend.close()
        for row in rows.values():
            getattr(row, "close", lambda: None)()
    print(f"\n{env_id}: {episodes} episodes, {rounds} rounds")
    print(f"  {'':16} {'steps/s':>10} {'steps/CPU s':>12}   of bare")
    for name in rows:
        rates = f"{median(by_clock[name]):10,.0f} {median(by_cpu[name]):12,.0f}"
        print(f"  {name:16} {rates}   {ratio(by_cpu[name], by_cpu['bare'])}")
    if "floor" in rows:
        print(f"  fast / floor: {ratio(by_cpu['fast'], by_cpu['floor'])}")
    print(f"  1 worker / fast: {ratio(by_cpu['1 worker'], by_cpu['fast'])}")
    print("  2 workers / 1 worker, by the clock: ", end="")
    print(ratio(by_clock["2 workers"], by_clock["1 worker"]), flush=True)


def ratio(rates: list[float], others: list[float]) -> str:
    ratios = [rate / other for rate, other in zip(rates, others, strict=True)]
    return f"{median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f})"


def cpu_seconds() -> float:
    """What this process and its children have used so far."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def request(env_id: str, k: int, episodes: int, snapshot: PolicySnapshot) -> CollectRequest:
    return CollectRequest(
        env_id=env_id,
        max_episode_steps=None,
        run_seed=0,
        iteration=k,
        indices=tuple(range(episodes)),
        policy_version=snapshot.version,
    )


def steps_of(episodes: list[Episode]) -> int:
    return sum(episode.length for episode in episodes)


def collect(snapshot: PolicySnapshot, asked: CollectRequest, simulator: Simulator) -> int:
    return steps_of(collect_episodes(snapshot, asked, simulator))


def collect_on(
    backend: ProcessBackend, snapshot: PolicySnapshot, env_id: str, episodes: int, k: int
) -> int:
    return steps_of(backend.collect(snapshot, request(env_id, k, episodes, snapshot)).episodes)


class Bare:
    """Gymnasium's own `step` and `reset`, and nothing else."""

    def __init__(self, env_id: str, actions: np.ndarray) -> None:
        self._env = make_environment(env_id, None)
        space = self._env.action_space
        if isinstance(space, gymnasium.spaces.Box):
            self._actions = list(np.clip(actions, space.low, space.high))
        else:
            self._actions = actions.tolist()
        self._env.reset(seed=0)

    def __call__(self, k: int) -> int:
        env = self._env
        for action in self._actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return len(self._actions)


class Floor:
    """`mj_step` alone, from the states that Gymnasium's environment resets to."""

    def __init__(self, env_id: str, actions: np.ndarray) -> None:
        import mujoco

        env = make_environment(env_id, None)
        own = env.unwrapped
        self._mujoco, self._model, self._data = mujoco, own.model, own.data
        self._frames, self._spec = own.frame_skip, mujoco.mjtState.mjSTATE_INTEGRATION
        self._actions = list(np.clip(actions, -1.0, 1.0))
        # Played by Gymnasium once, to know in which states episodes begin, and at which action.
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


class Vector:
    """Gymnasium's vector environments with the same policy; nothing is recorded."""

    def __init__(self, env_id: str, kind: type, snapshot: PolicySnapshot) -> None:
        self._envs = kind([partial(make_environment, env_id, None)] * PEERS)
        self._policy = ActingPolicy(snapshot)
        self._observations, _ = self._envs.reset(seed=0)

    def __call__(self, k: int, steps: int = 1000) -> int:
        policy, envs, observations = self._policy, self._envs, self._observations
        rng = np.random.default_rng(k)
        space = envs.action_space
        for _ in range(steps):
            noise = policy.draw_noise(rng, PEERS)
            actions = policy.act(observations.astype(np.float32), noise)
            if policy.continuous:
                actions = np.clip(actions, space.low, space.high)
            observations, *_ = envs.step(actions)
        self._observations = observations
        return steps * PEERS

    def close(self) -> None:
        self._envs.close()


if __name__ == "__main__":
    main()
