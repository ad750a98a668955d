"""Stable-Baselines3's PPO with several agents, over SuperSuit. Argument as in agents_ours.py."""

from __future__ import annotations

import importlib
import sys

import supersuit
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from benchmarks.peers.work import (
    AGENTS_ENV,
    AGENTS_ITERATION,
    AGENTS_STEPS,
    ENVS,
    last_returns,
)

# Networks this small are quickest so.
torch.set_num_threads(1)


def main(seed: int) -> float:
    environment = importlib.import_module(AGENTS_ENV).parallel_env()
    # Of weights and actions; SuperSuit's vector of environments cannot be seeded.
    set_random_seed(seed)
    agents = len(environment.possible_agents)
    # As SuperSuit's documentation says for agents that end early: they get zeros until all have.
    environment = supersuit.pettingzoo_env_to_vec_env_v1(supersuit.black_death_v3(environment))
    vector = supersuit.concat_vec_envs_v1(environment, ENVS, base_class="stable_baselines3")
    # Observations and rewards normalised, as this package does.
    normalized = VecNormalize(VecMonitor(vector))
    learner = PPO(
        "MlpPolicy",
        normalized,
        n_steps=AGENTS_ITERATION // (ENVS * agents),
        device="cpu",
    )
    seen = Returns()
    learner.learn(AGENTS_STEPS, callback=seen)
    return last_returns(seen.returns)


class Returns(BaseCallback):
    """Those of all agents' episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.returns: list[float] = []

    def _on_step(self) -> bool:
        self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        return True


if __name__ == "__main__":
    print(main(int(sys.argv[1])))
