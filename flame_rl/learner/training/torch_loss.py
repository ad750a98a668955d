"""Losses written in torch, which finds their gradients."""

from collections.abc import Callable
from functools import wraps

import numpy as np
import torch
from torch import Tensor

from flame_rl.learner.training.autograd import tensors_of
from flame_rl.learner.training.network import Loss, LossResult, Samples


def torch_loss(function: Callable[..., Tensor | dict[str, Tensor]]) -> Loss:
    """A `Loss` of a function in torch; also as a decorator.

        @torch_loss
        def squared_errors(samples, values):
            return (values - samples["targets"]) ** 2

    Torch differentiates the function alone, and not the network, whose outputs it gets.

    Args:
        function: called with samples and outputs as `Loss` is, but as tensors on the CPU, integers
            as int64. It returns the loss of each sample, [B], or numbers by name, [B] each, with
            "loss" among them. Importance "weights" it neither gets nor needs: where samples have
            them, the loss and its gradients are multiplied by them.

    Raises:
        ValueError: in the loss, where the function's is not one number for each sample.
    """

    @wraps(function)
    def loss(samples: Samples, *outputs: np.ndarray) -> LossResult:
        tensors = tensors_of(samples, torch.device("cpu"))
        weights = tensors.pop("weights", None)
        leaves = [torch.from_numpy(output).requires_grad_() for output in outputs]
        with torch.enable_grad():
            result = function(tensors, *leaves)
            numbers = dict(result) if isinstance(result, dict) else {"loss": result}
            if numbers["loss"].shape != (len(outputs[0]),):
                raise ValueError(
                    f"{loss.__name__}: a loss of shape {tuple(numbers['loss'].shape)} for "
                    f"{len(outputs[0])} samples; return one number for each, without their mean"
                )
            if weights is not None:
                numbers["loss"] = weights * numbers["loss"]
            total = numbers["loss"].sum()
        gradients = [torch.zeros_like(leaf) for leaf in leaves]
        if total.requires_grad:
            gradients = torch.autograd.grad(total, leaves, materialize_grads=True)
        return (
            {name: number.detach().numpy() for name, number in numbers.items()},
            tuple(each.numpy() for each in gradients),
        )

    return loss
