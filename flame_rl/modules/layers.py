"""Layers as torch modules. Each exports itself for actors, as a kind of layer in flame_rl/nets/."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import Layer


class LayerModule(nn.Module):
    """A torch module that is also a kind of layer in flame_rl/nets/."""

    kind: str  # its name there, declared in the class that defines `forward`; see `layers_of`

    def arrays(self) -> dict[str, Tensor]:
        """The kind's arrays by name, float32 or int32."""
        return {}

    def views(self) -> dict[str, np.ndarray]:
        """`arrays` as NumPy views of the module's memory."""
        return {name: tensor.detach().numpy() for name, tensor in self.arrays().items()}

    def layer(self) -> Layer:
        """A copy of the layer for actors."""
        return Layer(self.kind, {name: array_of(tensor) for name, tensor in self.arrays().items()})


class Dense(LayerModule, nn.Linear):
    """A fully connected layer: float32 [..., inputs] -> [..., outputs]."""

    kind = "dense"

    def arrays(self) -> dict[str, Tensor]:
        # torch keeps [outputs, inputs]; actors compute x @ W.
        bias = self.weight.new_zeros(self.out_features) if self.bias is None else self.bias
        return {"weight": self.weight.T, "bias": bias}


class Select(LayerModule):
    """Some numbers of an observation: float32 [..., D * frames] -> [..., numbers * frames]."""

    kind = "select"

    def __init__(self, width: int, places: Sequence[int], frames: int = 1) -> None:
        """`width`: D. `places`: those of the numbers. `frames`: of a `FrameStack` before it."""
        super().__init__()
        self.width = width * frames
        of_frames = torch.tensor(places)[:, None] * frames + torch.arange(frames)
        self.register_buffer("places", of_frames.flatten().int(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(-1, self.places)

    def arrays(self) -> dict[str, Tensor]:
        return {"places": self.places, "width": torch.tensor([self.width], device="cpu")}


class LayerNorm(LayerModule, nn.LayerNorm):
    """Normalises the numbers of each row: float32 [..., width] -> [..., width]."""

    kind = "layer_norm"

    def __init__(self, width: int) -> None:
        super().__init__(width)

    def arrays(self) -> dict[str, Tensor]:
        epsilon = torch.tensor([self.eps], device="cpu")
        return {"weight": self.weight, "bias": self.bias, "epsilon": epsilon}


class Activation(LayerModule):
    """An activation by its name, which is the same in torch.nn.functional and for actors."""

    kind = ""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.kind = name

    def forward(self, x: Tensor) -> Tensor:
        return getattr(nn.functional, self.kind)(x)


class Convolution(LayerModule, nn.Conv2d):
    """Filters over pictures with channels last, as Gymnasium gives them, without padding. Pictures
    are flat before and after: float32 [..., rows * columns * channels] -> [..., places down *
    places across * filters]. `size`, `output_size`: rows, columns and channels of both."""

    kind = "convolution"

    def __init__(self, size: tuple[int, int, int], filters: int, width: int, stride: int) -> None:
        """`filters` square filters, `width` rows and columns each."""
        super().__init__(size[2], filters, width, stride)
        self.size = size
        down, across = ((side - width) // stride + 1 for side in size[:2])
        self.output_size = (down, across, filters)

    def forward(self, x: Tensor) -> Tensor:
        # torch counts channels before rows and columns, but takes them in any order in memory.
        pictures = x.reshape(-1, *self.size).permute(0, 3, 1, 2)
        y = super().forward(pictures).permute(0, 2, 3, 1)
        return y.reshape(*x.shape[:-1], math.prod(self.output_size))

    def arrays(self) -> dict[str, Tensor]:
        return {
            "weight": self.weight.permute(2, 3, 1, 0),
            "bias": self.bias,
            "size": torch.tensor(self.size[:2], device="cpu"),
            "stride": torch.tensor(self.stride[:1], device="cpu"),
        }


LayerState = tuple[Tensor, ...]  # the state of a layer between two steps, [1, E, ...] each


class _Memory(LayerModule):
    """A layer that remembers an episode. It is unrolled from an episode's first step: float32 [T,
    inputs] -> [T, outputs], or for E episodes side by side [T, E, inputs] -> [T, E, outputs]."""

    burnt_in: Tensor | None = None  # see `burning_in`

    def __init__(self, inputs: int, outputs: int) -> None:
        """Orthogonal weights, and biases of 0, but 1 for the gate that keeps the state, the second
        of both kinds: with 0, half of the state would be lost at each step at first (Jozefowicz et
        al. 2015, "An Empirical Exploration of Recurrent Network Architectures")."""
        super().__init__(inputs, outputs)
        for name, parameter in self.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
            else:
                for gate in parameter.split(outputs):
                    nn.init.orthogonal_(gate)
        nn.init.ones_(self.bias_ih_l0[outputs : 2 * outputs])

    def forward(self, x: Tensor) -> Tensor:
        if self.burnt_in is None:
            return self.unroll(x)[0]
        steps = int(self.burnt_in.sum(dim=0).max())
        first, state = self.unroll(x[:steps])
        burns = self.burnt_in[0, :, None]
        state = tuple(torch.where(burns, each.detach(), each) for each in state)
        return torch.cat([first, self.unroll(x[steps:], state)[0]])

    def unroll(self, x: Tensor, state: LayerState | None = None) -> tuple[Tensor, LayerState]:
        """The outputs, and the last state, [1, E, outputs] each, from the first; None: 0."""
        raise NotImplementedError

    def arrays(self) -> dict[str, Tensor]:
        arrays = {"input_weight": self.weight_ih_l0.T, "state_weight": self.weight_hh_l0.T}
        # torch lists the gates one after another; for actors they have a dimension of their own.
        return {
            name: array.unflatten(-1, (-1, self.hidden_size))
            for name, array in (arrays | self.biases()).items()
        }


class GRU(_Memory, nn.GRU):
    """A gated recurrent unit."""

    kind = "gru"

    def unroll(self, x: Tensor, state: LayerState | None = None) -> tuple[Tensor, LayerState]:
        outputs, last = nn.GRU.forward(self, x, None if state is None else state[0])
        return outputs, (last,)

    def biases(self) -> dict[str, Tensor]:
        return {"input_bias": self.bias_ih_l0, "state_bias": self.bias_hh_l0}


class LSTM(_Memory, nn.LSTM):
    """Long short-term memory."""

    kind = "lstm"

    def unroll(self, x: Tensor, state: LayerState | None = None) -> tuple[Tensor, LayerState]:
        return nn.LSTM.forward(self, x, state)

    def biases(self) -> dict[str, Tensor]:
        return {"bias": self.bias_ih_l0 + self.bias_hh_l0}


@contextmanager
def burning_in(module: nn.Module, burnt_in: Tensor | None) -> Iterator[None]:
    """Within the block, no gradient passes through steps that only make the state of memories in
    the module (Kapturowski et al. 2019, section 3): `burnt_in`, bool [T, S], the first steps of
    some of S sequences, equally many in each; None: there are none."""
    memories = [each for each in module.modules() if isinstance(each, _Memory)]
    for memory in memories:
        memory.burnt_in = burnt_in
    try:
        yield
    finally:
        for memory in memories:
            memory.burnt_in = None


MEMORIES: dict[str, type[GRU | LSTM]] = {"gru": GRU, "lstm": LSTM}  # by --memory


class Branches(nn.Module):
    """Inputs side by side, each through layers of its own: float32 [..., sum of widths] -> [...,
    sum of the outputs' widths]. `branches`: the layers of each input, or none."""

    def __init__(self, widths: Sequence[int], branches: Sequence[Sequence[nn.Module]]) -> None:
        super().__init__()
        self.widths = tuple(widths)
        self.branches = nn.ModuleList(nn.Sequential(*layers) for layers in branches)

    def forward(self, x: Tensor) -> Tensor:
        inputs = x.split(self.widths, dim=-1)
        outputs = [branch(each) for branch, each in zip(self.branches, inputs, strict=True)]
        return torch.cat(outputs, dim=-1)

    def layers(self) -> tuple[Layer, ...]:
        """The layers for actors, one input after another."""
        first = Layer("inputs", {"widths": np.array(self.widths, np.int32)})
        own = (
            replace(layer, input=place)
            for place, branch in enumerate(self.branches)
            for layer in layers_of(branch)
        )
        return (first, *own)


def side_by_side(widths: Sequence[int], branches: Sequence[Sequence[nn.Module]]) -> list[nn.Module]:
    """`Branches` as a list of layers; of a single input, its layers themselves."""
    return list(branches[0]) if len(widths) == 1 else [Branches(widths, branches)]


def with_layer_norms(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """The layers, also those in branches, with a `LayerNorm` before each activation."""
    result, width = [], 0
    for layer in layers:
        if isinstance(layer, Branches):
            each = (nn.Sequential(*with_layer_norms(branch)) for branch in layer.branches)
            layer.branches = nn.ModuleList(each)
        elif isinstance(layer, Activation):
            result.append(LayerNorm(width))
        elif isinstance(layer, Dense | Convolution):
            dense = isinstance(layer, Dense)
            width = layer.out_features if dense else math.prod(layer.output_size)
        result.append(layer)
    return result


def orthogonal(layer: Dense | Convolution, gain: float = math.sqrt(2)) -> None:
    """Make the weights orthogonal, scaled by `gain`, and the biases 0."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)


def layers_of(*modules: nn.Module) -> tuple[Layer, ...]:
    """The layers of the modules, one after another, for actors. Raises UsageError for a module
    that does not say what it is for actors, or computes something else."""
    layers: list[Layer] = []
    containers = nn.Sequential, Branches, nn.Identity
    for module in modules:
        name, classes = type(module).__name__, type(module).__mro__
        known = next((each for each in classes if each in containers or "kind" in vars(each)), None)
        if known is None:
            raise UsageError(
                f"model.py: {name} is no `LayerModule` of modules/layers.py, which exports one of "
                "the kinds of layers in flame_rl/nets/kinds.py"
            )
        hooked = module._forward_hooks or module._forward_pre_hooks
        if hooked or getattr(module.forward, "__func__", None) is not known.forward:
            raise UsageError(
                f"model.py: {name}: actors know it as {known.__name__}, and do not get its own "
                "`forward` or hook; make it a class with a `kind` (docs/add-a-layer.md)"
            )
        if known is nn.Sequential:
            layers += layers_of(*module)
        elif known is Branches:
            layers += module.layers()
        elif known is not nn.Identity:
            layers.append(module.layer())
    return tuple(layers)


def array_of(tensor: Tensor) -> np.ndarray:
    """A copy of the tensor as an array, float32 or int32."""
    dtype = np.float32 if tensor.is_floating_point() else np.int32
    return np.array(tensor.detach().numpy(), dtype, order="C")
