"""This package's SAC, TD3 and DQN. No arguments to serve gradient steps, `ENV_ID SEED TARGET` to
train up to a score."""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.peers.ours import steps_to
from benchmarks.peers.work import GRADIENT_STEPS, REPLAY_NETWORK, SCORERS, TASKS, serve
from flame_rl import TrainConfig, Trainer
from flame_rl.learner.training.device import reproducible


def main() -> None:
    # No work that the other does not have, whatever the presets say.
    bare = {"layer_norm": False, "normalize_observations": False}
    rarely = {"double": False, "target_period": 10_000, "tau": 1.0}
    plain = {"sac": bare | {"average_critics": False}, "td3": bare, "dqn": rarely}
    trainers = {}
    for task, (algorithm, env_id, batch_size) in TASKS.items():
        config = TrainConfig(
            env=env_id,
            algorithm=algorithm,
            hidden_sizes=REPLAY_NETWORK,
            activation="relu",
            batch_size=batch_size,
            # Collects without learning, so that there is experience.
            warm_up_steps=10**9,
            capacity=100_000,
            local=True,
            workers=0,
            episodes_per_iter=20,
            **plain[algorithm],
        )
        trainers[task] = Trainer(config)
        trainers[task].train()

    def steps(trainer: Trainer) -> int:
        algorithm, generator = trainer.learner.algorithm, np.random.default_rng(0)
        with reproducible("cpu"):
            for _ in algorithm.gradient_steps(GRADIENT_STEPS, 1.0, generator):
                pass
        return GRADIENT_STEPS

    serve({task: lambda trainer=trainer: steps(trainer) for task, trainer in trainers.items()})


def score(env_id: str, seed: int, target: float) -> int:
    """See `steps_to`; with this package's presets."""
    config = TrainConfig(env=env_id, algorithm=SCORERS[env_id], local=True, seed=seed)
    return steps_to(target, config)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        print(score(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
