"""Layers that remember an episode, as torch modules; see layers.py.

They are unrolled from an episode's first step: float32 [T, inputs] -> [T, outputs], or for E
episodes side by side [T, E, inputs] -> [T, E, outputs].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flame_rl.modules.layers import LayerModule
from flame_rl.nets.recurrent import GRULayer


class GRU(LayerModule, nn.GRU):
    """A gated recurrent unit."""

    kind = "gru"

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        _initialize(self, remembering=1)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled() or x.device.type != "cpu":
            return super().forward(x)[0]
        given = nn.functional.linear(x, self.weight_ih_l0, self.bias_ih_l0)
        sequences = given if x.ndim == 3 else given[:, None]
        outputs = _Unrolled.apply(sequences, self.weight_hh_l0, self.bias_hh_l0)
        return outputs if x.ndim == 3 else outputs[:, 0]

    def arrays(self) -> dict[str, Tensor]:
        return {
            "input_weight": _by_gate(self.weight_ih_l0.T, self.hidden_size),
            "input_bias": _by_gate(self.bias_ih_l0, self.hidden_size),
            "state_weight": _by_gate(self.weight_hh_l0.T, self.hidden_size),
            "state_bias": _by_gate(self.bias_hh_l0, self.hidden_size),
        }


class LSTM(LayerModule, nn.LSTM):
    """Long short-term memory."""

    kind = "lstm"

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        _initialize(self, remembering=1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]

    def arrays(self) -> dict[str, Tensor]:
        return {
            "input_weight": _by_gate(self.weight_ih_l0.T, self.hidden_size),
            "state_weight": _by_gate(self.weight_hh_l0.T, self.hidden_size),
            "bias": _by_gate(self.bias_ih_l0 + self.bias_hh_l0, self.hidden_size),
        }


# By --memory.
MEMORIES: dict[str, type[GRU | LSTM]] = {"gru": GRU, "lstm": LSTM}


class _Unrolled(torch.autograd.Function):
    """See `GRULayer.unroll`, which computes it and its gradient in NumPy."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        outputs, ctx.kept = GRULayer.unroll(given.numpy(), weight.numpy(), bias.numpy())
        return torch.from_numpy(outputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(torch.from_numpy, GRULayer.unroll_back(ctx.kept, slope.numpy())))


def _initialize(module: nn.RNNBase, remembering: int) -> None:
    """Orthogonal weights, and biases of 0, but 1 for the gate, by its place, that keeps the state:
    with 0, half of the state would be lost at each step at first (Jozefowicz et al. 2015, "An
    Empirical Exploration of Recurrent Network Architectures")."""
    for name, parameter in module.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
        else:
            for gate in parameter.split(module.hidden_size):
                nn.init.orthogonal_(gate)
    with torch.no_grad():
        module.bias_ih_l0.split(module.hidden_size)[remembering].fill_(1.0)


def _by_gate(array: Tensor, width: int) -> Tensor:
    """Weights whose last dimension lists the gates one after another, as actors take them: [...,
    gates * width] -> [..., gates, width]."""
    return array.unflatten(-1, (-1, width))
