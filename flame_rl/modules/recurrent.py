"""Layers that remember an episode, as torch modules; see layers.py.

They are unrolled from an episode's first step: float32 [T, inputs] -> [T, outputs], or for E
episodes side by side [T, E, inputs] -> [T, E, outputs].
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flame_rl.modules.layers import LayerModule

# The state of a layer between two steps, [1, E, ...] each.
LayerState = tuple[Tensor, ...]


class _Memory(LayerModule):
    """What both kinds share. `burnt_in`: see `burning_in`."""

    burnt_in: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.burnt_in is None:
            return self.unroll(x)[0]
        steps = int(self.burnt_in.sum(dim=0).max())
        first, state = self.unroll(x[:steps])
        burns = self.burnt_in[0, :, None]
        state = tuple(torch.where(burns, each.detach(), each) for each in state)
        return torch.cat([first, self.unroll(x[steps:], state)[0]])

    def unroll(self, x: Tensor, state: LayerState | None = None) -> tuple[Tensor, LayerState]:
        """The outputs, and the state after the last step, [1, E, outputs] each; `state` is that
        before the first, None: 0."""
        raise NotImplementedError


class GRU(_Memory, nn.GRU):
    """A gated recurrent unit."""

    kind = "gru"

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        _initialize(self)

    def unroll(self, x: Tensor, state: LayerState | None = None) -> tuple[Tensor, LayerState]:
        outputs, last = nn.GRU.forward(self, x, None if state is None else state[0])
        return outputs, (last,)

    def arrays(self) -> dict[str, Tensor]:
        return {
            "input_weight": _by_gate(self.weight_ih_l0.T, self.hidden_size),
            "input_bias": _by_gate(self.bias_ih_l0, self.hidden_size),
            "state_weight": _by_gate(self.weight_hh_l0.T, self.hidden_size),
            "state_bias": _by_gate(self.bias_hh_l0, self.hidden_size),
        }


class LSTM(_Memory, nn.LSTM):
    """Long short-term memory."""

    kind = "lstm"

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        _initialize(self)

    def unroll(self, x: Tensor, state: LayerState | None = None) -> tuple[Tensor, LayerState]:
        return nn.LSTM.forward(self, x, state)

    def arrays(self) -> dict[str, Tensor]:
        return {
            "input_weight": _by_gate(self.weight_ih_l0.T, self.hidden_size),
            "state_weight": _by_gate(self.weight_hh_l0.T, self.hidden_size),
            "bias": _by_gate(self.bias_ih_l0 + self.bias_hh_l0, self.hidden_size),
        }


@contextmanager
def burning_in(module: nn.Module, burnt_in: Tensor | None) -> Iterator[None]:
    """Within the block, no gradient passes through steps that only make the state of memories in
    the module (Kapturowski et al. 2019, section 3).

    Args:
        module: any; it is unrolled over T steps of S sequences.
        burnt_in: bool [T, S]: the first steps of some of the sequences, equally many in each. None:
            there are none.
    """
    memories = [each for each in module.modules() if isinstance(each, _Memory)]
    for memory in memories:
        memory.burnt_in = burnt_in
    try:
        yield
    finally:
        for memory in memories:
            memory.burnt_in = None


# By --memory.
MEMORIES: dict[str, type[GRU | LSTM]] = {"gru": GRU, "lstm": LSTM}


def _initialize(module: nn.RNNBase) -> None:
    """Orthogonal weights, and biases of 0, but 1 for the gate that keeps the state, the second of
    both kinds: with 0, half of the state would be lost at each step at first (Jozefowicz et al.
    2015, "An Empirical Exploration of Recurrent Network Architectures")."""
    for name, parameter in module.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
        else:
            for gate in parameter.split(module.hidden_size):
                nn.init.orthogonal_(gate)
    with torch.no_grad():
        module.bias_ih_l0.split(module.hidden_size)[1].fill_(1.0)


def _by_gate(array: Tensor, width: int) -> Tensor:
    """Weights whose last dimension lists the gates one after another, as actors take them: [...,
    gates * width] -> [..., gates, width]."""
    return array.unflatten(-1, (-1, width))
