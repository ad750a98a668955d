"""Dense layers and activations as machine code in torch's autograd, for networks with a memory,
which torch differentiates. Arrays are float32; N is the number of rows. Neither vmap, nor forward
mode, nor second derivatives pass through them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from flame_rl.learner.kernels import engine
from flame_rl.learner.kernels.elementwise import ACTIVATIONS
from flame_rl.learner.kernels.emit import Function
from flame_rl.learner.kernels.library import library
from flame_rl.learner.kernels.products import write_row_sums
from flame_rl.modules.layers import Activation, Dense, activate_by_torch


def compile_dense(module: nn.Module) -> None:
    """Let the dense layers and the activations in a module be computed by machine code."""
    for each in module.modules():
        if isinstance(each, Dense):
            each.compute_linear = linear
        elif isinstance(each, Activation):
            each.compute_activation = activate


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As `torch.nn.functional.linear`."""
    whole = weight.numel() and x.ndim and x.shape[-1] == weight.shape[1]
    usual = whole and bias is not None and bias.shape == weight.shape[:1]
    if usual and all(map(_is_for_machine, (x, weight, bias))):
        return _Linear.apply(x, weight, bias)
    # Whatever else it takes, or refuses, is torch's.
    return nn.functional.linear(x, weight, bias)


def activate(name: str, x: Tensor) -> Tensor:
    """The activation of this name in `torch.nn.functional`."""
    if name not in ACTIVATIONS or not _is_for_machine(x):
        return activate_by_torch(name, x)
    return _Activation.apply(name, x)


def without_gaps(tensor: Tensor) -> np.ndarray:
    """The tensor's numbers as machine code takes them: float32, one after another."""
    return tensor.detach().float().contiguous().numpy()


def parameter_slopes(slope: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of weight, [outputs, inputs], and bias, given the slope for what a layer gives,
    [N, outputs], and what it gets, [N, inputs]."""
    (rows, outputs), inputs = slope.shape, x.shape[1]
    of_weight, of_bias = np.empty((outputs, inputs), np.float32), np.empty(outputs, np.float32)
    _functions()["linear_to_parameters"](of_weight, of_bias, slope, x, rows, inputs, outputs)
    return of_weight, of_bias


def _is_for_machine(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


class _Linear(torch.autograd.Function):
    """y = x W^T + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        of_x, *of_parameters = ctx.needs_input_grad
        ctx.save_for_backward(x if any(of_parameters) else None, weight if of_x else None)
        outputs, inputs = weight.shape
        rows = x.numel() // inputs
        y = np.empty((*x.shape[:-1], outputs), np.float32)
        transposed = np.empty((inputs, outputs), np.float32)
        arrays = y, without_gaps(x), without_gaps(weight), without_gaps(bias), transposed
        _functions()["linear"](*arrays, rows, inputs, outputs)
        return torch.from_numpy(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        outputs = slope.shape[-1]
        rows = slope.numel() // outputs
        slopes = without_gaps(slope).reshape(rows, outputs)
        of_x, of_parameters = None, (None, None)
        if weight is not None:
            inputs = weight.shape[1]
            of_x = np.empty((*slope.shape[:-1], inputs), np.float32)
            _functions()["linear_to_inputs"](
                of_x, slopes, without_gaps(weight), rows, inputs, outputs
            )
            of_x = torch.from_numpy(of_x)
        if x is not None:
            given = without_gaps(x).reshape(rows, x.shape[-1])
            of_parameters = map(torch.from_numpy, parameter_slopes(slopes, given))
        return of_x, *of_parameters


class _Activation(torch.autograd.Function):
    """y = f(x), given the name of f."""

    @staticmethod
    def forward(ctx: Any, name: str, x: Tensor) -> Tensor:
        given = without_gaps(x)
        y = np.empty_like(given)
        library()[f"{name}_value"](y, given, given.size)
        result = torch.from_numpy(y)
        ctx.name = name
        ctx.save_for_backward(x if ACTIVATIONS[name].keeps_input else result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[None, Tensor]:
        (kept,) = ctx.saved_tensors
        # A copy, because others may get the same slope.
        own = np.array(slope.float().numpy(), order="C")
        library()[f"{ctx.name}_slope"](own, without_gaps(kept), own.size)
        return None, torch.from_numpy(own)


@engine.compiled_once
def _functions() -> dict[str, Callable[..., None]]:
    """Compile them. Arguments: see the writers."""
    library()
    sizes = "rows inputs outputs"
    return engine.functions(
        {
            "linear": (_write_linear, "y x weight bias transposed", sizes),
            "linear_to_parameters": (_write_to_parameters, "of_weight of_bias slope x", sizes),
            "linear_to_inputs": (write_to_inputs, "of_x slope weight", sizes),
        }
    )


def _write_linear(f: Function, *arguments: Any) -> None:
    """`transposed` is room for the weight's columns, [inputs, outputs]."""
    y, x, weight, bias, transposed, rows, inputs, outputs = arguments
    f.call("transpose", transposed, weight, outputs, outputs, inputs)
    strides = outputs, inputs, 1, outputs, 1
    f.call("product", y, x, transposed, bias, *strides, rows, inputs, outputs)


def _write_to_parameters(f: Function, *arguments: Any) -> None:
    of_weight, of_bias, slope, x, rows, inputs, outputs = arguments
    zero, strides = f.constants(0.0), (inputs, 1, outputs, inputs, 0)
    f.call("product", of_weight, slope, x, zero, *strides, outputs, rows, inputs)
    write_row_sums(f, of_bias, slope, outputs, rows, outputs)


def write_to_inputs(f: Function, *arguments: Any) -> None:
    """The slope for what a layer gets, [rows, inputs], given that for what it gives."""
    of_x, slope, weight, rows, inputs, outputs = arguments
    strides = inputs, outputs, 1, inputs, 0
    f.call("product", of_x, slope, weight, f.constants(0.0), *strides, rows, outputs, inputs)
