"""Any torch module; torch differentiates it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.learner.gradients.network import Samples, Slope

# Computes a module's outputs, [B, ...] each, from the samples as tensors.
Apply = Callable[[nn.Module, dict[str, Tensor]], tuple[Tensor, ...]]


class AutogradNetwork:
    """See `Network`. Observations reach the module as they are."""

    # Few enough rows to fit in a cache and to divide a large minibatch among cores, many enough
    # that Python costs little.
    slice_rows = 2048
    remembers = False

    def __init__(self, module: nn.Module, apply: Apply) -> None:
        self._module = module
        self._apply = apply
        self._parameters = list(module.parameters())

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        return observations

    @torch.no_grad()
    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        return tuple(output.numpy() for output in self._apply(self._module, tensors_of(samples)))

    def forward(self, samples: Samples) -> AutogradPass:
        tensors = tensors_of(samples)
        # A tensor of its own, because a gradient flag would stay with the caller's.
        inputs = tensors["inputs"] = tensors["inputs"].detach()
        inputs.requires_grad_(inputs.is_floating_point())
        return AutogradPass(inputs, self._apply(self._module, tensors), self._parameters)


class AutogradPass:
    """See `Pass`."""

    def __init__(
        self, inputs: Tensor, outputs: tuple[Tensor, ...], parameters: list[nn.Parameter]
    ) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._parameters = parameters
        self.outputs = tuple(output.detach().numpy() for output in outputs)

    def to_parameters(self, slopes: tuple[Slope, ...], gradient: np.ndarray) -> None:
        shares = self._back(slopes, self._parameters)
        np.concatenate([share.reshape(-1).numpy() for share in shares], out=gradient)

    def to_inputs(self, slopes: tuple[Slope, ...]) -> np.ndarray:
        (slope,) = self._back(slopes, [self._inputs])
        return slope.numpy()

    def _back(self, slopes: tuple[Slope, ...], targets: list[Tensor]) -> tuple[Tensor, ...]:
        # A scalar with these slopes: given the slopes, torch imports sympy to check their shapes,
        # which takes half a second.
        total = sum(
            (output * torch.as_tensor(slope, dtype=output.dtype)).sum()
            for output, slope in zip(self._outputs, slopes, strict=True)
            if output.requires_grad  # not the entropy of a fixed distribution
        )
        return torch.autograd.grad(total, targets, materialize_grads=True)


def tensors_of(samples: Samples) -> dict[str, Tensor]:
    """The columns as tensors; integers are int64, but for uint8, the numbers of pictures."""
    tensors = {name: torch.from_numpy(column) for name, column in samples.items()}
    return {
        n: t if t.is_floating_point() or t.dtype == torch.uint8 else t.long()
        for n, t in tensors.items()
    }
