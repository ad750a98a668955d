"""An epoch: a batch of steps in minibatches, of single steps or of whole episodes, and a gradient
step on each: all in one call of compiled code where `runs_compiled` says so, else a call each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from flame_rl.learner.training.frames import SideBySide, Stacks
from flame_rl.learner.training.network import CompiledLoss, Loss, Network, Samples, split
from flame_rl.learner.training.slices import LEAST_SLICES, mean_gradient
from flame_rl.learner.training.trained import Adam


@dataclass(frozen=True)
class Epoch:
    """All N steps of a batch once, in minibatches.

    Attributes:
        inputs: the network's inputs for the batch's observations, [N + E, ...].
        rows: the rows of the steps' observations in `inputs`, int64 [N].
        columns: what head and loss need, [N, ...] by name; with "time", the time step of each step
            in its episode, minibatches that are computed by Python have whole episodes.
        order, minibatch_count: the order of the steps, int64 [N], and how many minibatches.
    """

    inputs: np.ndarray | SideBySide | Stacks
    rows: np.ndarray
    columns: Samples
    order: np.ndarray
    minibatch_count: int

    @property
    def steps(self) -> int:
        """N."""
        return len(self.rows)

    @property
    def largest(self) -> int:
        """The steps of the largest minibatch of single steps."""
        return -(-self.steps // self.minibatch_count)

    def minibatches(self) -> list[Samples]:
        """The columns, and the steps' "inputs"."""
        # `take` is several times as fast as indexing.
        shuffled = {name: column.take(self.order, axis=0) for name, column in self.columns.items()}
        inputs = self.inputs.take(self.rows.take(self.order), axis=0)
        return split(shuffled | {"inputs": inputs}, self.minibatch_count)


@dataclass(frozen=True)
class StepConfig:
    """How Adam's steps are taken: a gradient longer than `max_grad_norm` is scaled down to it, and
    an epoch ends, before its step, at a minibatch whose loss gives a "kl" beyond `max_kl`."""

    learning_rate: float
    max_grad_norm: float
    max_kl: float = math.inf

    def exceeds_kl(self, numbers: dict[str, float]) -> bool:
        """Whether a minibatch of these numbers ends the epoch."""
        # Not "greater than": a divergence of NaN exceeds it, too. In float32, as compiled code.
        return not np.float32(numbers.get("kl", 0.0)) <= np.float32(self.max_kl)


def train_epoch(
    network: Network, adam: Adam, epoch: Epoch, loss: Loss, config: StepConfig
) -> list[dict[str, float]]:
    """Train a network on a loss. Returns for each minibatch, up to one that exceeded the KL limit,
    the loss's numbers by name, means over its steps, and "gradient_norm"."""
    if runs_compiled(network, epoch, loss):
        return network.run_epoch(loss, adam, epoch, config)
    gradient_of = partial(mean_gradient, network, loss, adam.gradient)
    return train_minibatches(gradient_of, adam, epoch, config)


def runs_compiled(network: Network, epoch: Epoch, loss: Loss) -> bool:
    """Whether the epoch is one call of compiled code; not where the slices of a minibatch keep
    all cores busy, and one core would take longer."""
    on_one_core = epoch.largest <= (LEAST_SLICES - 1) * network.slice_rows
    return network.compiled and isinstance(loss, CompiledLoss) and on_one_core


def train_minibatches(
    gradient_of: Callable[[Samples], dict[str, float]], adam: Adam, epoch: Epoch, config: StepConfig
) -> list[dict[str, float]]:
    """As `train_epoch`, given a function that writes a minibatch's gradient to `adam.gradient` and
    returns its numbers."""
    steps = []
    for minibatch in epoch.minibatches():
        numbers = gradient_of(minibatch)
        numbers["gradient_norm"] = adam.clip_gradient(config.max_grad_norm)
        steps.append(numbers)
        if config.exceeds_kl(numbers):
            break
        adam.step(config.learning_rate)
    return steps
