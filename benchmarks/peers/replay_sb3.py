"""Gradient steps of Stable-Baselines3's SAC and DQN. Argument: the number of torch's threads."""

from __future__ import annotations

import sys

import torch
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from benchmarks.peers.work import GRADIENT_STEPS, REPLAY_NETWORK, TASKS, serve


def main(threads: int) -> None:
    torch.set_num_threads(threads)
    models = {}
    for task, (algorithm, env_id, batch_size) in TASKS.items():
        model = {"sac": SAC, "dqn": DQN}[algorithm](
            "MlpPolicy",
            env_id,
            buffer_size=100_000,
            batch_size=batch_size,
            learning_starts=10**9,
            policy_kwargs={"net_arch": list(REPLAY_NETWORK)},
            device="cpu",
        )
        model.learn(10_000)  # collects without learning, so that there is experience
        models[task] = model

    def steps(model: OffPolicyAlgorithm) -> int:
        model.train(gradient_steps=GRADIENT_STEPS, batch_size=model.batch_size)
        return GRADIENT_STEPS

    for model in models.values():
        steps(model)
    serve({task: lambda model=model: steps(model) for task, model in models.items()})


if __name__ == "__main__":
    main(int(sys.argv[1]))
