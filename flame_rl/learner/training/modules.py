"""A torch module as a network by hand, on the module's own parameters."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from flame_rl.nets.by_hand import NetworkByHand, Place, PlacedLayer
from flame_rl.nets.heads import RawOutput
from flame_rl.nets.kinds import LAYERS
from flame_rl.nets.layers import DenseLayer, LayerByHand, LayerNormLayer, NormalizeLayer


class UnknownLayerError(Exception):
    """The module has parts that are not known by hand."""


def network_by_hand(module: nn.Module, output: RawOutput, *learned: Tensor) -> NetworkByHand:
    """The network of a module whose `normalizer` and `network` are as in model.py.

    Args:
        module: its parameters stay shared with the result.
        output: see `NetworkByHand`.
        learned: the parameters of the output.

    Raises:
        UnknownLayerError: the module has other layers.
    """
    if not isinstance(getattr(module, "frames", None), nn.Identity | None):
        raise UnknownLayerError("stacked frames")
    starts, start = {}, 0
    for parameter in module.parameters():
        starts[parameter], start = start, start + parameter.numel()
    layers = [_layer(layer, starts) for layer in getattr(module, "network", ())]
    if not layers or not isinstance(layers[0].layer, DenseLayer):
        raise UnknownLayerError("no dense layer at the beginning")
    normalizer = _normalizer(getattr(module, "normalizer", None))
    places = tuple(place_of(parameter, starts) for parameter in learned)
    network = NetworkByHand(layers, output, places, normalizer)
    if network.parameters != start:
        raise UnknownLayerError("parameters outside of layers and head")
    return network


def place_of(view: Tensor, starts: dict[nn.Parameter, int]) -> Place:
    """Where a view of a parameter lies in the flat parameters.

    Args:
        view: of one of the parameters.
        starts: the place of the first number of each.
    """
    at = view.data_ptr()
    for parameter, start in starts.items():
        offset = at - parameter.data_ptr()
        if 0 <= offset < 4 * parameter.numel():
            strides = tuple(4 * stride for stride in view.stride())
            return Place(4 * start + offset, tuple(view.shape), strides)
    raise UnknownLayerError("an array that is no parameter")


def _normalizer(module: nn.Module | None) -> NormalizeLayer | None:
    if isinstance(module, nn.Identity):
        return None
    if not hasattr(module, "layer") or module.layer().kind != "normalize":
        raise UnknownLayerError(str(module))
    return NormalizeLayer(module.mean.numpy(), module.std.numpy())


def _layer(module: nn.Module, starts: dict[nn.Parameter, int]) -> PlacedLayer:
    """The layer by hand. Raises UnknownLayerError."""
    if type(module) is nn.LayerNorm and module.elementwise_affine and module.bias is not None:
        arrays = {"weight": module.weight, "bias": module.bias}
        epsilon = np.array([module.eps], np.float32)
        layer = LayerNormLayer(**numpy_of(arrays), epsilon=epsilon)
    else:
        kind = LAYERS.get(module.layer().kind) if hasattr(module, "layer") else None
        if kind is None or not issubclass(kind, LayerByHand):
            raise UnknownLayerError(str(module))
        dense = kind is DenseLayer
        arrays = {"weight": module.weight.T, "bias": module.bias} if dense else {}
        layer = kind(**numpy_of(arrays))
    return PlacedLayer(layer, tuple(place_of(view, starts) for view in arrays.values()))


def numpy_of(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Views of the tensors."""
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}
