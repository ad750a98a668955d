"""Losses of a policy and of its values, their weighted sum, and the metrics of an update."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from flame_rl.actor.failure import summary
from flame_rl.learner.training.epoch import StepConfig
from flame_rl.learner.training.network import (
    CompiledLoss,
    Loss,
    LossResult,
    Network,
    Numbers,
    Samples,
    sums_of,
)
from flame_rl.learner.training.slices import gradient_by_slices
from flame_rl.system.errors import UsageError

# The numbers of a policy's losses.
POLICY_NUMBERS = "loss", "entropy", "kl"


@cache
def policy_gradient_loss(entropy_coefficient: float) -> Loss:
    """-log pi(a_t | s_t) A_t - c H(pi(. | s_t)): the policy gradient theorem's objective (Sutton
    and Barto 2018, eq. 13.11) with an entropy bonus.

    Samples have "advantages" and "log_probs", by the policy before the update, and perhaps
    "kl_weights", see `kl_terms`. The network's outputs are log-probabilities and entropies.
    """
    c = entropy_coefficient

    def loss(samples: Samples, log_probs: np.ndarray, entropies: np.ndarray) -> LossResult:
        advantages = samples["advantages"]
        loss = -log_probs * advantages - c * entropies
        return policy_numbers(loss, samples, log_probs, entropies), (-advantages, -c)

    return CompiledLoss(loss, "policy_gradient", POLICY_NUMBERS, entropy_coefficient=c)


def _value_loss(samples: Samples, values: np.ndarray) -> LossResult:
    errors = (values - samples["targets"]) / samples["scale"]
    return {"loss": 0.5 * errors * errors}, (errors / samples["scale"],)


# (V(s_t) - target_t)^2 / 2, with both divided by the scale of the value network. Samples have
# "targets", and "scale", the same for all.
value_loss = CompiledLoss(_value_loss, "squared_error", ("loss",))


def policy_numbers(
    loss: np.ndarray, samples: Samples, log_probs: np.ndarray, entropies: np.ndarray
) -> Numbers:
    """`POLICY_NUMBERS` of each step, given its loss, entropy bonus included."""
    kl = kl_terms(log_probs - samples["log_probs"], samples.get("kl_weights", 1.0))
    return {"loss": loss, "entropy": entropies, "kl": kl}


def kl_terms(log_ratio: np.ndarray, ratios: np.ndarray | float = 1.0) -> np.ndarray:
    """r - 1 - log r for each step, with r the action's probability under the new policy over that
    under the old. The mean is an unbiased estimate of KL(old || new), and never negative (Schulman
    2020, "Approximating KL Divergence", k3). Where another policy than the old one acted, they are
    weighted by `Batch.self_normalized_ratios`."""
    return ratios * (np.expm1(log_ratio) - log_ratio)


def policy_metrics(numbers: Sequence[dict[str, float]], step: StepConfig) -> dict[str, float]:
    """Metrics of the policy's epochs, given numbers of each minibatch: means of the losses and of
    the gradients' norms, the last minibatch's entropy, and the number of gradient steps."""
    means = [name for name in numbers[0] if name.endswith(("loss", "gradient_norm"))]
    return {
        **{name: float(np.mean([each[name] for each in numbers])) for name in means},
        "policy_entropy": numbers[-1]["entropy"],
        "policy_steps": float(sum(not step.exceeds_kl(each) for each in numbers)),
    }


def explained_variance(values: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """The share of the targets' variance that the values before the update explain; both are
    float64 [N]."""
    variance = targets.var()
    explained = 1 - (targets - values).var() / variance if variance > 0 else 0.0
    return {"explained_variance": float(explained)}


@dataclass(frozen=True)
class Term:
    """One loss of a sum, with its factor; it sees its own `outputs` alone, which are places among
    the network's. With the name "policy", metrics.csv has policy_loss and policy_gradient_norm."""

    name: str
    weight: float
    loss: Loss
    outputs: tuple[int, ...]


def differentiate_sum(
    terms: Sequence[Term], network: Network, samples: Samples, gradient: np.ndarray
) -> dict[str, float]:
    """Write the gradient of L = sum over k of w_k L_k, the terms' losses times their weights, mean
    over all samples, to `gradient`. The outputs share layers, whose gradient is the sum of all; the
    norm of each term's, w_k |dL_k|, says which of them moves the network.

    The terms are added in their order; torch differentiates the network once for each; `gradient`,
    float32 [P], is overwritten. Returns means over the samples: "loss" of the sum; for each term,
    by the names of `metrics_of`, its unweighted loss and the norm of its weighted gradient; and the
    other numbers of the terms' losses under their own names. Raises UsageError if torch cannot
    differentiate a loss.
    """

    def of_slice(chunk: Samples, every: np.ndarray) -> dict[str, float]:
        forward = network.forward(chunk)
        numbers: dict[str, np.ndarray] = {}
        for term, own in zip(terms, every, strict=True):
            outputs = [forward.outputs[place] for place in term.outputs]
            of_term, its_gradients = term.loss(chunk, *outputs)
            found = dict(zip(term.outputs, its_gradients, strict=True))
            gradients = [found.get(place) for place in range(len(forward.outputs))]
            try:
                forward.backward(gradients, own, again=term is not terms[-1])
            except (Exception, SystemExit) as error:
                raise UsageError(
                    f"the gradient of {term.name}_loss failed: {summary(error)}; write a loss of "
                    "--auxiliary, or a network in model.py, in operations that torch "
                    "differentiates, none of them in place"
                ) from error
            numbers |= of_term | {f"{term.name}_loss": of_term["loss"]}
        return sums_of(numbers)

    of_each = np.empty((len(terms), gradient.size), np.float32)
    means = gradient_by_slices(of_slice, network, samples, of_each)
    means["loss"] = sum(term.weight * means[f"{term.name}_loss"] for term in terms)
    gradient.fill(0)
    for term, own in zip(terms, of_each, strict=True):
        own *= np.float32(term.weight)
        gradient += own
        means[f"{term.name}_gradient_norm"] = math.sqrt(np.dot(own, own))
    return means


def metrics_of(names: Sequence[str]) -> tuple[str, ...]:
    """The names of each term's metrics in `differentiate_sum`: all losses, then all norms."""
    return tuple(f"{name}_{kind}" for kind in ("loss", "gradient_norm") for name in names)


def output_as_loss(samples: Samples, loss: np.ndarray) -> LossResult:
    """The loss of an output that is a loss already, float32 [B]; see `Loss`."""
    return {"loss": loss}, (1.0,)
