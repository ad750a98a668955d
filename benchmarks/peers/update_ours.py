"""This package's minibatch steps of PPO: policy, values, clipping and Adam; and gradient steps of
R2D2. No arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from gymnasium.spaces import Box

from benchmarks.peers.sequences_ours import steps_of
from benchmarks.peers.work import HIDDEN, SEQUENCES, UPDATES, UpdateData, serve
from flame_rl import TrainConfig
from flame_rl.learner.algorithms.ppo import clipped_loss
from flame_rl.learner.on_policy.actor_critic import policy_epoch
from flame_rl.learner.on_policy.batch import Batch
from flame_rl.learner.on_policy.update import log_probs_of, make_actor_critic, policy_samples
from flame_rl.learner.training.device import reproducible
from flame_rl.learner.training.epoch import StepConfig
from flame_rl.system.machine import keep_freed_memory
from flame_rl.wire.messages import EnvironmentSpec


def main() -> None:
    keep_freed_memory()  # as a run does
    with reproducible("cpu", seed=0):
        tasks = {task: epochs_of(size) for task, size in UPDATES.items()}
        tasks |= {task: steps_of(memory) for task, memory in SEQUENCES.items()}
        serve(tasks)


def epochs_of(size: int) -> Callable[[], int]:
    """Epochs over one batch in minibatches of `size`; returns the number of minibatches."""
    data = UpdateData(size)
    config = TrainConfig(
        env="HalfCheetah-v5",
        algorithm="ppo",
        hidden_sizes=HIDDEN,
        activation="tanh",
        minibatches=data.minibatches,
        # No work that the compiled loop does not have.
        normalize_observations=False,
    )
    steps, observation_dim = data.observations.shape
    spaces = Box(-np.inf, np.inf, (observation_dim,)), Box(-1, 1, data.actions.shape[1:])
    spec = EnvironmentSpec("HalfCheetah-v5", *spaces)
    networks = make_actor_critic(config, spec)
    batch = Batch(
        columns={
            # With the observation after the last step.
            "observations": np.vstack((data.observations, data.observations[:1])),
            "actions": data.actions,
            "rewards": np.zeros(steps),
        },
        rows=np.arange(steps),
        lengths=np.array([steps]),
        terminated=np.array([True]),
    )
    batch = replace(batch, log_probs=log_probs_of(networks.policy.network, policy_samples(batch)))
    batch = networks.prepare(batch)
    # As an update does before its first step; until then the scale of the values is 0.
    networks.statistics.add_returns_and_rescale(data.targets.astype(np.float64))
    generator = np.random.default_rng(0)
    loss = clipped_loss(data.clip_range, 0.0)
    columns = {"advantages": data.advantages}
    rate = data.learning_rate
    descent = StepConfig(rate, config.algorithm.max_grad_norm)

    def epochs() -> int:
        for _ in range(data.epochs):
            epoch = policy_epoch(batch, columns, data.minibatches, generator)
            networks.fit_values(batch, data.targets, 1, rate, generator)
            networks.fit_policy(epoch, loss, descent)
            networks.finish()
        return data.epochs * data.minibatches

    return epochs


if __name__ == "__main__":
    main()
