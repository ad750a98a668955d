"""What all peers have in common: the work that is compared, and how it is asked for.

Imports nothing that not every peer's environment has.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

# One network for the policy, one for the values: two layers of so many tanh units each.
HIDDEN = (64, 64)
# A task is repeated until these have passed, because a machine that has idled is slower at first.
LEAST_SECONDS = 2.0
# Side by side in those peers that step environments in lock step.
ENVS = 8
# Env steps between two updates, how often each is used in one, and in minibatches of how many.
BATCH, EPOCHS, MINIBATCH = 16_384, 10, 64
# A score is the mean return of so many training episodes in a row.
EPISODES = 20
# Learning from replay: networks with relu units, gradient steps of a repetition, and by task the
# algorithm, the environment and the steps in a batch.
REPLAY_NETWORK, GRADIENT_STEPS = (256, 256), 300
TASKS = {
    "SAC, 256": ("sac", "HalfCheetah-v5", 256),
    "TD3, 256": ("td3", "HalfCheetah-v5", 256),
    "DQN, 64": ("dqn", "Acrobot-v1", 64),
    "DQN, 128": ("dqn", "Acrobot-v1", 128),
}

# Minibatch steps of PPO: by task, the steps in a minibatch.
UPDATES = {f"minibatches of {size:,}": size for size in (64, 250, 1_000)}

# Gradient steps of R2D2: by task, the recurrent layer.
SEQUENCES = {"R2D2, GRU": "gru", "R2D2, LSTM": "lstm"}

# Several agents: the environment's module, their steps of an iteration, and of a run.
AGENTS_ENV, AGENTS_ITERATION, AGENTS_STEPS = "mpe2.simple_spread_v3", 6_000, 300_000

# The algorithm that trains up to a score, by environment.
SCORERS = {"CartPole-v1": "dqn", "Acrobot-v1": "dqn", "HalfCheetah-v5": "sac"}


def serve(
    tasks: dict[str, Callable[[], int]], uncounted: dict[str, Callable[[], object]] | None = None
) -> None:
    """Answer each line of standard input, the name of a task, with a line of JSON. Each task is
    done once before, when what it needs is imported or compiled; then it is repeated until
    `LEAST_SECONDS` have passed.

    Args:
        tasks: each does its work and returns how many env steps, or gradient steps, that were.
        uncounted: what a task does first, before its seconds count.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not end up between the answers
    for task in tasks.values():
        task()
    print(json.dumps({"ready": sorted(tasks)}), file=answers)
    for line in sys.stdin:
        name = line.strip()
        if uncounted and name in uncounted:
            uncounted[name]()
        began = time.perf_counter()
        steps, seconds = 0, 0.0
        while seconds < LEAST_SECONDS:
            steps += tasks[name]()
            seconds = time.perf_counter() - began
        print(json.dumps({"steps": steps, "seconds": seconds}), file=answers)


def available_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def last_returns(returns: list[float]) -> float:
    """The mean of the last tenth of all episodes' returns, in their order."""
    last = returns[-max(1, len(returns) // 10) :]
    return sum(last) / len(last)


class UpdateData:
    """Random steps as in HalfCheetah, for minibatch steps of PPO, and their settings.

    Attributes:
        minibatches: of `size` steps each; about 4,000 steps in all, so that none is smaller.
        epochs: of a repetition.
        observations, actions: float32 [N, 17] and [N, 6].
        advantages, targets: float32 [N].
    """

    epochs, clip_range, max_grad_norm = 40, 0.2, 0.5
    # So small that a million steps leave the networks, and so the work, as they were.
    learning_rate = 1e-8

    def __init__(self, size: int) -> None:
        self.minibatches = 4_000 // size
        steps, rng = self.minibatches * size, np.random.default_rng(0)
        self.observations = rng.standard_normal((steps, 17), np.float32)
        self.actions = rng.standard_normal((steps, 6), np.float32)
        self.advantages = rng.standard_normal(steps, np.float32)
        self.targets = rng.standard_normal(steps, np.float32)


class SequenceData:
    """Random sequences as in CartPole, for gradient steps of R2D2, and their settings.

    Attributes:
        repeats: gradient steps of a repetition.
        observations: float32 [B, L + 1, 4].
        actions, rewards, discounts: int64, float32 and float32 [B, L].
    """

    repeats, sequences, steps, memory = 100, 32, 40, 64
    max_grad_norm, tau = 10.0, 0.02
    # See `UpdateData`.
    learning_rate = 1e-8

    def __init__(self) -> None:
        rng, shape = np.random.default_rng(0), (self.sequences, self.steps)
        self.observations = rng.standard_normal((self.sequences, self.steps + 1, 4), np.float32)
        self.actions = rng.integers(2, size=shape)
        self.rewards = rng.standard_normal(shape, np.float32)
        self.discounts = np.full(shape, 0.99, np.float32)


class Score:
    """The mean return of the last `EPISODES` training episodes, and whether it is high enough."""

    def __init__(self, target: float) -> None:
        self._target = target
        self._returns: deque[float] = deque(maxlen=EPISODES)

    def add(self, value: float) -> bool:
        """Take in an episode's undiscounted return; whether the target is reached."""
        self._returns.append(value)
        full = len(self._returns) == EPISODES
        return full and sum(self._returns) / EPISODES >= self._target


def make_unseen(env_id: str, arguments: dict[str, object]) -> Any:
    """An environment of benchmarks/unseen.py, named as module:id, with a limit of 1,000 steps where
    it has none of its own."""
    import gymnasium

    module, _, name = env_id.partition(":")
    if module == "minatar.gym":
        importlib.import_module(module).register_envs()
    limit = gymnasium.spec(name).max_episode_steps or 1000
    return gymnasium.make(name, max_episode_steps=limit, disable_env_checker=True, **arguments)


def play(env: Any, act: Callable[[Any, dict[str, Any]], Any], episodes: int) -> list[float]:
    """The returns of the episodes that begin with seeds from 1,000,000 on; `act` chooses an action
    for an observation and what came with it in `info`."""
    returns = []
    for seed in range(1_000_000, 1_000_000 + episodes):
        observation, info = env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            observation, reward, *ends, info = env.step(act(observation, info))
            total, ended = total + float(reward), any(ends)
        returns.append(total)
    env.close()
    return returns
