"""A policy and its values in training: two networks, or one that is both.

N is the number of steps in a batch, E the number of episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.random import Generator
from torch import nn

from flame_rl.learner.on_policy.batch import Batch
from flame_rl.learner.on_policy.losses import (
    Term,
    differentiate_sum,
    metrics_of,
    output_as_loss,
    value_loss,
)
from flame_rl.learner.state import Stateful
from flame_rl.learner.training.epoch import (
    Epoch,
    StepConfig,
    runs_compiled,
    train_epoch,
    train_minibatches,
)
from flame_rl.learner.training.frames import SideBySide, time_steps
from flame_rl.learner.training.network import Loss, Network, Samples
from flame_rl.learner.training.normalize import RunningMoments
from flame_rl.learner.training.slices import kept_threads, outputs, run_parallel
from flame_rl.learner.training.trained import Adam, TrainedNetwork
from flame_rl.modules.networks import SharedNetwork, ValueNetwork, rescale
from flame_rl.modules.observations import normalizers_of
from flame_rl.settings.algorithms import SHARED_LOSSES, OnPolicySettings, loss_name
from flame_rl.system.machine import available_cores


@dataclass(frozen=True)
class Computed:
    """A torch module, and the network that computes it."""

    module: nn.Module
    network: Network


class PolicyTraining:
    """A policy in training, alone: how it is computed, and its Adam. Nothing here plays episodes.

    Attributes:
        shared: whether policy and values are one network, and so stop learning together.
        frames: how many observations, the latest and those before it, are one input.
        remembers: whether a network has a memory, so that minibatches are of whole episodes.
        metrics: names of the numbers that `fit_policy` returns besides those of the policy's loss.
    """

    shared = False
    metrics: tuple[str, ...] = ()

    def __init__(self, policy: TrainedNetwork | Computed, adam: Adam) -> None:
        self.policy, self.adam = policy, adam
        self.remembers, self.frames = policy.network.remembers, policy.network.frames

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        """Everything with state, by name."""
        return {"policy": self.policy.module, "policy_adam": self.adam}

    def prepare(self, batch: Batch) -> Batch:
        """Add the networks' inputs to the batch; an update begins with it."""
        inputs = self.policy.network.prepare(batch.network_inputs)
        return replace(batch, policy_inputs=inputs)

    def columns(self, batch: Batch, targets: np.ndarray) -> Samples:
        """Targets and the like for the other losses of a shared network, [N, ...] by name; {} where
        networks are two. `targets`, float64 [N], are those of the values."""
        return {}

    def fit_policy(self, epoch: Epoch, loss: Loss, config: StepConfig) -> list[dict[str, float]]:
        """Train the policy for an epoch; where one network is both, on the weighted sum of its
        losses, whose numbers are returned, too. See `train_epoch`."""
        return train_epoch(self.policy.network, self.adam, epoch, loss, config)


class ActorCritic(PolicyTraining):
    """A policy and its values, as an on-policy algorithm trains them: here two networks, each with
    its Adam.

    An algorithm takes the `values` of a batch, then trains for some epochs. In each, `fit_values`
    comes before `fit_policy`: the value network may train on another core beside the policy, from
    the call of `fit_values` on. `values`, `finish` and the next `fit_values` wait for its end.

    Attributes:
        statistics: running means and variances of observations and returns.
        given_loss: the user's, which `take_custom_loss` returns; None: there is none.
        asked: whether an update has called `take_custom_loss`.
    """

    given_loss: Loss | None = None
    asked = False

    def __init__(
        self,
        policy: TrainedNetwork | Computed,
        value: TrainedNetwork | Computed,
        adam: Adam,
        statistics: Statistics,
        settings: OnPolicySettings,
    ) -> None:
        """`adam` optimises the policy's parameters."""
        super().__init__(policy, adam)
        self.value, self.statistics, self._settings = value, statistics, settings
        self.remembers = policy.network.remembers or value.network.remembers
        # The epochs of the values that run beside the policy's, and the loss of this update's last.
        self._running: Future[float] | None = None
        self._loss: float | None = None

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        return {
            "policy": self.policy.module,
            "value": self.value.module,
            "policy_adam": self.adam,
            "value_adam": self.value.adam,
            **self.statistics.parts,
        }

    def take_custom_loss(self) -> Loss | None:
        """The user's loss, in place of the algorithm's loss of the policy, if there is one. Notes
        that the update has asked for it: one that never does refuses the flag."""
        self.asked = True
        return self.given_loss

    def prepare(self, batch: Batch) -> Batch:
        self._loss = None
        inputs = batch.network_inputs
        networks = self.policy.network, self.value.network
        of_policy, of_value = run_parallel([partial(each.prepare, inputs) for each in networks])
        # One array, so that both networks share the cache.
        if isinstance(of_policy, np.ndarray) and np.array_equal(of_policy, of_value):
            of_value = of_policy
        return replace(batch, policy_inputs=of_policy, value_inputs=of_value)

    def values(self, batch: Batch) -> np.ndarray:
        """V(s) of all observations of a prepared batch, float64 [N + E]."""
        self.finish()
        samples = {"inputs": batch.value_inputs}
        if batch.time is not None:
            samples["time"] = time_steps(batch.lengths + 1)
        (values,) = outputs(self.value.network, samples)
        return values.astype(np.float64)

    def fit_values(
        self,
        batch: Batch,
        targets: np.ndarray,
        epochs: int,
        learning_rate: float,
        generator: Generator,
    ) -> None:
        """Train the value network for some epochs over a prepared batch; where one network is both,
        its values learn with its policy, and this does nothing. `targets` are float64 [N], and
        `generator` draws the order of the steps in each epoch."""
        self.finish()
        count = batch.minibatch_count(self._settings.minibatches)
        columns = self.value_columns(targets)
        if batch.time is not None:
            columns["time"] = batch.time
        orders = [batch.random_order(count, generator) for _ in range(epochs)]
        every = [Epoch(batch.value_inputs, batch.rows, columns, order, count) for order in orders]
        step = StepConfig(learning_rate, self._settings.max_grad_norm)
        # What is computed by Python trains here: two threads would wait for the GIL.
        if runs_compiled(self.value.network, every[0], value_loss) and available_cores() > 1:
            # The context has NumPy's settings, and the user's wish to stop.
            threads = kept_threads("values", 1)
            self._running = threads.submit(copy_context().run, self._fit, every, step)
        else:
            self._loss = self._fit(every, step)

    def finish(self) -> dict[str, float]:
        """End the update; returns the metrics of `fit_values`. Raises Interrupted if the user asks
        to stop."""
        running, self._running = self._running, None
        if running is not None:
            self._loss = running.result()
        return {} if self._loss is None else {"value_loss": self._loss}

    def value_columns(self, targets: np.ndarray) -> Samples:
        """What the value loss needs, given targets, float64 [N]."""
        targets = targets.astype(np.float32)
        return {"targets": targets, "scale": np.full_like(targets, self.value.module.scale.item())}

    def _fit(self, epochs: Sequence[Epoch], config: StepConfig) -> float:
        """Train the values; returns the mean loss of the last epoch."""
        for epoch in epochs:
            steps = train_epoch(self.value.network, self.value.adam, epoch, value_loss, config)
        return sum(numbers["loss"] for numbers in steps) / len(steps)


class OneNetwork(ActorCritic):
    """One network for policy and values; it descends the weighted sum of all losses."""

    shared = True

    def __init__(
        self,
        trained: TrainedNetwork,
        policy: Computed,
        value: Computed,
        statistics: Statistics,
        settings: OnPolicySettings,
    ) -> None:
        """The outputs of `trained` are log-probabilities, entropies, values, and each auxiliary
        loss; `policy` and `value` are the same module, computed as one of both."""
        super().__init__(policy, value, trained.adam, statistics, settings)
        self.metrics = metrics_of((*SHARED_LOSSES, *map(loss_name, settings.auxiliary)))
        self._trained = trained

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        own = {"shared": self._trained.module, "shared_adam": self.adam}
        return own | self.statistics.parts

    def prepare(self, batch: Batch) -> Batch:
        inputs = self._trained.network.prepare(batch.network_inputs)
        return replace(batch, policy_inputs=inputs, value_inputs=inputs)

    def fit_values(self, *_: object) -> None:
        pass

    def columns(self, batch: Batch, targets: np.ndarray) -> Samples:
        own = self.value_columns(targets)
        return own | batch.transitions() if self._settings.auxiliary else own

    def fit_policy(self, epoch: Epoch, loss: Loss, config: StepConfig) -> list[dict[str, float]]:
        settings, (policy, value) = self._settings, SHARED_LOSSES
        terms = [
            Term(policy, 1.0, loss, outputs=(0, 1)),
            Term(value, settings.value_weight, value_loss, outputs=(2,)),
        ]
        for name, weight in zip(settings.auxiliary, settings.auxiliary_weights, strict=True):
            terms.append(Term(loss_name(name), weight, output_as_loss, outputs=(len(terms) + 1,)))

        def gradient_of(minibatch: Samples) -> dict[str, float]:
            return differentiate_sum(terms, self._trained.network, minibatch, self.adam.gradient)

        return train_minibatches(gradient_of, self.adam, epoch, config)


class Statistics:
    """Running means and variances of observations and returns; sets them in the networks."""

    def __init__(
        self,
        values: ValueNetwork | SharedNetwork,
        modules: Sequence[nn.Module],
        observation_dim: int,
    ) -> None:
        """Returns set the scale of `values`, observations the normalisers in `modules`, if any."""
        self._values, self._normalizers = values, normalizers_of(*modules)
        self._returns = RunningMoments(1)
        self._observations = RunningMoments(observation_dim) if self._normalizers else None

    @property
    def parts(self) -> dict[str, Stateful]:
        """Everything with state, by name."""
        parts: dict[str, Stateful] = {"returns": self._returns}
        return parts if self._observations is None else parts | {"observations": self._observations}

    def add_observations(self, observations: np.ndarray | SideBySide) -> None:
        """Add those of a batch, [N + E, D], and set the normalisers."""
        if self._observations is None:
            return
        self._observations.update(observations, outliers=False)
        self._observations.set_in(self._normalizers)

    def add_returns_and_rescale(self, returns: np.ndarray) -> None:
        """PopArt (`rescale`): add those of a batch, float64 [N], and set the scale of the values to
        the root mean square of all returns so far; the values stay what they are."""
        self._returns.update(returns[:, None])
        (mean,), (std,) = self._returns.mean, self._returns.std
        rescale(self._values, float(np.hypot(mean, std)))


def policy_epoch(batch: Batch, columns: Samples, wanted: int, generator: Generator) -> Epoch:
    """An epoch for the policy: the steps of a prepared batch in random order. `columns`, [N, ...]
    by name, are what the losses need besides `Batch.for_policy`; for the number of minibatches that
    is `wanted` see `Batch.minibatch_count`."""
    count = batch.minibatch_count(wanted)
    order = batch.random_order(count, generator)
    return Epoch(batch.policy_inputs, batch.rows, batch.for_policy | columns, order, count)
