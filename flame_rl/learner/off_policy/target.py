"""Target networks: a network's slower copy, whose values are learned from (Mnih et al. 2015,
"Human-Level Control through Deep Reinforcement Learning")."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
from torch import nn

from flame_rl.learner.training.flat import flat_parameters
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.nets.network import Network, Samples


class TargetNetwork:
    """A copy that follows a network in training.

    Attributes:
        module: the copy.
    """

    def __init__(self, trained: TrainedNetwork, choose: Callable[[nn.Module], Network]) -> None:
        """`choose` is as for `trained`."""
        self.module = copy.deepcopy(trained.module)
        self._parameters = flat_parameters(self.module)
        self._change = np.empty_like(self._parameters)
        self._network = choose(self.module)
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
            change = np.subtract(self._trained.adam.parameters, self._parameters, out=self._change)
            change *= np.float32(tau)
            self._parameters += change
