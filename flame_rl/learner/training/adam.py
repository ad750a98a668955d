"""Adam (Kingma and Ba 2015, algorithm 1), with its state as plain arrays by name.

Not torch.optim.Adam, because making one imports torch's compiler, which takes longer than importing
torch itself, and because a safetensors file cannot hold its state as it is. All parameters lie in
one flat array, so that a step is a dozen operations and not a dozen for each parameter.
"""

from __future__ import annotations

import math

import numpy as np

from flame_rl.learner.state import count_in
from flame_rl.system.signals import end_if_stopped

# The paper's beta1, beta2 and epsilon.
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8
# Sums of gradients, and of their squares, below these bounds change no parameter, and become 0:
# those of a unit that never fires would decay to subnormal numbers, for which some processors take
# many times as long.
_VANISHED = 1e-20, 1e-36
# Steps between two such checks: in 200 steps, no sum falls from these bounds to 1e-38, where
# subnormal numbers begin.
_STEPS_BETWEEN = 200


class Adam:
    """Updates parameters in place.

    Attributes:
        parameters: float32 [P]; those of a module, see `flame_rl.learner.training.flat`.
        steps: steps so far.
        gradient: float32 [P], what the next step descends.
    """

    def __init__(self, parameters: np.ndarray) -> None:
        self.parameters = parameters
        self.gradient = np.zeros_like(self.parameters)
        # Sums of gradients and of their squares, with weights that fall by beta at each step: the
        # paper's moments m and v, but for the factor 1 - beta.
        self._first_sum = np.zeros_like(self.parameters)
        self._second_sum = np.zeros_like(self.parameters)
        # New memory in each step would take as long as some of its arithmetic.
        self._scratch = np.empty_like(self.parameters)
        self.steps = 0

    def clip_gradient(self, max_norm: float) -> float:
        """Scale the gradient down to `max_norm` if it is longer; returns its norm before that."""
        norm = math.sqrt(np.dot(self.gradient, self.gradient))
        if norm > max_norm:
            self.gradient *= max_norm / norm
        return norm

    def step(self, learning_rate: float) -> None:
        """One step down the gradient. Raises Interrupted if the user asks to stop."""
        end_if_stopped()
        self.steps += 1
        gradient, first, second = self.gradient, self._first_sum, self._second_sum
        change = self._scratch
        first *= _BETA1
        first += gradient
        second *= _BETA2
        second += np.square(gradient, out=change)
        if self.steps % _STEPS_BETWEEN == 0:
            for sums, least in zip((first, second), _VANISHED, strict=True):
                sums[np.abs(sums) < least] = 0
        # The sums times these factors are the paper's corrected moments, m-hat and v-hat.
        factor1 = (1 - _BETA1) / (1 - _BETA1**self.steps)
        root2 = math.sqrt((1 - _BETA2) / (1 - _BETA2**self.steps))
        np.sqrt(second, out=change)
        change += _EPSILON / root2
        np.divide(first, change, out=change)
        # A step size beyond float32 becomes infinite, and the update is refused.
        change *= np.float32(learning_rate * factor1 / root2)
        self.parameters -= change

    def state_dict(self) -> dict[str, np.ndarray]:
        """Both sums and the number of steps; see `Part`."""
        steps = np.array(self.steps)
        return {"first": self._first_sum, "second": self._second_sum, "steps": steps}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """See `Part`. Raises KeyError or ValueError if it does not fit."""
        for name in ("first", "second"):
            if (state[name].shape, state[name].dtype) != (self.parameters.shape, np.float32):
                raise ValueError(f"{name}: {state[name].shape} of {state[name].dtype}")
        self._first_sum, self._second_sum = state["first"].copy(), state["second"].copy()
        self.steps = count_in(state, "steps")
