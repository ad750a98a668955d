"""REINFORCE (Williams 1992, "Simple Statistical Gradient-Following Algorithms for Connectionist
Reinforcement Learning"), with a baseline.

    maximise  mean_t [ log pi(a_t | s_t) * (G_t - b_t) ]  +  entropy bonus

G_t is the return from step t to the end of its episode, b_t the baseline: nothing, the mean return
of the other episodes at the same time step, or a value network fitted to the returns. One epoch
over each batch.
"""

from __future__ import annotations

import numpy as np

import model
from flame_rl.learner.on_policy.batch import Batch
from flame_rl.learner.on_policy.epochs import epoch
from flame_rl.learner.on_policy.returns import (
    above_baseline,
    constant_value,
    discounted_returns,
    leave_one_out,
)
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


def reinforce(config: TrainConfig, spec: EnvironmentSpec) -> OnPolicy:
    """The algorithm with new networks."""
    metrics = ("loss", "gradient_norm", "policy_entropy")
    if config.algorithm.baseline == "value":
        metrics += ("value_loss", "explained_variance")
    return on_policy(model.make_networks(spec, config), config, improve, metrics)


def improve(
    networks: ActorCritic,
    batch: Batch,
    config: TrainConfig,
    generator: np.random.Generator,
    decay: float,
) -> Improved:
    """One update. Arguments and result: see `flame_rl.learner.on_policy.update.Improve`."""
    settings, gamma = config.algorithm, config.experiment.gamma
    values = None
    if settings.baseline == "value":
        values = networks.values(batch)
        returns = returns_to_go(batch, gamma, values[np.cumsum(batch.lengths + 1) - 1])
        baseline = values[batch.rows]
    else:
        # Without a value network, one constant stands for the value of what a limit cut off.
        rest = constant_value(batch.rewards, batch.lengths, ~batch.terminated, gamma)
        returns = returns_to_go(batch, gamma, np.full(len(batch.lengths), rest))
        leave_out = settings.baseline == "leave-one-out"
        baseline = leave_one_out(returns, batch.lengths) if leave_out else 0.0

    advantages = above_baseline(returns, baseline)
    columns = {
        "actions": batch.actions,
        "log_probs": batch.log_probs,
        "advantages": normalized(advantages),
    }
    targets, explained = None, {}
    if values is not None:
        networks.follow_returns(returns)
        targets, explained = returns, explained_variance(baseline, returns)
    loss = policy_gradient_loss(settings.entropy_coefficient)
    times = settings.value_epochs
    done = epoch(networks, batch, columns, loss, targets, settings, generator, decay, times)
    return policy_metrics(done.steps), lambda: done.wait_for_values() | explained


def returns_to_go(batch: Batch, discount: float, last: np.ndarray) -> np.ndarray:
    """G_t, float64 [N]; `last` (float64 [E]) is the value of what a time limit cut off."""
    bootstrap = np.where(batch.terminated, 0.0, last)
    return discounted_returns(batch.rewards, batch.lengths, discount, bootstrap)
