"""Epochs of the value network on one batch, beside the policy's where there is a second core."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np

from flame_rl.learner.on_policy.losses import value_loss
from flame_rl.learner.training.adam import Adam
from flame_rl.learner.training.minibatches import minibatches_of
from flame_rl.learner.training.slices import mean_gradient, on_all_cores
from flame_rl.nets.network import Network, Samples
from flame_rl.system.machine import available_cores


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

    @property
    def largest(self) -> int:
        """The steps of the largest minibatch."""
        return -(-len(self.rows) // self.minibatches)


def fit(network: Network, adam: Adam, epochs: ValueEpochs) -> float:
    """Train the network; returns the mean loss of the last epoch."""
    loss = value_loss(epochs.scale)
    columns = {"targets": epochs.targets}
    if epochs.time is not None:
        columns["time"] = epochs.time

    def step(minibatch: Samples) -> float:
        numbers = mean_gradient(network, minibatch, loss, adam.gradient)
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


class WithoutPython(Protocol):
    """Trains as `fit` does, and lets another thread use Python meanwhile."""

    def fit(self, adam: Adam, epochs: ValueEpochs) -> float: ...


class ValueTraining:
    """The epochs of the value network in one update, which may run while the policy trains."""

    def __init__(self, network: Network, adam: Adam, compiled: WithoutPython | None = None) -> None:
        """`compiled` is None where only Python can train the network."""
        self._network, self._adam, self._compiled = network, adam, compiled
        self._running: Future[float] | None = None
        self._loss: float | None = None

    def begin(self, epochs: ValueEpochs) -> None:
        """Begin epochs; the network must not be used before `finish`."""
        self.finish()
        compiled = self._compiled
        # What keeps all cores busy needs no second thread; and what is computed by Python trains
        # here, because two threads would wait for its lock.
        if compiled is None or on_all_cores(self._network, epochs.largest):
            self._loss = fit(self._network, self._adam, epochs)
        elif available_cores() == 1:
            self._loss = compiled.fit(self._adam, epochs)
        else:
            # The context has NumPy's settings, and the user's wish to stop.
            context = copy_context()
            self._running = _thread().submit(context.run, compiled.fit, self._adam, epochs)

    def finish(self) -> float | None:
        """Wait for the epochs that `begin` began; returns the mean loss of this update's last
        epoch, None where there was none. Raises Interrupted if the user asks to stop."""
        running, self._running = self._running, None
        if running is not None:
            self._loss = running.result()
        return self._loss

    def reset(self) -> None:
        """Begin an update, which has no epochs yet."""
        self._loss = None


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="values")
