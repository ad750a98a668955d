"""Losses of a policy and of its values, and the metrics of an update."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from flame_rl.learner.training.epoch import StepConfig
from flame_rl.learner.training.network import Gradient, Loss, NativeLoss, Samples

# The numbers of a policy's losses.
POLICY_NUMBERS = "loss", "entropy", "kl"


@cache
def policy_gradient_loss(entropy_coefficient: float) -> Loss:
    """-log pi(a_t | s_t) A_t - c H(pi(. | s_t)): the policy gradient theorem's objective (Sutton
    and Barto 2018, eq. 13.11) with an entropy bonus.

    Samples have "advantages" and "log_probs", by the policy before the update, and perhaps
    importance "weights". The network's outputs are log-probabilities and entropies.
    """
    c = entropy_coefficient

    def loss(
        samples: Samples, log_probs: np.ndarray, entropies: np.ndarray
    ) -> tuple[dict[str, np.ndarray], tuple[Gradient, ...]]:
        advantages = samples["advantages"]
        numbers = {
            "loss": -log_probs * advantages - c * entropies,
            "entropy": entropies,
            "kl": kl_terms(log_probs - samples["log_probs"], samples.get("weights", 1.0)),
        }
        return numbers, (-advantages, -c)

    return NativeLoss(loss, "policy_gradient", POLICY_NUMBERS, entropy_coefficient=c)


def _value_loss(
    samples: Samples, values: np.ndarray
) -> tuple[dict[str, np.ndarray], tuple[Gradient, ...]]:
    errors = (values - samples["targets"]) / samples["scale"]
    return {"loss": 0.5 * errors * errors}, (errors / samples["scale"],)


# (V(s_t) - target_t)^2 / 2, with both divided by the scale of the value network. Samples have
# "targets", and "scale", the same for all.
value_loss = NativeLoss(_value_loss, "squared_error", ("loss",))


def kl_terms(log_ratio: np.ndarray, weights: np.ndarray | float = 1.0) -> np.ndarray:
    """r - 1 - log r for each step, with r the action's probability under the new policy over that
    under the old. The mean is an unbiased estimate of KL(old || new), and never negative (Schulman
    2020, "Approximating KL Divergence", k3). Where another policy than the old one acted, they are
    weighted by `Batch.importance_weights`."""
    return weights * (np.expm1(log_ratio) - log_ratio)


def policy_metrics(steps: Sequence[dict[str, float]], config: StepConfig) -> dict[str, float]:
    """Metrics of the policy's epochs.

    Args:
        steps: the numbers of each minibatch; see `ActorCritic.descend`.
        config: how they were taken.

    Returns:
        Means of the losses and of the gradients' norms, the last minibatch's entropy, and the
        number of gradient steps.
    """
    means = [name for name in steps[0] if name.endswith(("loss", "gradient_norm"))]
    return {
        **{name: float(np.mean([step[name] for step in steps])) for name in means},
        "policy_entropy": steps[-1]["entropy"],
        "policy_steps": float(sum(not config.exceeds_kl(step) for step in steps)),
    }


def explained_variance(values: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """The share of the targets' variance that the values before the update explain; both are
    float64 [N]."""
    variance = targets.var()
    explained = 1 - (targets - values).var() / variance if variance > 0 else 0.0
    return {"explained_variance": float(explained)}
