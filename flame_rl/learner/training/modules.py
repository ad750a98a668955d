"""A torch module as a network by hand, on the module's own parameters."""

from __future__ import annotations

from torch import nn

from flame_rl.nets.by_hand import Moments, NetworkByHand
from flame_rl.nets.learning_heads import Head
from flame_rl.nets.learning_layers import ACTIVATIONS, Dense, Layer, LayerNorm


class UnknownLayerError(Exception):
    """The module has parts that layers.py does not know."""


def network_by_hand(module: nn.Module, head: Head) -> NetworkByHand:
    """The network of a module whose `normalizer` and `network` are as in model.py.

    Args:
        module: its parameters stay shared with the result.
        head: see `NetworkByHand`.

    Raises:
        UnknownLayerError: the module has other layers.
    """
    if not isinstance(getattr(module, "frames", None), nn.Identity | None):
        raise UnknownLayerError("stacked frames")
    starts, start = {}, 0
    for parameter in module.parameters():
        starts[parameter], start = start, start + parameter.numel()
    layers = [_layer(layer, starts) for layer in getattr(module, "network", ())]
    if not layers or not isinstance(layers[0], Dense):
        raise UnknownLayerError("no dense layer at the beginning")
    network = NetworkByHand(layers, head, _moments(getattr(module, "normalizer", None)))
    if network.parameters != start:
        raise UnknownLayerError("parameters outside of layers and head")
    return network


def _moments(normalizer: nn.Module | None) -> Moments | None:
    if isinstance(normalizer, nn.Identity):
        return None
    if not hasattr(normalizer, "layer") or normalizer.layer().kind != "normalize":
        raise UnknownLayerError(str(normalizer))
    return normalizer.mean.numpy(), normalizer.std.numpy(), normalizer.limit


def _layer(module: nn.Module, starts: dict[nn.Parameter, int]) -> Layer:
    """The layer by hand. Raises UnknownLayerError."""
    if type(module) is nn.LayerNorm and module.elementwise_affine and module.bias is not None:
        views = module.weight.detach().numpy(), module.bias.detach().numpy()
        return LayerNorm(*views, module.eps, starts[module.weight])
    kind = module.layer().kind if hasattr(module, "layer") else ""
    if kind in ACTIVATIONS:
        return ACTIVATIONS[kind]
    if kind != "dense":
        raise UnknownLayerError(str(module))
    views = module.weight.detach().numpy(), module.bias.detach().numpy()
    return Dense(*views, starts[module.weight])
