"""A network in training: a torch module, its Adam, and a step down a loss; and its target network,
the slower copy whose values are learned from (Mnih et al. 2015, "Human-Level Control through Deep
Reinforcement Learning")."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import numpy as np
from torch import nn

from flame_rl.learner.training.adam import follow
from flame_rl.learner.training.flat import adam_of, flat_parameters
from flame_rl.learner.training.network import Gradient, Network, Pass, Samples


class TrainedNetwork:
    """A policy, a value network or a critic, updated in place.

    Attributes:
        module: the network.
        adam: its optimiser.
        network: computes and differentiates the module.
        choose: makes the `Network` of a module.
    """

    def __init__(self, module: nn.Module, choose: Callable[[nn.Module], Network]) -> None:
        """`choose` makes `network`; see choose.py."""
        self.module, self.choose = module, choose
        # First, because it moves the parameters to one array.
        self.adam = adam_of(module)
        self.network = choose(module)

    def descend(
        self,
        forward: Pass,
        gradients: tuple[Gradient, ...],
        learning_rate: float,
        max_grad_norm: float = math.inf,
    ) -> None:
        """One step of Adam down a mean loss, given its gradients for the outputs.

        Args:
            forward: a pass of `network` through a minibatch.
            gradients: that of each sample's loss, for each output.
            learning_rate: Adam's step size.
            max_grad_norm: a gradient of a greater norm is scaled down to it.
        """
        # Of the mean; the outputs are fewer than the parameters.
        share = np.float32(1 / len(forward.outputs[0]))
        weighted = tuple(each * share for each in gradients)
        forward.backward(weighted, self.adam.gradient)
        if max_grad_norm < math.inf:
            self.adam.clip_gradient(max_grad_norm)
        self.adam.step(learning_rate)


# Puts a new module in training; algorithms with a replay memory make their networks with it.
Train = Callable[[nn.Module], TrainedNetwork]


class TargetNetwork:
    """A copy that follows a network in training.

    Attributes:
        module: the copy.
    """

    def __init__(self, trained: TrainedNetwork) -> None:
        self.module = copy.deepcopy(trained.module)
        self._parameters = flat_parameters(self.module)
        self._network = trained.choose(self.module)
        self._trained = trained

    def output(self, samples: Samples) -> np.ndarray:
        """The network's only output."""
        (output,) = self._network.outputs(samples)
        return output

    def follow(self, tau: float) -> None:
        """target <- (1 - tau) target + tau network (Lillicrap et al. 2016, "Continuous Control with
        Deep Reinforcement Learning", algorithm 1); tau 1 copies."""
        if tau == 1:
            self._parameters[:] = self._trained.adam.parameters
        else:
            followed = self._trained.adam.parameters
            follow(self._parameters, followed, tau)
