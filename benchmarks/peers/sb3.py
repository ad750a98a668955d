"""Stable-Baselines3's PPO. Arguments as in ours.py."""

from __future__ import annotations

import sys

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.peers.work import BATCH, ENVS, EPOCHS, HIDDEN, MINIBATCH, Score, serve

# Networks this small are quickest so.
torch.set_num_threads(1)
NETWORKS = {"net_arch": list(HIDDEN)}


def main(env_id: str, kind: type[BaseAlgorithm] = PPO) -> None:
    def make(minibatch: int) -> BaseAlgorithm:
        model = kind(
            "MlpPolicy",
            make_vec_env(env_id, ENVS),
            n_steps=BATCH // ENVS,
            batch_size=minibatch,
            n_epochs=EPOCHS,
            policy_kwargs=NETWORKS,
            device="cpu",
        )
        model._setup_learn(10**12)
        return model

    def collect(model: BaseAlgorithm) -> int:
        callback = _Quiet()
        callback.init_callback(model)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        return BATCH

    def train(model: BaseAlgorithm) -> int:
        model.learn(BATCH, reset_num_timesteps=False)
        return BATCH

    fine, coarse = make(MINIBATCH), make(1024)
    serve(
        {
            "collect": lambda: collect(fine),
            "train": lambda: train(fine),
            "train coarse": lambda: train(coarse),
        }
    )


class _Quiet(BaseCallback):
    def _on_step(self) -> bool:
        return True


class Until(BaseCallback):
    """Ends the training at a score."""

    def __init__(self, target: float) -> None:
        super().__init__()
        self._score = Score(target)
        self.reached = False

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.reached = self.reached or self._score.add(info["episode"]["r"])
        return not self.reached


def score(env_id: str, seed: int, target: float) -> int:
    """Env steps until then, with its own defaults, 8 environments in place of one, for speed, and
    what it recommends for MuJoCo: normalised observations and rewards."""
    envs = VecNormalize(make_vec_env(env_id, ENVS, seed=seed), gamma=0.99)
    model = PPO("MlpPolicy", envs, n_steps=2048 // ENVS, seed=seed, device="cpu")
    until = Until(target)
    model.learn(1_000_000, callback=until)
    return model.num_timesteps if until.reached else 0


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        print(score(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
