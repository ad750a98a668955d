"""Epochs of the value network on one batch. Without torch: they may run in a process of their own
(value_process.py)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from flame_rl.learner.on_policy.losses import value_loss
from flame_rl.learner.training.adam import Adam
from flame_rl.learner.training.minibatches import minibatches_of
from flame_rl.learner.training.slices import accumulate
from flame_rl.nets.network import Network, differentiate


@dataclass(frozen=True)
class ValueEpochs:
    """Epochs of steps down the value loss, on one batch of N steps.

    Attributes:
        inputs: what the network takes of the observations, float32 [N + E, D].
        rows: of the steps' observations among the inputs, int64 [N].
        targets: float32 [N].
        orders: of the steps, int64 [epochs, N]; see `minibatches.random_order`.
        minibatches: in each epoch.
        scale: of the network's output.
        learning_rate: Adam's step size.
        max_grad_norm: a longer gradient is scaled down to it.
        time: of the steps in their episodes, int64 [N], where minibatches are of whole episodes;
            else None.
    """

    inputs: np.ndarray
    rows: np.ndarray
    targets: np.ndarray
    orders: np.ndarray
    minibatches: int
    scale: float
    learning_rate: float
    max_grad_norm: float
    time: np.ndarray | None = None


def fit(network: Network, adam: Adam, epochs: ValueEpochs) -> float:
    """Take the steps; returns the mean loss of the last epoch."""
    gradient_of = partial(differentiate, network, value_loss(epochs.scale))
    columns = {"targets": epochs.targets}
    if epochs.time is not None:
        columns["time"] = epochs.time
    for order in epochs.orders:
        losses = []
        for minibatch in minibatches_of(
            epochs.inputs, epochs.rows, columns, order, epochs.minibatches
        ):
            numbers = accumulate(gradient_of, network, minibatch, adam.gradient)
            losses.append(numbers["loss"])
            adam.clip_gradient(epochs.max_grad_norm)
            adam.step(epochs.learning_rate)
    return sum(losses) / len(losses)
