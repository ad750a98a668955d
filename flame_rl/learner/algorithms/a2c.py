"""Advantage actor-critic (Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning",
section 4, but synchronous), with generalised advantages in place of n-step returns.

    maximise  mean_t [ log pi(a_t | s_t) A_t ]  +  entropy bonus
    V(s_t) -> A_t + V(s_t)

An update trains the policy for one epoch over its batch, the value network for several.
"""

from numpy.random import Generator

from flame_rl.learner.on_policy import losses
from flame_rl.learner.on_policy.actor_critic import ActorCritic, policy_epoch
from flame_rl.learner.on_policy.batch import Batch
from flame_rl.learner.on_policy.returns import standardize, trust
from flame_rl.learner.training.epoch import StepConfig
from flame_rl.settings.algorithms import A2CSettings
from flame_rl.settings.config import TrainConfig


def a2c(
    networks: ActorCritic, batch: Batch, config: TrainConfig, decay: float, generator: Generator
) -> dict[str, float]:
    """One update. Arguments and result: see `flame_rl.learner.on_policy.update.Update`."""
    settings: A2CSettings = config.algorithm
    values = networks.values(batch)
    advantages = batch.advantages(values, config.experiment.gamma, settings.gae_lambda)
    targets = advantages + values[batch.rows]
    networks.statistics.add_returns_and_rescale(targets)

    factor = trust(advantages, targets)
    columns = networks.columns(batch, targets)
    columns["advantages"] = factor * standardize(advantages, batch.self_normalized_weights)
    epoch = policy_epoch(batch, columns, settings.minibatches, generator)
    value_rate = settings.value_learning_rate * decay
    networks.fit_values(batch, targets, settings.value_epochs, value_rate, generator)
    loss = networks.take_custom_loss() or losses.policy_gradient_loss(settings.entropy_coefficient)
    rate = settings.learning_rate * decay
    step = StepConfig(rate, settings.max_grad_norm, settings.max_kl)
    numbers = networks.fit_policy(epoch, loss, step)
    explained = losses.explained_variance(targets - advantages, targets)
    return losses.policy_metrics(numbers, step) | explained | {"trust": factor}
