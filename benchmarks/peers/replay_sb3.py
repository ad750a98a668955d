"""Stable-Baselines3's SAC, TD3 and DQN. No arguments to serve gradient steps, `ENV_ID SEED TARGET`
to train up to a score."""

from __future__ import annotations

import sys

import torch
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from benchmarks.peers.sb3 import Until
from benchmarks.peers.work import (
    GRADIENT_STEPS,
    REPLAY_NETWORK,
    SCORERS,
    TASKS,
    available_cores,
    serve,
)

# The settings that its authors tuned, as RL Baselines3 Zoo publishes them: steps of the whole run,
# which the exploration is a fraction of, and arguments of the algorithm. The steps are four times
# theirs, so that a late score is one, too, and the fraction is a quarter of theirs.
_WIDE = {"policy_kwargs": {"net_arch": [256, 256]}}
TUNED = {
    "CartPole-v1": (
        200_000,
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1_000,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16 / 4,
            "exploration_final_eps": 0.04,
            **_WIDE,
        },
    ),
    "Acrobot-v1": (
        400_000,
        {
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_fraction": 0.12 / 4,
            "exploration_final_eps": 0.1,
            **_WIDE,
        },
    ),
    "HalfCheetah-v5": (4_000_000, {"learning_starts": 10_000}),
}


ALGORITHMS = {"sac": SAC, "td3": TD3, "dqn": DQN}


def main(algorithms: dict[str, type[OffPolicyAlgorithm]]) -> None:
    """On as many cores as the process may use."""
    torch.set_num_threads(available_cores())
    models = {}
    for task, (algorithm, env_id, batch_size) in TASKS.items():
        model = algorithms[algorithm](
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

    serve({task: lambda model=model: steps(model) for task, model in models.items()})


def score(env_id: str, seed: int, target: float) -> int:
    """Env steps until then with the tuned settings; 0 if it is not within their steps. SAC's larger
    batches are quicker on all cores that it may use."""
    if SCORERS[env_id] == "sac":
        torch.set_num_threads(available_cores())
    algorithm = ALGORITHMS[SCORERS[env_id]]
    steps, settings = TUNED[env_id]
    model = algorithm("MlpPolicy", env_id, seed=seed, device="cpu", **settings)
    until = Until(target)
    model.learn(steps, callback=until)
    return model.num_timesteps if until.reached else 0


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main(ALGORITHMS)
    else:
        print(score(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
