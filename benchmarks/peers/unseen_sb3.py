"""Stable-Baselines3's PPO, DQN and SAC with its own defaults, for benchmarks/unseen.py. Its first
line names the versions; then it answers each line of standard input, a run, with the returns of the
policy that was learned."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version

import torch
from gymnasium import Env, spaces
from gymnasium.wrappers import FlattenObservation
from stable_baselines3 import DQN, PPO, SAC

from benchmarks.peers.work import make_unseen, play

ALGORITHMS = {"ppo": PPO, "dqn": DQN, "sac": SAC}
# Networks this small are quickest so.
torch.set_num_threads(1)


def make(run: dict[str, object]) -> Env:
    """The run's environment; a Tuple, which it does not know, as one vector."""
    env = make_unseen(run["id"], run["arguments"])
    return FlattenObservation(env) if isinstance(env.observation_space, spaces.Tuple) else env


def scores(run: dict[str, object]) -> list[float]:
    """Train, and play."""
    model = ALGORITHMS[run["algorithm"]]("MlpPolicy", make(run), seed=run["seed"], device="cpu")
    model.learn(run["env_steps"])

    def act(observation: object, info: dict[str, object]) -> object:
        action, _ = model.predict(observation, deterministic=True)
        return action if action.shape else action.item()

    return play(make(run), act, run["episodes"])


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not end up between the answers
    names = ("stable-baselines3", "torch", "numpy", "gymnasium")
    print(", ".join(f"{name} {version(name)}" for name in names), file=answers)
    for line in sys.stdin:
        print(json.dumps(scores(json.loads(line))), file=answers)
