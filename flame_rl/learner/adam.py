"""Adam (Kingma and Ba 2015, algorithm 1), with its state as plain arrays by name.

torch.optim's is not used: making one imports torch's compiler, which takes longer than importing
torch itself, and its state does not go into a safetensors file as it is. All parameters lie in one
flat array, so that a step is a dozen operations and not a dozen for each parameter.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn


class Adam:
    """Updates a module's parameters in place.

    Attributes:
        parameters: float32 [P], the module's own.
        steps: steps so far.
        gradient: float32 [P], what the next step descends: all parameters in order, each flat.
    """

    def __init__(
        self,
        module: nn.Module,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        """The module's parameters and their `.grad` become views of one flat array each."""
        self._betas = betas
        self._epsilon = epsilon
        self.parameters = flat_parameters(module)
        self.gradient = np.zeros_like(self.parameters)
        for parameter, part in zip(
            module.parameters(), parts_of(module, self.gradient), strict=True
        ):
            parameter.grad = part
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

    def state_dict(self) -> dict[str, Tensor]:
        """Both sums and the number of steps."""
        return {
            "first": torch.from_numpy(self._first_sum),
            "second": torch.from_numpy(self._second_sum),
            "steps": torch.tensor(self.steps),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state_dict`. Raises KeyError or ValueError if it does not fit."""
        for name in ("first", "second"):
            tensor = state[name]
            if (tensor.shape, tensor.dtype) != (self.parameters.shape, torch.float32):
                raise ValueError(f"{name}: {tuple(tensor.shape)} of {tensor.dtype}")
        self._first_sum = state["first"].numpy().copy()
        self._second_sum = state["second"].numpy().copy()
        self.steps = int(state["steps"])


def flat_parameters(module: nn.Module) -> np.ndarray:
    """All parameters in order, each flat, as one array float32 [P]; the module's parameters become
    views of it."""
    flat = np.concatenate([p.detach().reshape(-1).numpy() for p in module.parameters()])
    for parameter, part in zip(module.parameters(), parts_of(module, flat), strict=True):
        parameter.data = part
    return flat


def parts_of(module: nn.Module, flat: np.ndarray) -> list[Tensor]:
    """Views of a flat array, each in the shape of one of the module's parameters."""
    parameters = list(module.parameters())
    parts = torch.from_numpy(flat).split([parameter.numel() for parameter in parameters])
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]
