"""Epochs of the value network on one batch, here or on another core. Without torch: they may run in
a process of their own (value_process.py)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from flame_rl.learner.on_policy.losses import value_loss
from flame_rl.learner.training.adam import Adam
from flame_rl.learner.training.minibatches import minibatches_of
from flame_rl.learner.training.slices import accumulate
from flame_rl.nets.network import Network, Samples, differentiate


@dataclass(frozen=True)
class ValueEpochs:
    """Epochs of gradient steps on the value loss, over one batch of N steps.

    Attributes:
        inputs: the network's inputs for the observations, float32 [N + E, D].
        rows: the rows of the steps' observations in `inputs`, int64 [N].
        targets: float32 [N].
        orders: the order of the steps, int64 [epochs, N]; see `minibatches.random_order`.
        minibatches: their number in each epoch.
        scale: the scale of the network's output.
        learning_rate: Adam's step size.
        max_grad_norm: a longer gradient is scaled down to it.
        time: the time step of each step in its episode, int64 [N], where minibatches have whole
            episodes; else None.
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
    """Train the network; returns the mean loss of the last epoch."""
    gradient_of = partial(differentiate, network, value_loss(epochs.scale))
    columns = {"targets": epochs.targets}
    if epochs.time is not None:
        columns["time"] = epochs.time

    def step(minibatch: Samples) -> float:
        numbers = accumulate(gradient_of, network, minibatch, adam.gradient)
        adam.clip_gradient(epochs.max_grad_norm)
        adam.step(epochs.learning_rate)
        return numbers["loss"]

    for order in epochs.orders:
        # No name keeps an epoch's minibatches: the next epoch's would be a second copy beside them.
        losses = [
            step(minibatch)
            for minibatch in minibatches_of(
                epochs.inputs, epochs.rows, columns, order, epochs.minibatches
            )
        ]
    return sum(losses) / len(losses)


class Elsewhere(Protocol):
    """Another core that can train the value network; see `value_process.ValueProcess`."""

    def begin(self, adam: Adam, epochs: ValueEpochs) -> bool: ...

    def finish(self, adam: Adam) -> float | None: ...


class ValueTraining:
    """The epochs of the value network in one update, which may run while the policy trains."""

    def __init__(self, network: Network, adam: Adam, elsewhere: Elsewhere | None = None) -> None:
        """`elsewhere` is None where the value network trains in this process."""
        self.network, self.adam, self.elsewhere = network, adam, elsewhere
        self._begun: ValueEpochs | None = None
        self._is_elsewhere = False
        self._loss: float | None = None

    def begin(self, epochs: ValueEpochs) -> None:
        """Begin epochs; the network must not be used before `finish`."""
        self.finish()
        self._begun = epochs
        other = self.elsewhere
        self._is_elsewhere = other is not None and other.begin(self.adam, epochs)

    def finish(self) -> float | None:
        """Wait for the epochs that `begin` began; returns the mean loss of this update's last
        epoch, None where there was none."""
        if self._begun is not None:
            epochs, self._begun = self._begun, None
            loss = self.elsewhere.finish(self.adam) if self._is_elsewhere else None
            self._loss = fit(self.network, self.adam, epochs) if loss is None else loss
        return self._loss

    def discard(self) -> None:
        """Forget the epochs of an update that an exception ended."""
        self._begun = self._loss = None
