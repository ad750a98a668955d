"""This package's gradient steps of R2D2, of sequences that are drawn already. Imported by
update_ours.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gymnasium.spaces import Box, Discrete

from benchmarks.peers.work import HIDDEN, SequenceData
from flame_rl import TrainConfig
from flame_rl.learner.algorithms.r2d2 import R2D2
from flame_rl.wire.messages import EnvironmentSpec


def steps_of(memory: str) -> Callable[[], int]:
    """Gradient steps with this memory; returns their number."""
    data = SequenceData()
    config = TrainConfig(
        env="CartPole-v1",
        algorithm="r2d2",
        memory=memory,
        memory_size=data.memory,
        hidden_sizes=HIDDEN,
        activation="tanh",
        burn_in=0,
        sequence_length=data.steps,
        learning_rate=data.learning_rate,
        max_grad_norm=data.max_grad_norm,
        tau=data.tau,
    )
    spaces = Box(-np.inf, np.inf, data.observations.shape[2:]), Discrete(2)
    learner = R2D2(config, EnvironmentSpec("CartPole-v1", *spaces))
    generator = np.random.default_rng(0)
    samples = {
        "observations": data.observations[:, :-1],
        "next_observations": data.observations[:, 1:],
        "actions": data.actions,
        "rewards": data.rewards,
        "discounts": data.discounts,
        "mask": np.ones_like(data.rewards),
        "learned": np.ones_like(data.rewards),
    }

    def steps() -> int:
        for _ in range(data.repeats):
            learner.step(samples, generator, 1.0)
        return data.repeats

    return steps
