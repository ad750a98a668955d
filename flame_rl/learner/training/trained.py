"""A network in training: a torch module, its Adam, and steps down any loss."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from flame_rl.learner.training import slices
from flame_rl.learner.training.flat import adam_of
from flame_rl.learner.training.losses import Sum
from flame_rl.nets.network import Loss, Network, Pass, Samples, Slope


class TrainedNetwork:
    """A policy, a value network or a critic, updated in place.

    Attributes:
        module: the network.
        adam: its optimiser.
        network: how it is computed and differentiated.
    """

    def __init__(self, module: nn.Module, choose: Callable[[nn.Module], Network]) -> None:
        """`choose` makes `network`; see gradients/choose.py."""
        self.module = module
        # First, because it moves the parameters to one array.
        self.adam = adam_of(module)
        self.network = choose(module)

    def step(
        self,
        samples: Samples,
        loss: Loss | Sum,
        learning_rate: float,
        max_grad_norm: float,
        unless: Callable[[dict[str, float]], bool] = lambda numbers: False,
    ) -> dict[str, float]:
        """One step of Adam down a mean loss.

        Args:
            samples: the minibatch.
            loss: one loss, or a sum of several.
            learning_rate: Adam's step size.
            max_grad_norm: a gradient of a greater norm is scaled down to it.
            unless: called with the result; if it returns True, the network is not changed.

        Returns:
            The loss's numbers before the step, "gradient_norm" before clipping, and "taken", 1 or
            0: whether the network was changed.
        """
        if isinstance(loss, Sum):
            numbers = loss.differentiate(self.network, samples, self.adam.gradient)
        else:
            numbers = slices.differentiate(self.network, samples, loss, self.adam.gradient)
        numbers["gradient_norm"] = self.adam.clip_gradient(max_grad_norm)
        numbers["taken"] = float(not unless(numbers))
        if numbers["taken"]:
            self.adam.step(learning_rate)
        return numbers

    def descend(
        self,
        forward: Pass,
        slopes: tuple[Slope, ...],
        learning_rate: float,
        max_grad_norm: float = math.inf,
    ) -> None:
        """One step of Adam down a mean loss whose slopes are known already.

        Args:
            forward: a pass of `network` through a minibatch.
            slopes: those of each sample's loss, for each output.
            learning_rate, max_grad_norm: as in `step`.
        """
        forward.to_parameters(slopes, self.adam.gradient)
        self.adam.gradient *= 1 / len(forward.outputs[0])
        self.adam.clip_gradient(max_grad_norm)
        self.adam.step(learning_rate)
