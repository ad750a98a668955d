"""Adam (Kingma and Ba 2015, algorithm 1), with its state as plain tensors by name.

Not torch.optim's: making one of those imports torch's compiler, which takes longer than importing
torch itself, and its state does not go into a safetensors file as it is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Adam:
    """Updates a module's parameters in place from their `.grad`."""

    def __init__(
        self,
        module: nn.Module,
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        self.learning_rate = learning_rate
        self._betas = betas
        self._epsilon = epsilon
        self._parameters = dict(module.named_parameters())
        self._first = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        self._second = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        self._steps = 0

    @torch.no_grad()
    def step(self) -> None:
        """One step down the gradient; parameters without one stay."""
        self._steps += 1
        beta1, beta2 = self._betas
        correction1 = 1 - beta1**self._steps
        correction2 = 1 - beta2**self._steps
        for name, parameter in self._parameters.items():
            gradient = parameter.grad
            if gradient is None:
                continue
            first, second = self._first[name], self._second[name]
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            denominator = (second.sqrt() / math.sqrt(correction2)).add_(self._epsilon)
            # As a tensor, a step beyond float32 becomes infinite and is refused as such.
            step_size = torch.tensor(self.learning_rate / correction1)
            parameter.sub_(first / denominator * step_size)

    def state_dict(self) -> dict[str, Tensor]:
        """Both moments and the number of steps, as tensors by name."""
        state = {f"first.{name}": tensor for name, tensor in self._first.items()}
        state |= {f"second.{name}": tensor for name, tensor in self._second.items()}
        return state | {"steps": torch.tensor(self._steps)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state_dict`. Raises KeyError or ValueError if it is another module's."""
        for name, parameter in self._parameters.items():
            for kind, moments in (("first", self._first), ("second", self._second)):
                tensor = state[f"{kind}.{name}"]
                if (tensor.shape, tensor.dtype) != (parameter.shape, parameter.dtype):
                    raise ValueError(f"{kind}.{name}: {tuple(tensor.shape)} of {tensor.dtype}")
                moments[name] = tensor.clone()
        self._steps = int(state["steps"])
