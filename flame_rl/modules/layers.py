"""Layers as torch modules. Each exports itself for actors, as a kind of layer in flame_rl/nets/."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import Layer


class LayerModule(nn.Module):
    """A torch module that is also a kind of layer in flame_rl/nets/. `kind`: its name there, in the
    body of the class whose `forward` computes it."""

    kind: str

    def arrays(self) -> dict[str, Tensor]:
        """The kind's arrays by name, float32 or int32."""
        return {}

    def views(self) -> dict[str, np.ndarray]:
        """The kind's arrays, which change with the module's own."""
        return {name: tensor.detach().numpy() for name, tensor in self.arrays().items()}

    def layer(self) -> Layer:
        """A copy of the layer for actors."""
        return Layer(self.kind, {name: array_of(tensor) for name, tensor in self.arrays().items()})


class Dense(LayerModule, nn.Linear):
    """A fully connected layer: float32 [..., inputs] -> [..., outputs]."""

    kind = "dense"

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)

    def arrays(self) -> dict[str, Tensor]:
        # torch keeps [outputs, inputs]; the actors multiply from the left.
        bias = self.weight.new_zeros(self.out_features) if self.bias is None else self.bias
        return {"weight": self.weight.T, "bias": bias}


class Select(LayerModule):
    """Some numbers of an observation: float32 [..., D * frames] -> [..., numbers * frames]."""

    kind = "select"

    def __init__(self, width: int, places: Sequence[int], frames: int = 1) -> None:
        """
        Args:
            width: D.
            places: those of the numbers, below D.
            frames: how many observations are stacked; see `FrameStack`.
        """
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

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    @property
    def kind(self) -> str:
        return self.name

    def forward(self, x: Tensor) -> Tensor:
        return getattr(nn.functional, self.name)(x)


class Convolution(LayerModule, nn.Conv2d):
    """Filters over pictures with channels last, as Gymnasium gives them, without padding. Pictures
    are flat before and after: float32 [..., rows * columns * channels] -> [..., places down *
    places across * filters]. `size`: rows, columns and channels of a picture. `output_size`: the
    same of the output: places down and across, and filters."""

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


class Branches(nn.Module):
    """Inputs side by side, each through layers of its own: float32 [..., sum of widths] -> [...,
    sum of the outputs' widths]. `widths`: of the inputs. `branches`: the layers of each input;
    without any, it stays as it is."""

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
    for module in modules:
        containers = nn.Sequential, Branches, nn.Identity
        classes = type(module).__mro__
        known = next((each for each in classes if each in containers or "kind" in vars(each)), None)
        if known is None:
            raise UsageError(
                f"model.py: {type(module).__name__} is no `LayerModule` of modules/layers.py, "
                "which exports one of the kinds of layers in flame_rl/nets/kinds.py"
            )
        _refuse_another_forward(module, known)
        if known is nn.Sequential:
            layers += layers_of(*module)
        elif known is Branches:
            layers += module.layers()
        elif known is not nn.Identity:
            layers.append(module.layer())
    return tuple(layers)


def _refuse_another_forward(module: nn.Module, known: type[nn.Module]) -> None:
    """Raise UsageError unless the module computes what the class does that actors know it by."""
    name, why = type(module).__name__, ""
    if type(module).forward is not known.forward:
        why = f"the class has a `forward` of its own, and actors know it as {known.__name__}"
    elif "forward" in vars(module):
        why = f"this {name} has a `forward` of its own, which actors do not get"
    elif module._forward_hooks or module._forward_pre_hooks:
        why = f"this {name} has a hook, which actors do not get"
    if why:
        raise UsageError(
            f"model.py: {name}: {why}; make it a class with a `kind` (docs/add-a-layer.md)"
        )


def array_of(tensor: Tensor) -> np.ndarray:
    """A copy of the tensor as an array, float32 or int32."""
    dtype = np.float32 if tensor.is_floating_point() else np.int32
    return np.array(tensor.detach().numpy(), dtype, order="C")
