"""Adam (Kingma and Ba 2015, algorithm 1), with its state as plain arrays by name.

torch.optim's is not used: making one imports torch's compiler, which takes longer than importing
torch itself, and its state does not go into a safetensors file as it is. All parameters lie in one
flat array, so that a step is a dozen operations and not a dozen for each parameter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


class Adam:
    """Updates parameters in place.

    Attributes:
        parameters: float32 [P]; those of a module, see `flame_rl.learner.flat`.
        steps: steps so far.
        gradient: float32 [P], what the next step descends.
    """

    def __init__(
        self,
        parameters: np.ndarray,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self._betas = betas
        self._epsilon = epsilon
        self.parameters = parameters
        self.gradient = np.zeros_like(self.parameters)
        # Of gradients and of their squares, with weights that fall by beta at each step: the
        # paper's moments m and v, but for the factor 1 - beta.
        self._first_sum = np.zeros_like(self.parameters)
        self._second_sum = np.zeros_like(self.parameters)
        self.steps = 0

    def clip_gradient(self, max_norm: float) -> float:
        """Scale the gradient down to `max_norm` if it is longer; returns its norm before that."""
        norm = math.sqrt(np.dot(self.gradient, self.gradient))
        if norm > max_norm:
            self.gradient *= max_norm / norm
        return norm

    def step(self, learning_rate: float) -> None:
        """One step down the gradient."""
        self.steps += 1
        beta1, beta2 = self._betas
        gradient, first, second = self.gradient, self._first_sum, self._second_sum
        first *= beta1
        first += gradient
        second *= beta2
        second += gradient * gradient
        # The sums times these factors are the paper's corrected moments, m-hat and v-hat.
        factor1 = (1 - beta1) / (1 - beta1**self.steps)
        root2 = math.sqrt((1 - beta2) / (1 - beta2**self.steps))
        change = np.sqrt(second)
        change += self._epsilon / root2
        np.divide(first, change, out=change)
        # A step size beyond float32 becomes infinite, and the update is refused.
        change *= np.float32(learning_rate * factor1 / root2)
        self.parameters -= change

    def values(self) -> np.ndarray:
        """A copy of all parameters, flat, float32 [P]."""
        return self.parameters.copy()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Both sums and the number of steps."""
        return {
            "first": self._first_sum,
            "second": self._second_sum,
            "steps": np.array(self.steps),
        }

    def load_state_dict(self, state: Mapping[str, np.ndarray | Tensor]) -> None:
        """The inverse of `state_dict`. Raises KeyError or ValueError if it does not fit."""
        first, second = np.asarray(state["first"]), np.asarray(state["second"])
        for name, array in (("first", first), ("second", second)):
            if (array.shape, array.dtype) != (self.parameters.shape, np.float32):
                raise ValueError(f"{name}: {array.shape} of {array.dtype}")
        self._first_sum, self._second_sum = first.copy(), second.copy()
        self.steps = int(state["steps"])
