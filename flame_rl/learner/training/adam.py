"""Adam (Kingma and Ba 2015, algorithm 1), with its state as plain arrays by name.

Not torch.optim.Adam, because making one imports torch's compiler, which takes longer than importing
torch itself, and because a safetensors file cannot hold its state as it is. All parameters lie in
one flat array, so that a step is one call.
"""

import math

import numpy as np

from flame_rl.learner.compiled.library import library
from flame_rl.learner.state import count_in
from flame_rl.system.signals import end_if_stopped

# Adam's beta1, beta2 and epsilon (Kingma and Ba 2015, algorithm 1).
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
# Adam's sums of gradients, and of their squares, below these change no parameter, and become 0:
# those of a unit that never fires would decay to subnormal numbers, slow on some processors.
UNDERFLOW = 1e-20, 1e-36


class Adam:
    """Updates parameters in place.

    Attributes:
        parameters: float32 [P]; those of a module, see `flame_rl.learner.training.trained`.
        steps: steps so far.
        gradient: float32 [P], what the next step descends; after a compiled epoch, a sum
            over the samples, not clipped.
        sums: of gradients and of their squares, with weights that fall by beta at each step: the
            paper's moments m and v, but for the factor 1 - beta.
    """

    def __init__(self, parameters: np.ndarray) -> None:
        self.parameters = parameters
        self.gradient = np.zeros_like(self.parameters)
        self.sums = np.zeros_like(self.parameters), np.zeros_like(self.parameters)
        self.steps = 0

    def clip_gradient(self, max_norm: float) -> float:
        """Scale the gradient down to `max_norm` if it is longer; returns its norm before that."""
        length = math.sqrt(np.dot(self.gradient, self.gradient))
        if length > max_norm:
            self.gradient *= max_norm / length
        return length

    def step(self, learning_rate: float) -> None:
        """One step down the gradient. Raises Interrupted if the user asks to stop."""
        end_if_stopped()
        (factors,) = self.factors(1, learning_rate)
        compiled, size = library(), self.parameters.size
        if compiled is not None:
            compiled.adam(self.parameters, self.gradient, *self.sums, 1.0, *factors, size)
        else:
            self._step_in_numpy(*map(np.float32, factors))
        self.steps += 1

    def _step_in_numpy(self, epsilon: np.float32, rate: np.float32) -> None:
        """Both sums shrink by the betas and gain the gradient and its square, but become 0 below
        `UNDERFLOW`; parameters -= rate first / (sqrt(second) + epsilon)."""
        gains = self.gradient, np.square(self.gradient)
        for sums, beta, new, least in zip(self.sums, (BETA1, BETA2), gains, UNDERFLOW, strict=True):
            sums *= np.float32(beta)
            sums += new
            sums[np.abs(sums) < least] = 0
        self.parameters -= self.sums[0] / (np.sqrt(self.sums[1]) + epsilon) * rate

    def factors(self, count: int, learning_rate: float) -> list[tuple[float, float]]:
        """Epsilon and the step size of the next `count` steps, as the sums need them: times these
        factors, they are the paper's corrected moments, m-hat and v-hat."""
        factors = []
        for step in range(self.steps + 1, self.steps + count + 1):
            factor1 = (1 - BETA1) / (1 - BETA1**step)
            root2 = math.sqrt((1 - BETA2) / (1 - BETA2**step))
            # A step size beyond float32 becomes infinite, and the update is refused.
            factors.append((EPSILON / root2, learning_rate * factor1 / root2))
        return factors

    def state_dict(self) -> dict[str, np.ndarray]:
        """Both sums and the number of steps; see `Stateful`."""
        steps = np.array(self.steps)
        return {"first": self.sums[0], "second": self.sums[1], "steps": steps}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """See `Stateful`. Raises KeyError or ValueError if it does not fit."""
        for name in ("first", "second"):
            if (state[name].shape, state[name].dtype) != (self.parameters.shape, np.float32):
                raise ValueError(f"{name}: {state[name].shape} of {state[name].dtype}")
        for sums, name in zip(self.sums, ("first", "second"), strict=True):
            sums[:] = state[name]
        self.steps = count_in(state, "steps")
