"""Dense layers and activations as machine code in torch's autograd, for networks that torch
differentiates because other layers are torch's. All arrays are float32; N is the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from flame_rl.learner.kernels import engine
from flame_rl.learner.kernels.elementwise import ACTIVATIONS
from flame_rl.learner.kernels.emit import Function
from flame_rl.learner.kernels.library import library
from flame_rl.modules.layers import Activation, Dense


def compile_dense(module: nn.Module) -> None:
    """Let the dense layers and the activations in a module use this."""
    for each in module.modules():
        if isinstance(each, Dense):
            each.linear = linear
        elif isinstance(each, Activation) and each.name in ACTIVATIONS:
            each.activate = activate


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As `torch.nn.functional.linear`."""
    if not has_machine_code(x):
        return nn.functional.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)


def activate(name: str, x: Tensor) -> Tensor:
    """The activation of this name in `torch.nn.functional`."""
    if not has_machine_code(x):
        return getattr(nn.functional, name)(x)
    return _Activation.apply(name, x)


def has_machine_code(x: Tensor) -> bool:
    """Whether this is for the tensor's device and type."""
    return x.device.type == "cpu" and x.dtype == torch.float32


def array_for_machine(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().numpy(), np.float32)


def parameter_slopes(slope: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of weight, [outputs, inputs], and bias, given the slope for the products,
    [N, outputs], and what came in, [N, inputs]."""
    (rows, outputs), inputs = slope.shape, x.shape[1]
    of_weight, of_bias = np.empty((outputs, inputs), np.float32), np.empty(outputs, np.float32)
    _functions()["to_parameters"](of_weight, of_bias, slope, x, rows, inputs, outputs)
    return of_weight, of_bias


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        outputs, inputs = weight.shape
        if x.shape[-1] != inputs:
            raise ValueError(f"{x.shape[-1]} numbers for a dense layer that takes {inputs}")
        given = array_for_machine(x).reshape(-1, inputs)
        ctx.kept = given, array_for_machine(weight)
        ctx.save_for_backward(x, weight)
        y = np.empty((*x.shape[:-1], outputs), np.float32)
        transposed = np.ascontiguousarray(ctx.kept[1].T)
        arrays = y, given, transposed, array_for_machine(bias)
        _functions()["linear"](*arrays, len(given), inputs, outputs)
        return torch.from_numpy(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises if somebody changed them
        given, weight = ctx.kept
        outputs, inputs = weight.shape
        slopes = array_for_machine(slope).reshape(-1, outputs)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = np.empty((*slope.shape[:-1], inputs), np.float32)
            _functions()["to_inputs"](of_x, slopes, weight, len(slopes), inputs, outputs)
            of_x = torch.from_numpy(of_x)
        return of_x, *map(torch.from_numpy, parameter_slopes(slopes, given))


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, x: Tensor) -> Tensor:
        given = array_for_machine(x)
        y = np.empty_like(given)
        _functions()[f"{name}_of"](y, given, given.size)
        result = torch.from_numpy(y)
        keeps_input = ACTIVATIONS[name].keeps_input
        ctx.save_for_backward(x if keeps_input else result)
        ctx.kept = name, given if keeps_input else y
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[None, Tensor]:
        _ = ctx.saved_tensors
        name, kept = ctx.kept
        own = array_for_machine(slope).copy()
        _functions()[f"{name}_back"](own, kept, own.size)
        return None, torch.from_numpy(own)


@engine.compiled_once
def _functions() -> dict[str, Callable[..., None]]:
    """Compile them. Arguments: see the writers."""
    library()
    sizes = "rows inputs outputs"
    described = {
        "linear": (_write_linear, "y x transposed bias", sizes),
        "to_parameters": (_write_to_parameters, "of_weight of_bias slope x", sizes),
        "to_inputs": (_write_to_inputs, "of_x slope weight", sizes),
    }
    for name in ACTIVATIONS:
        described |= {
            f"{name}_of": (_writer_of(f"{name}_value"), "y x", "count"),
            f"{name}_back": (_writer_of(f"{name}_slope"), "slope kept", "count"),
        }
    module, kinds = ir.Module(), {}
    for name, (write, arrays, integers) in described.items():
        kinds[name] = dict.fromkeys(arrays.split(), "array")
        kinds[name] |= dict.fromkeys(integers.split(), "integer")
        f = Function(module, f"torch_{name}", **kinds[name])
        write(f, *f.arguments)
        f.end(for_python=True)
    engine.load(module)
    return {name: engine.function(f"torch_{name}", [*own.values()]) for name, own in kinds.items()}


def _write_linear(f: Function, *arguments: Any) -> None:
    y, x, transposed, bias, rows, inputs, outputs = arguments
    strides = outputs, inputs, 1, outputs, 1
    f.call("product", y, x, transposed, bias, *strides, rows, inputs, outputs)


def _write_to_parameters(f: Function, *arguments: Any) -> None:
    of_weight, of_bias, slope, x, rows, inputs, outputs = arguments
    zero, strides = f.constants(0.0), (inputs, 1, outputs, inputs, 0)
    f.call("product", of_weight, slope, x, zero, *strides, outputs, rows, inputs)
    strides = outputs, 0, 0, outputs, 0
    f.call("product", of_bias, f.constants(1.0), slope, zero, *strides, 1, rows, outputs)


def _write_to_inputs(f: Function, *arguments: Any) -> None:
    of_x, slope, weight, rows, inputs, outputs = arguments
    strides = inputs, outputs, 1, inputs, 0
    f.call("product", of_x, slope, weight, f.constants(0.0), *strides, rows, outputs, inputs)


def _writer_of(name: str) -> Callable[..., None]:
    return lambda f, *arguments: f.call(name, *arguments)
