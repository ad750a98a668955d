"""Advantage actor-critic (Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning",
section 4, synchronously), with generalised advantages in place of n-step ones.

    maximise  mean_t [ log pi(a_t | s_t) * A_t ]  +  entropy bonus,   V(s_t) -> A_t + V(s_t)

One epoch of the policy over each batch, a few of the value network.
"""

from __future__ import annotations

import numpy as np

import model
from flame_rl.learner.on_policy.batch import Batch
from flame_rl.learner.on_policy.epochs import epoch
from flame_rl.learner.on_policy.returns import generalized_advantages
from flame_rl.learner.on_policy.update import (
    ActorCritic,
    Improved,
    OnPolicy,
    explained_variance,
    normalized,
    on_policy,
    policy_gradient_loss,
    policy_metrics,
)
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import EnvironmentSpec


def a2c(config: TrainConfig, spec: EnvironmentSpec) -> OnPolicy:
    """The algorithm with new networks."""
    metrics = ("loss", "gradient_norm", "policy_entropy", "value_loss", "explained_variance")
    return on_policy(model.make_networks(spec, config), config, improve, metrics)


def improve(
    networks: ActorCritic,
    batch: Batch,
    config: TrainConfig,
    generator: np.random.Generator,
    decay: float,
) -> Improved:
    """One update. Arguments and result: see `flame_rl.learner.on_policy.update.Improve`."""
    settings = config.algorithm
    values = networks.values(batch)
    advantages = generalized_advantages(
        batch.rewards,
        values,
        batch.lengths,
        batch.terminated,
        config.experiment.gamma,
        settings.gae_lambda,
        batch.weights,
    )
    targets = advantages + values[batch.rows]

    columns = {
        "actions": batch.actions,
        "log_probs": batch.log_probs,
        "advantages": normalized(advantages),
    }
    networks.follow_returns(targets)
    loss = policy_gradient_loss(settings.entropy_coefficient)
    times = settings.value_epochs
    done = epoch(networks, batch, columns, loss, targets, settings, generator, decay, times)
    explained = explained_variance(targets - advantages, targets)
    return policy_metrics(done.steps), lambda: done.wait_for_values() | explained
