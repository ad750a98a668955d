"""The recurrence of a GRU, whose gradient is computed in NumPy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flame_rl.nets.recurrent import GRULayer


def unrolled(given: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """See `GRULayer.unroll`."""
    return _Unrolled.apply(given, weight, bias)


class _Unrolled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        outputs, ctx.kept = GRULayer.unroll(given.numpy(), weight.numpy(), bias.numpy())
        return torch.from_numpy(outputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(torch.from_numpy, GRULayer.unroll_back(ctx.kept, slope.numpy())))
