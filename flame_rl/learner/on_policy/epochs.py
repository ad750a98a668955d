"""Epochs over a batch: minibatches in random order, and a step of a network for each.

The policy's are computed here and, at the same time, the value network's on another core; where one
network is both, its epochs descend the sum of its losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from flame_rl.learner.on_policy.auxiliary import columns_of
from flame_rl.learner.on_policy.batch import Batch
from flame_rl.learner.on_policy.update import ActorCritic
from flame_rl.learner.on_policy.value_epochs import ValueEpochs, fit, value_loss
from flame_rl.learner.training.losses import Sum, Term, as_it_is
from flame_rl.learner.training.minibatches import (
    minibatches_of,
    number_of_minibatches,
    random_order,
)
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.nets.network import Loss, Samples
from flame_rl.settings.losses import OWN, loss_name


@dataclass(frozen=True)
class Epoch:
    """What an epoch did.

    Attributes:
        steps: the numbers of each gradient step of the policy; see `TrainedNetwork.step`.
        ended: whether max_kl was exceeded, in this epoch or before.
        exhausted: whether another epoch on the batch would change nothing.
        wait_for_values: must be called once, and before the value network is used again; returns
            those of its metrics that `steps` do not have.
    """

    steps: list[dict[str, float]]
    ended: bool
    exhausted: bool
    wait_for_values: Callable[[], dict[str, float]]


def epoch(
    networks: ActorCritic,
    batch: Batch,
    columns: Samples,
    loss: Loss,
    targets: np.ndarray | None,
    settings: object,
    generator: np.random.Generator,
    decay: float,
    times: int = 1,
    ended: bool = False,
) -> Epoch:
    """One epoch of the policy and, at the same time, epochs of the value network. Where one network
    is both, one epoch of it down the sum of its losses.

    Args:
        networks: the value network's scale follows the returns already.
        batch: N steps, prepared.
        columns: what the policy's loss needs, [N, ...] by name.
        loss: the policy's.
        targets: of the values, float64 [N]; None: they are not trained.
        settings: as in `policy_epoch` and `value_epochs`; where one network is both, with
            value_weight, auxiliary and auxiliary_weights.
        generator: draws the order of the steps.
        decay: factor of the learning rates.
        times: how many epochs of a value network of its own.
        ended: an earlier epoch on this batch has exceeded max_kl, and the policy stays as it is.
    """
    trained: TrainedNetwork = networks.shared or networks.policy
    if networks.shared is not None:
        columns = columns | {"targets": targets.astype(np.float32)}
        columns |= columns_of(batch) if settings.auxiliary else {}
        loss = sum_of(loss, networks.value.module.scale.item(), settings)
        targets = None
    minibatches: list[Samples] = []
    if not ended:
        count = settings.minibatches
        minibatches = shuffled(batch.policy_inputs, batch, columns, count, generator)
    wait_for_values: Callable[[], dict[str, float]] = dict
    if targets is not None:
        wait_for_values = value_epochs(networks, batch, targets, times, settings, generator, decay)
    steps, exceeded = policy_epoch(trained, loss, minibatches, settings, decay)
    ended = ended or exceeded
    return Epoch(steps, ended, ended and targets is None, wait_for_values)


def shuffled(
    inputs: np.ndarray,
    batch: Batch,
    columns: Samples,
    wanted: int,
    generator: np.random.Generator,
) -> list[Samples]:
    """All steps in random order as minibatches for one epoch; a single one is in order. Where a
    network remembers, they are of whole episodes in random order.

    Args:
        inputs: what the network takes of the batch's observations, [N + E, ...].
        batch: N steps.
        columns: what the loss needs, [N, ...] by name.
        wanted: number of minibatches; see `number_of_minibatches`.
        generator: draws the order.
    """
    count = number_of_minibatches(wanted, batch.steps)
    order = random_order(batch.steps, count, generator, batch.time)
    if batch.time is not None:
        columns = columns | {"time": batch.time}
    return minibatches_of(inputs, batch.rows, columns, order, count)


def sum_of(policy_loss: Loss, scale: float, settings: object) -> Sum:
    """The loss of a network that is both: the policy's, that of the values by "targets" in units of
    `scale`, and the auxiliary ones."""
    policy, value = OWN
    terms = [
        Term(policy, 1.0, policy_loss, outputs=(0, 1)),
        Term(value, settings.value_weight, value_loss(scale), outputs=(2,)),
    ]
    weighted = zip(settings.auxiliary, settings.auxiliary_weights, strict=True)
    for name, weight in weighted:
        terms.append(Term(loss_name(name), weight, as_it_is, outputs=(len(terms) + 1,)))
    return Sum(tuple(terms))


def policy_epoch(
    policy: TrainedNetwork,
    loss: Loss | Sum,
    minibatches: Sequence[Samples],
    settings: object,
    decay: float,
) -> tuple[list[dict[str, float]], bool]:
    """One step down the loss for each minibatch, until the KL divergence from the policy before the
    update exceeds max_kl.

    Args:
        policy: in training.
        loss: its own, or of a network that is more than a policy the sum.
        minibatches: see `shuffled`.
        settings: has learning_rate, max_grad_norm and max_kl.
        decay: factor of the learning rate.

    Returns:
        The numbers of each step (`TrainedNetwork.step`), and whether max_kl was exceeded.
    """

    def too_far(numbers: dict[str, float]) -> bool:
        # Not "greater than": a KL that is not a number must not be taken for a small one.
        return not numbers["kl"] <= settings.max_kl

    rate = settings.learning_rate * decay
    steps: list[dict[str, float]] = []
    for minibatch in minibatches:
        steps.append(policy.step(minibatch, loss, rate, settings.max_grad_norm, unless=too_far))
        if too_far(steps[-1]):
            return steps, True
    return steps, False


def value_epochs(
    networks: ActorCritic,
    batch: Batch,
    targets: np.ndarray,
    epochs: int,
    settings: object,
    generator: np.random.Generator,
    decay: float,
) -> Callable[[], dict[str, float]]:
    """Begin epochs of steps down the value loss, on another core where that is possible.

    Args:
        networks: the value network's scale follows the returns already.
        batch: N steps, prepared.
        targets: float64 [N].
        epochs: how many.
        settings: has minibatches, value_learning_rate and max_grad_norm.
        generator: draws the order of each epoch.
        decay: factor of the learning rate.

    Returns:
        A function that must be called once: it ends them, and returns the last one's mean loss as
        "value_loss". The value network is not used before.
    """
    value, process = networks.value, networks.value_process
    count = number_of_minibatches(settings.minibatches, batch.steps)
    orders = [random_order(batch.steps, count, generator, batch.time) for _ in range(epochs)]
    begun = ValueEpochs(
        inputs=batch.value_inputs,
        rows=batch.rows,
        targets=targets.astype(np.float32),
        orders=np.stack(orders),
        minibatches=count,
        scale=value.module.scale.item(),
        learning_rate=settings.value_learning_rate * decay,
        max_grad_norm=settings.max_grad_norm,
        time=batch.time,
    )
    elsewhere = process is not None and process.begin(value.adam, begun)

    def end() -> dict[str, float]:
        loss = process.finish(value.adam) if elsewhere else None
        loss = fit(value.network, value.adam, begun) if loss is None else loss
        return {"value_loss": loss}

    return end
