"""A policy and its values in training: two networks, or one that is both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
from torch import nn

from flame_rl.learner.on_policy.batch import Batch
from flame_rl.learner.on_policy.losses import value_loss
from flame_rl.learner.on_policy.value_epochs import ValueTraining
from flame_rl.learner.state import Stateful
from flame_rl.learner.training.adam import Adam
from flame_rl.learner.training.epoch import (
    Epoch,
    StepConfig,
    number_of_minibatches,
    random_order,
)
from flame_rl.learner.training.frames import SideBySide, time_steps
from flame_rl.learner.training.losses import Term, differentiate_sum, metrics_of, output_as_loss
from flame_rl.learner.training.minibatches import descend, descend_by
from flame_rl.learner.training.network import Loss, Network, Samples
from flame_rl.learner.training.normalize import RunningMoments
from flame_rl.learner.training.slices import at_once, outputs
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.settings.algorithms import OWN, OnPolicy, loss_name


class ActorCritic(Protocol):
    """A policy and its values, as an on-policy algorithm trains them.

    N is the number of steps in a batch, E the number of episodes.

    Attributes:
        policy: the policy's module, and how it is computed.
        adam: optimises the policy's parameters.
        statistics: running means and variances of observations and returns.
        shared: whether one network is both, so that its values stop learning with its policy.
        frames: how many observations, the latest and those before it, are one input.
        remembers: whether a network has a memory, so that minibatches are of whole episodes.
        metrics: names of the numbers that `descend` returns besides those of the policy's loss.
    """

    policy: TrainedNetwork | Computed
    adam: Adam
    statistics: Statistics
    shared: bool
    frames: int
    remembers: bool
    metrics: tuple[str, ...]

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        """Everything with state, by name."""
        ...

    def prepare(self, batch: Batch) -> Batch:
        """Add the networks' inputs to the batch; an update begins with it."""
        ...

    def values(self, batch: Batch) -> np.ndarray:
        """V(s) of all observations of a prepared batch, float64 [N + E]."""
        ...

    def columns(self, batch: Batch, targets: np.ndarray) -> Samples:
        """Columns that losses other than the policy's need, [N, ...] by name; `targets`, float64
        [N], are those of the values."""
        ...

    def descend(self, epoch: Epoch, loss: Loss, config: StepConfig) -> list[dict[str, float]]:
        """Train the policy for an epoch; where one network is both, on the weighted sum of its
        losses.

        Returns:
            For each minibatch, up to one that exceeded the KL limit, the losses' numbers by name,
            means over its steps, and "gradient_norm".
        """
        ...

    def fit_values(
        self,
        batch: Batch,
        targets: np.ndarray,
        epochs: int,
        learning_rate: float,
        generator: np.random.Generator,
    ) -> None:
        """Train a value network of its own for some epochs over a prepared batch. Where one network
        is both, its values learn with its policy, and this does nothing.

        Args:
            batch: N steps.
            targets: float64 [N].
            epochs: how many.
            learning_rate: Adam's step size.
            generator: draws the order of the steps in each epoch.
        """
        ...

    def finish(self) -> dict[str, float]:
        """End the update; returns the metrics of `fit_values`."""
        ...


@dataclass(frozen=True)
class Computed:
    """A torch module, and the network that computes it."""

    module: nn.Module
    network: Network


class TwoNetworks:
    """See `ActorCritic`. A policy and a value network, each with its Adam.

    The value network may train on another core beside the policy: `fit_values` starts its epochs,
    `values` and `finish` wait for them.
    """

    shared = False
    metrics: tuple[str, ...] = ()

    def __init__(
        self,
        policy: TrainedNetwork,
        value: TrainedNetwork,
        statistics: Statistics,
        settings: OnPolicy,
    ) -> None:
        """
        Args:
            policy, value: the networks.
            statistics: see `ActorCritic`.
            settings: with minibatches and max_grad_norm.
        """
        self.policy, self.value, self.adam = policy, value, policy.adam
        self.training = ValueTraining(value)
        self.statistics = statistics
        self.remembers = policy.network.remembers or value.network.remembers
        self.frames = policy.network.frames
        self._settings = settings

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        return {
            "policy": self.policy.module,
            "value": self.value.module,
            "policy_adam": self.policy.adam,
            "value_adam": self.value.adam,
            **self.statistics.parts,
        }

    def prepare(self, batch: Batch) -> Batch:
        self.training.reset()
        inputs = batch.network_inputs
        networks = self.policy.network, self.value.network
        of_policy, of_value = at_once([partial(each.prepare, inputs) for each in networks])
        # One array, so that both networks share the cache.
        if isinstance(of_policy, np.ndarray) and np.array_equal(of_policy, of_value):
            of_value = of_policy
        return replace(batch, policy_inputs=of_policy, value_inputs=of_value)

    def values(self, batch: Batch) -> np.ndarray:
        self.training.finish()
        return values_of(self.value.network, batch)

    def columns(self, batch: Batch, targets: np.ndarray) -> Samples:
        return {}

    def descend(self, epoch: Epoch, loss: Loss, config: StepConfig) -> list[dict[str, float]]:
        return descend(self.policy.network, self.adam, epoch, loss, config)

    def fit_values(
        self,
        batch: Batch,
        targets: np.ndarray,
        epochs: int,
        learning_rate: float,
        generator: np.random.Generator,
    ) -> None:
        count = number_of_minibatches(self._settings.minibatches, batch.steps)
        columns = target_columns(targets, self.value.module)
        if batch.time is not None:
            columns["time"] = batch.time
        orders = [random_order(batch.steps, count, generator, batch.time) for _ in range(epochs)]
        self.training.begin(
            [Epoch(batch.value_inputs, batch.rows, columns, order, count) for order in orders],
            StepConfig(learning_rate, self._settings.max_grad_norm),
        )

    def finish(self) -> dict[str, float]:
        loss = self.training.finish()
        return {} if loss is None else {"value_loss": loss}


class OneNetwork:
    """See `ActorCritic`. One network for policy and values, perhaps with auxiliary losses; it
    descends the weighted sum of its losses."""

    shared = True

    def __init__(
        self,
        network: TrainedNetwork,
        policy: Computed,
        value: Computed,
        statistics: Statistics,
        settings: OnPolicy,
    ) -> None:
        """
        Args:
            network: its outputs are log-probabilities, entropies, values, and each auxiliary loss.
            policy, value: the same module, computed as policy and as values.
            statistics: see `ActorCritic`.
            settings: with value_weight, auxiliary and auxiliary_weights.
        """
        self.policy, self._value, self.adam = policy, value, network.adam
        self.statistics = statistics
        self.remembers = network.network.remembers
        self.frames = network.network.frames
        self.metrics = metrics_of((*OWN, *map(loss_name, settings.auxiliary)))
        self._network, self._settings = network, settings

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        own = {"shared": self._network.module, "shared_adam": self._network.adam}
        return own | self.statistics.parts

    def prepare(self, batch: Batch) -> Batch:
        inputs = self._network.network.prepare(batch.network_inputs)
        return replace(batch, policy_inputs=inputs, value_inputs=inputs)

    def values(self, batch: Batch) -> np.ndarray:
        return values_of(self._value.network, batch)

    def columns(self, batch: Batch, targets: np.ndarray) -> Samples:
        own = target_columns(targets, self._network.module)
        return own | batch.outcomes() if self._settings.auxiliary else own

    def descend(self, epoch: Epoch, loss: Loss, config: StepConfig) -> list[dict[str, float]]:
        settings, (policy, value) = self._settings, OWN
        terms = [
            Term(policy, 1.0, loss, outputs=(0, 1)),
            Term(value, settings.value_weight, value_loss, outputs=(2,)),
        ]
        for name, weight in zip(settings.auxiliary, settings.auxiliary_weights, strict=True):
            terms.append(Term(loss_name(name), weight, output_as_loss, outputs=(len(terms) + 1,)))

        def gradient_of(minibatch: Samples) -> dict[str, float]:
            return differentiate_sum(terms, self._network.network, minibatch, self.adam.gradient)

        return descend_by(gradient_of, self.adam, epoch, config)

    def fit_values(
        self,
        batch: Batch,
        targets: np.ndarray,
        epochs: int,
        learning_rate: float,
        generator: np.random.Generator,
    ) -> None:
        pass

    def finish(self) -> dict[str, float]:
        return {}


class Normalizer(Protocol):
    """A module that normalises numbers of observations by their statistics."""

    def set(self, mean: np.ndarray, std: np.ndarray) -> None: ...


class Statistics:
    """Running means and variances of observations and returns; sets them in the networks."""

    def __init__(
        self,
        normalizers: Sequence[tuple[slice, Normalizer]],
        observation_dim: int,
        rescale: Callable[[float], None],
    ) -> None:
        """
        Args:
            normalizers: those of the networks, and the numbers of an observation that each gets;
                none if observations are not normalised.
            observation_dim: D.
            rescale: sets the scale of the values; see `modules.networks.rescale`.
        """
        self._normalizers, self._rescale = normalizers, rescale
        self._returns = RunningMoments(1)
        self._observations = None
        if normalizers:
            self._observations = RunningMoments(observation_dim)

    @property
    def parts(self) -> dict[str, Stateful]:
        """Everything with state, by name."""
        parts: dict[str, Stateful] = {"returns": self._returns}
        return parts if self._observations is None else parts | {"observations": self._observations}

    def add_observations(self, observations: np.ndarray | SideBySide) -> None:
        """Add those of a batch, [N + E, D], and set the normalisers."""
        if self._observations is None:
            return
        self._observations.update(observations)
        for numbers, normalizer in self._normalizers:
            normalizer.set(self._observations.mean[numbers], self._observations.std[numbers])

    def add_returns(self, returns: np.ndarray) -> None:
        """Add those of a batch, float64 [N], and set the scale of the values to the root mean
        square of all returns so far; the values stay what they are."""
        self._returns.update(returns[:, None])
        (mean,), (std,) = self._returns.mean, self._returns.std
        self._rescale(float(np.hypot(mean, std)))


def target_columns(targets: np.ndarray, module: nn.Module) -> Samples:
    """What the value loss needs, given targets, float64 [N], and the module of the values."""
    targets = targets.astype(np.float32)
    return {"targets": targets, "scale": np.full_like(targets, module.scale.item())}


def values_of(network: Network, batch: Batch) -> np.ndarray:
    """The values of all observations of a prepared batch, float64 [N + E]."""
    samples = {"inputs": batch.value_inputs}
    if batch.time is not None:
        samples["time"] = time_steps(batch.lengths + 1)
    (values,) = outputs(network, samples)
    return values.astype(np.float64)


def shuffle(batch: Batch, columns: Samples, wanted: int, generator: np.random.Generator) -> Epoch:
    """An epoch for the policy: the steps of a prepared batch in random order, in their own order if
    there is only one minibatch. Where a network remembers, whole episodes are shuffled.

    Args:
        batch: N steps.
        columns: what the losses need besides `Batch.for_policy` and, where they were computed,
            "log_probs", [N, ...] by name.
        wanted: the number of minibatches; see `number_of_minibatches`.
        generator: draws the order.
    """
    count = number_of_minibatches(wanted, batch.steps)
    order = random_order(batch.steps, count, generator, batch.time)
    columns = {**batch.for_policy, **columns}
    if batch.log_probs is not None:
        columns["log_probs"] = batch.log_probs
    if batch.time is not None:
        columns["time"] = batch.time
    if batch.weights is not None:
        columns["weights"] = batch.importance_weights.astype(np.float32)
    return Epoch(batch.policy_inputs, batch.rows, columns, order, count)
