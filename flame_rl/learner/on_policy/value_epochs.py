"""Epochs of the value network on one batch, beside the policy's where there is a second core."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cache

from flame_rl.learner.on_policy.losses import value_loss
from flame_rl.learner.training.epoch import Epoch, StepConfig
from flame_rl.learner.training.minibatches import descend, runs_alone
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.system.machine import available_cores


class ValueTraining:
    """The epochs of the value network in one update, which may run while the policy trains."""

    def __init__(self, trained: TrainedNetwork) -> None:
        self._trained = trained
        self._running: Future[float] | None = None
        self._loss: float | None = None

    def begin(self, epochs: Sequence[Epoch], config: StepConfig) -> None:
        """Begin epochs of the value loss, one at least; the network must not be used before
        `finish`."""
        self.finish()
        # What is computed by Python trains here, because two threads would wait for its lock.
        if runs_alone(self._trained.network, epochs[0], value_loss) and available_cores() > 1:
            # The context has NumPy's settings, and the user's wish to stop.
            context = copy_context()
            self._running = _thread().submit(context.run, self._fit, epochs, config)
        else:
            self._loss = self._fit(epochs, config)

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

    def _fit(self, epochs: Sequence[Epoch], config: StepConfig) -> float:
        network, adam = self._trained.network, self._trained.adam
        for epoch in epochs:
            steps = descend(network, adam, epoch, value_loss, config)
        return sum(numbers["loss"] for numbers in steps) / len(steps)


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="values")
