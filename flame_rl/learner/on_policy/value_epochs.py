"""Epochs of the value network on one batch. Without torch: they may run in a process of their own
(value_process.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flame_rl.learner.training.adam import Adam
from flame_rl.learner.training.minibatches import minibatches_of
from flame_rl.learner.training.slices import differentiate
from flame_rl.nets.network import Loss, Network, Samples, Slope


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
    loss, columns = value_loss(epochs.scale), {"targets": epochs.targets}
    if epochs.time is not None:
        columns["time"] = epochs.time
    for order in epochs.orders:
        losses = []
        for minibatch in minibatches_of(
            epochs.inputs, epochs.rows, columns, order, epochs.minibatches
        ):
            losses.append(differentiate(network, minibatch, loss, adam.gradient)["loss"])
            adam.clip_gradient(epochs.max_grad_norm)
            adam.step(epochs.learning_rate)
    return sum(losses) / len(losses)


def value_loss(scale: float) -> Loss:
    """Half the squared error from "targets", in units of `scale`, that of the value network."""

    def loss(
        samples: Samples, values: np.ndarray
    ) -> tuple[dict[str, np.ndarray], tuple[Slope, ...]]:
        errors = (values - samples["targets"]) / scale
        return {"loss": 0.5 * errors * errors}, (errors / scale,)

    return loss
