"""RLlib's PPO with two env runners. Argument: `ENV_ID`."""

from __future__ import annotations

import os
import sys

# Below `uv run`, Ray would start its workers with `uv run` too, which means the project's own
# environment, where there is no Ray. It reads this when it is imported.
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.execution.rollout_ops import synchronous_parallel_sample

from benchmarks.peers.work import BATCH, ENVS, EPOCHS, HIDDEN, MINIBATCH, serve

RUNNERS = 2


def main(env_id: str) -> None:
    ray.init("local", include_dashboard=False, num_cpus=RUNNERS + 1, log_to_driver=False)
    algorithm = (
        PPOConfig()
        .environment(env_id)
        .env_runners(num_env_runners=RUNNERS, num_envs_per_env_runner=ENVS)
        .training(train_batch_size_per_learner=BATCH, minibatch_size=MINIBATCH, num_epochs=EPOCHS)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(HIDDEN), fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .build_algo()
    )

    def collect() -> int:
        # Metrics that nobody takes would be counted as the next training's.
        episodes, _ = synchronous_parallel_sample(
            worker_set=algorithm.env_runner_group,
            max_env_steps=BATCH,
            concat=True,
            _uses_new_env_runners=True,
            _return_metrics=True,
        )
        return sum(len(episode) for episode in episodes)

    def train() -> int:
        result = algorithm.train()
        return int(result["env_runners"]["num_env_steps_sampled"])

    serve({"collect": collect, "train": train})


if __name__ == "__main__":
    main(sys.argv[1])
