"""Collecting Pong on one core: `uv run --group atari python -m benchmarks.pictures`.

It compares, with the same convolutions and as many episodes side by side:

- `bare`: Gymnasium's `env.step` alone, with random actions;
- `wrappers and torch`: Gymnasium's wrappers, which stack frames, and torch's forward pass; nothing
  is recorded;
- `ours`: the collector, which acts by NumPy and records episodes.
"""

from __future__ import annotations

import os

# One thread, as in the worker processes; set before NumPy is imported.
os.environ |= {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import gymnasium
import numpy as np
import torch
import tyro
from gymnasium.wrappers import FrameStackObservation

from benchmarks.table import compare, in_turn, write
from flame_rl import TrainConfig, Trainer
from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.simulators.choose import choose_simulator
from flame_rl.wire.inputs import step_columns
from flame_rl.wire.messages import CollectRequest, Environment

ENV_ID = "benchmarks.pong:Pong-v0"
FRAMES, EPISODES, STEPS = 4, 32, 100


@dataclass(frozen=True)
class Options:
    """Compare collecting from pictures with Gymnasium's wrappers and torch."""

    repetitions: int = 5
    """Number of measurements of each row."""

    quick: bool = False
    """One measurement: within a minute."""

    output: Path = Path("runs/benchmarks")
    """Folder for the JSON file and the plot."""


def main(options: Options) -> None:
    torch.set_num_threads(1)
    config = TrainConfig(
        env=ENV_ID,
        algorithm="ppo",
        hidden_sizes=(512,),
        activation="relu",
        frame_stack=FRAMES,
        max_episode_steps=STEPS,
        local=True,
        workers=0,
    )
    with Trainer(config) as trainer:
        snapshot = trainer.learner.snapshot()
        policy = trainer.learner.parts["policy"]
        simulator, _ = choose_simulator(Environment(trainer.spec.env_id, STEPS))
        columns = step_columns(trainer.spec)
        actions = int(trainer.spec.action_space.n)

    def ours(k: int) -> int:
        request = CollectRequest(
            environment=Environment(trainer.spec.env_id, STEPS),
            columns=columns,
            run_seed=0,
            iteration=k,
            indices=tuple(range(EPISODES)),
            policy_version=snapshot.version,
        )
        return collect_episodes(snapshot, request, simulator).steps

    plain = [gymnasium.make(ENV_ID) for _ in range(EPISODES)]
    stacked = [FrameStackObservation(gymnasium.make(ENV_ID), FRAMES) for _ in range(EPISODES)]
    rng = np.random.default_rng(0)

    def bare(k: int) -> int:
        return play(plain, lambda observations: rng.integers(actions, size=len(observations)))

    @torch.no_grad()
    def act(observations: list[np.ndarray]) -> np.ndarray:
        return policy(torch.from_numpy(np.stack(observations)).flatten(2)).sample().numpy()

    rows = {"bare": bare, "wrappers and torch": lambda k: play(stacked, act), "ours": ours}
    for row in rows.values():
        row(0)
    repetitions = 1 if options.quick else options.repetitions
    rates = in_turn({name: partial(rate, row) for name, row in rows.items()}, repetitions)
    title = f"Pong, {EPISODES} episodes of {STEPS} steps side by side"
    pairs = [("ours", "wrappers and torch"), ("ours", "bare")]
    table = compare(title, "env steps per second", rates, pairs)
    print(f"\n{table}")
    share = 1 - median(table.ratios[1].values)
    print(f"\nShare of the time in which ours does not step the environment: {share:.0%}")
    write("pictures", [table], options.output)


def play(envs: list[gymnasium.Env], act: Callable[[list[np.ndarray]], np.ndarray]) -> int:
    """One episode of each environment, in lock step; returns the number of steps."""
    observations = [env.reset(seed=place)[0] for place, env in enumerate(envs)]
    for _ in range(STEPS):
        actions = act(observations)
        observations = [env.step(int(a))[0] for env, a in zip(envs, actions, strict=True)]
    return STEPS * len(envs)


def rate(row: Callable[[int], int], k: int) -> float:
    """Steps per second."""
    began = time.perf_counter()
    return row(k) / (time.perf_counter() - began)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
