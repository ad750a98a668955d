"""Adam (Kingma and Ba 2015, algorithm 1), with its state as plain tensors by name.

torch.optim's is not used: making one imports torch's compiler, which takes longer than importing
torch itself, and its state does not go into a safetensors file as it is. All parameters lie in one
flat tensor, so that a step is a dozen operations and not a dozen for each parameter.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Adam:
    """Updates a module's parameters in place from their `.grad`.

    Attributes:
        parameters: those of the module.
    """

    def __init__(
        self,
        module: nn.Module,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        """The module's parameters and gradients become views of one flat tensor each."""
        self._betas = betas
        self._epsilon = epsilon
        self.parameters = list(module.parameters())
        self._values = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self._gradient = torch.zeros_like(self._values)
        self._first_moment = torch.zeros_like(self._values)
        self._second_moment = torch.zeros_like(self._values)
        self._steps = 0
        start = 0
        for parameter in self.parameters:
            stop = start + parameter.numel()
            parameter.data = self._values[start:stop].view_as(parameter)
            parameter.grad = self._gradient[start:stop].view_as(parameter)
            start = stop

    def zero_gradient(self) -> None:
        self._gradient.zero_()

    def clip_gradient(self, max_norm: float) -> float:
        """Scale the gradient down to `max_norm` if it is longer; returns its norm before that."""
        norm = self._gradient.norm().item()
        if norm > max_norm:
            self._gradient.mul_(max_norm / norm)
        return norm

    def step(self, learning_rate: float) -> None:
        """One step down the gradient."""
        self._steps += 1
        beta1, beta2 = self._betas
        correction1 = 1 - beta1**self._steps
        correction2 = 1 - beta2**self._steps
        self._first_moment.lerp_(self._gradient, 1 - beta1)
        self._second_moment.mul_(beta2).addcmul_(self._gradient, self._gradient, value=1 - beta2)
        denominator = (self._second_moment.sqrt() / math.sqrt(correction2)).add_(self._epsilon)
        # As a tensor, a step size beyond float32 becomes infinite, and the update is refused.
        step_size = torch.tensor(learning_rate / correction1)
        self._values.sub_(self._first_moment / denominator * step_size)

    def values(self) -> Tensor:
        """A copy of all parameters, flat."""
        return self._values.clone()

    def set_values(self, values: Tensor) -> None:
        """Overwrite all parameters."""
        self._values.copy_(values)

    def state_dict(self) -> dict[str, Tensor]:
        """Both moment estimates and the number of steps."""
        return {
            "first": self._first_moment,
            "second": self._second_moment,
            "steps": torch.tensor(self._steps),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state_dict`. Raises KeyError or ValueError if it does not fit."""
        for name in ("first", "second"):
            tensor = state[name]
            if (tensor.shape, tensor.dtype) != (self._values.shape, self._values.dtype):
                raise ValueError(f"{name}: {tuple(tensor.shape)} of {tensor.dtype}")
        self._first_moment = state["first"].clone()
        self._second_moment = state["second"].clone()
        self._steps = int(state["steps"])
