"""A sum of named losses, descended by one trained network.

    L = sum over k of w_k L_k,   L_k a loss of some of the network's outputs

The network's outputs share layers, whose gradient is the sum of those of all losses. The norm of
each term, w_k |dL_k|, says which of them moves the network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flame_rl.actor.failure import summary
from flame_rl.learner.training import slices
from flame_rl.learner.training.network import Gradient, Loss, Network, Samples, sums_of
from flame_rl.system.errors import UsageError


@dataclass(frozen=True)
class Term:
    """One loss of a sum.

    Attributes:
        name: of the loss, as in metrics.csv: "policy" has policy_loss and policy_gradient_norm.
        weight: its factor in the sum.
        loss: sees its own outputs alone.
        outputs: the places of its outputs among the network's.
    """

    name: str
    weight: float
    loss: Loss
    outputs: tuple[int, ...]


def differentiate_sum(
    terms: Sequence[Term], network: Network, samples: Samples, gradient: np.ndarray
) -> dict[str, float]:
    """Write the gradient of the weighted sum's mean over all samples to `gradient`.

    Args:
        terms: the losses, in the order in which they are added.
        network: one that torch differentiates, here once for each term.
        samples: B samples.
        gradient: float32 [P], overwritten.

    Returns:
        Means over the samples: "loss" of the sum; for each term, by the names of `metrics_of`,
        its unweighted loss and the norm of its weighted gradient; and the other numbers of the
        terms' losses under their own names.

    Raises:
        UsageError: torch cannot differentiate a loss.
    """

    def of_slice(chunk: Samples, every: np.ndarray) -> dict[str, float]:
        forward = network.forward(chunk)
        numbers: dict[str, np.ndarray] = {}
        for term, own in zip(terms, every, strict=True):
            outputs = [forward.outputs[place] for place in term.outputs]
            of_term, its_gradients = term.loss(chunk, *outputs)
            gradients = dict(zip(term.outputs, its_gradients, strict=True))
            try:
                forward.backward_one(gradients, own, last=term is terms[-1])
            except (Exception, SystemExit) as error:
                raise UsageError(
                    f"the gradient of {_loss(term.name)} failed: {summary(error)}; write a loss of "
                    "--auxiliary, or a network in model.py, in operations that torch "
                    "differentiates, none of them in place"
                ) from error
            numbers |= of_term | {_loss(term.name): of_term["loss"]}
        return sums_of(numbers)

    of_each = np.empty((len(terms), gradient.size), np.float32)
    means = slices.accumulate(of_slice, network, samples, of_each)
    means["loss"] = sum(term.weight * means[_loss(term.name)] for term in terms)
    gradient.fill(0)
    for term, own in zip(terms, of_each, strict=True):
        own *= np.float32(term.weight)
        gradient += own
        means[_norm(term.name)] = math.sqrt(np.dot(own, own))
    return means


def metrics_of(names: Sequence[str]) -> tuple[str, ...]:
    """The names of each term's metrics in `differentiate_sum`: all losses, then all norms."""
    return (*map(_loss, names), *map(_norm, names))


def _loss(name: str) -> str:
    return f"{name}_loss"


def _norm(name: str) -> str:
    return f"{name}_gradient_norm"


def output_as_loss(
    samples: Samples, loss: np.ndarray
) -> tuple[dict[str, np.ndarray], tuple[Gradient, ...]]:
    """The loss of an output that is a loss already, float32 [B]; see `Loss`."""
    return {"loss": loss}, (1.0,)
