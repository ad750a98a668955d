"""A network in training: a torch module, its Adam, and a step down a loss."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from flame_rl.learner.training.flat import adam_of
from flame_rl.nets.network import Network, Pass, Slope


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
            learning_rate: Adam's step size.
            max_grad_norm: a gradient of a greater norm is scaled down to it.
        """
        forward.to_parameters(slopes, self.adam.gradient)
        self.adam.gradient *= 1 / len(forward.outputs[0])
        self.adam.clip_gradient(max_grad_norm)
        self.adam.step(learning_rate)
