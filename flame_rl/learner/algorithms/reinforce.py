"""REINFORCE (Williams 1992, "Simple Statistical Gradient-Following Algorithms for Connectionist
Reinforcement Learning"), with a baseline.

    maximise  mean_t [ log pi(a_t | s_t) (G_t - b_t) ]  +  entropy bonus

G_t is the return from step t to the end of its episode, b_t the baseline: 0, the mean return of
the other episodes at the same time step, or the prediction of a value network. An update makes one
epoch over its batch.
"""

import numpy as np
from numpy.random import Generator

from flame_rl.learner.on_policy import losses
from flame_rl.learner.on_policy.actor_critic import ActorCritic, policy_epoch
from flame_rl.learner.on_policy.batch import Batch
from flame_rl.learner.on_policy.returns import above_baseline, leave_one_out, standardize, trust
from flame_rl.learner.training.epoch import StepConfig
from flame_rl.settings.algorithms import ReinforceSettings
from flame_rl.settings.config import TrainConfig


def reinforce(
    networks: ActorCritic, batch: Batch, config: TrainConfig, decay: float, generator: Generator
) -> dict[str, float]:
    """One update. Arguments and result: see `flame_rl.learner.on_policy.update.Update`."""
    settings: ReinforceSettings = config.algorithm
    gamma, explained = config.experiment.gamma, {}
    if settings.baseline == "value":
        values = networks.values(batch)
        returns = batch.returns(gamma, values[np.cumsum(batch.lengths + 1) - 1])
        baseline = values[batch.rows]
        explained = losses.explained_variance(baseline, returns)
        networks.statistics.add_returns_and_rescale(returns)
    else:
        returns = batch.estimated_returns(gamma)
        leave_out = settings.baseline == "leave-one-out"
        baseline = leave_one_out(returns, batch.lengths) if leave_out else 0.0

    advantages = above_baseline(returns, baseline)
    factor = trust(advantages, returns)
    columns = networks.columns(batch, returns)
    columns["advantages"] = factor * standardize(advantages)
    epoch = policy_epoch(batch, columns, settings.minibatches, generator)
    if settings.baseline == "value":
        value_rate = settings.value_learning_rate * decay
        networks.fit_values(batch, returns, settings.value_epochs, value_rate, generator)
    loss = networks.take_custom_loss() or losses.policy_gradient_loss(settings.entropy_coefficient)
    rate = settings.learning_rate * decay
    step = StepConfig(rate, settings.max_grad_norm, settings.max_kl)
    numbers = networks.fit_policy(epoch, loss, step)
    return losses.policy_metrics(numbers, step) | explained | {"trust": factor}
