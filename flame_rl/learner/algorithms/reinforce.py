"""REINFORCE (Williams 1992; Sutton and Barto 2018, section 13.4).

    maximise  mean_t [ log pi(a_t | s_t) * (G_t - b_t) ]  +  entropy bonus

over complete episodes. G_t is the discounted return, b_t a baseline that does not depend on the
action: nothing, the other episodes' returns at the same time step, or a value network that has
learned from earlier iterations only, so that the gradient stays unbiased. The differences are
normalised over the whole batch.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from flame_rl.learner.batch import Batch
from flame_rl.learner.networks import Networks
from flame_rl.learner.passes import (
    minibatches,
    policy_and_value_passes,
    policy_metrics,
    policy_pass,
    value_metrics,
)
from flame_rl.learner.returns import constant_value, discounted_returns, leave_one_out
from flame_rl.settings.config import TrainConfig


def reinforce(
    networks: Networks,
    batch: Batch,
    config: TrainConfig,
    generator: np.random.Generator,
    decay: float,
) -> dict[str, float]:
    """One pass. Arguments and result: see `flame_rl.learner.learner.Algorithm`."""
    if config.baseline != "value":
        # Without a value network, one constant stands for the value of what a limit cut off.
        rest = constant_value(batch.rewards, batch.lengths, ~batch.terminated, config.gamma)
        returns = returns_to_go(batch, config.gamma, np.full(len(batch.lengths), rest))
        baseline = (
            leave_one_out(returns, batch.lengths) if config.baseline == "leave-one-out" else 0.0
        )
        parts = minibatches(batch.steps, config.minibatches, generator)
        advantages = returns - baseline
        return policy_metrics(
            policy_pass(networks, batch, parts, policy_gradient, advantages, config, decay)
        )
    values = networks.values(batch)
    baseline = values[batch.rows.numpy()]
    returns = returns_to_go(batch, config.gamma, values[np.cumsum(batch.lengths + 1) - 1])
    networks.take_in_returns(returns)
    steps, loss = policy_and_value_passes(
        networks,
        batch,
        policy_gradient,
        returns - baseline,
        returns,
        config.value_epochs,
        config,
        generator,
        decay,
    )
    return policy_metrics(steps) | value_metrics(loss, baseline, returns)


def policy_gradient(log_probs: Tensor, _: Tensor, advantages: Tensor) -> Tensor:
    """What the policy gradient theorem says to maximise (Sutton and Barto 2018, eq. 13.11)."""
    return log_probs * advantages


def returns_to_go(batch: Batch, discount: float, last: np.ndarray) -> np.ndarray:
    """G_t, float64 [N]; `last` (float64 [E]) stands for what a time limit cut off."""
    # Rewards beyond all bounds become NaN here, and the update is refused.
    with np.errstate(over="ignore", invalid="ignore"):
        bootstrap = np.where(batch.terminated, 0.0, last)
        return discounted_returns(batch.rewards, batch.lengths, discount, bootstrap)
