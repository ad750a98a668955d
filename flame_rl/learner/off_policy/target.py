"""Target networks: slower copies, whose values are learned from (Mnih et al. 2015, "Human-Level
Control through Deep Reinforcement Learning")."""

from __future__ import annotations

import copy

import numpy as np

from flame_rl.learner.compiled.library import library
from flame_rl.learner.training.network import Samples
from flame_rl.learner.training.trained import TrainedNetwork, flat_parameters


class TargetNetwork:
    """A copy that follows a network in training.

    Attributes:
        module: the copy.
        parameters: its own, float32 [P].
    """

    def __init__(self, trained: TrainedNetwork) -> None:
        self.module = copy.deepcopy(trained.module)
        self.parameters = flat_parameters(self.module)
        self._network = trained.choose(self.module)
        self._trained = trained

    def output(self, samples: Samples) -> np.ndarray:
        """The network's only output."""
        (output,) = self._network.outputs(samples)
        return output

    def follow(self, tau: float) -> None:
        """target <- (1 - tau) target + tau network (Lillicrap et al. 2016, "Continuous Control with
        Deep Reinforcement Learning", algorithm 1); tau 1 copies."""
        follow(self.parameters, self._trained.adam.parameters, tau)


def follow(parameters: np.ndarray, others: np.ndarray, tau: float) -> None:
    """parameters += tau (others - parameters), in place, on arrays float32 [P]; tau 1 copies."""
    compiled = library()
    if tau == 1:
        parameters[:] = others
    elif compiled is None:
        parameters += (others - parameters) * np.float32(tau)
    else:
        compiled.follow(parameters, others, tau, parameters.size)
