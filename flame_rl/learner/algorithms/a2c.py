"""Advantage actor-critic (Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning",
section 4, synchronously), with generalised advantages in place of n-step ones.

    maximise  mean_t [ log pi(a_t | s_t) * A_t ]  +  entropy bonus,   V(s_t) -> A_t + V(s_t)

One pass over each batch.
"""

from __future__ import annotations

import numpy as np

from flame_rl.learner.algorithms.reinforce import policy_gradient
from flame_rl.learner.batch import Batch
from flame_rl.learner.networks import Networks
from flame_rl.learner.passes import (
    advantages_and_targets,
    policy_and_value_passes,
    policy_metrics,
    value_metrics,
)
from flame_rl.settings.config import TrainConfig


def a2c(
    networks: Networks,
    batch: Batch,
    config: TrainConfig,
    generator: np.random.Generator,
    decay: float,
) -> dict[str, float]:
    """One pass. Arguments and result: see `flame_rl.learner.learner.Algorithm`."""
    advantages, targets = advantages_and_targets(networks, batch, config)
    networks.take_in_returns(targets)
    steps, loss = policy_and_value_passes(
        networks,
        batch,
        policy_gradient,
        advantages,
        targets,
        config.value_epochs,
        config,
        generator,
        decay,
    )
    return policy_metrics(steps) | value_metrics(loss, targets - advantages, targets)
