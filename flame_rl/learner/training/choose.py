"""Choose how a network is computed: by hand (as machine code, or in NumPy) where its type says that
the result is the same, otherwise by torch, over whole sequences if it has a memory; then memories,
dense layers and activations are machine code. On another device, always by torch.

Networks of flame_rl/modules/networks.py whose layers know their derivatives are computed by hand. A
module that somebody changed, by a subclass, a hook, a frozen or a shared parameter, goes through
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.learner.kernels.arithmetic import CompiledArithmetic
from flame_rl.learner.kernels.dense import compile_dense
from flame_rl.learner.kernels.layers import compiled_layers
from flame_rl.learner.kernels.learning.heads import has_machine_code
from flame_rl.learner.kernels.learning.network import CompiledNetwork
from flame_rl.learner.kernels.recurrent import compile_memories
from flame_rl.learner.training.autograd import (
    Apply,
    AutogradNetwork,
    SequenceNetwork,
    layers_in,
)
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.modules.layers import Dense, LayerModule
from flame_rl.modules.networks import (
    ActionValueNetwork,
    CategoricalPolicy,
    CriticNetwork,
    GaussianPolicy,
    PolicyNetwork,
    ValueNetwork,
)
from flame_rl.modules.observations import ObservationNormalizer
from flame_rl.nets.by_hand import ArrayPlace, NetworkByHand, PlacedLayer, PlainLayers
from flame_rl.nets.continuous import GaussianHead
from flame_rl.nets.discrete import CategoricalHead, FactoredHead
from flame_rl.nets.heads import RawOutput, ValueOutput
from flame_rl.nets.kinds import LAYERS
from flame_rl.nets.layers import DenseLayer, LayerByHand, NormalizeLayer, SelectLayer
from flame_rl.nets.network import Network

# A context variable, so that algorithms need not pass the device on to their networks.
_DEVICE: ContextVar[torch.device | None] = ContextVar("device", default=None)


@contextmanager
def computing_on(device: torch.device | None) -> Iterator[None]:
    """Networks that are chosen within the block are computed on this device, and none of them by
    hand; None: on the CPU."""
    token = _DEVICE.set(device)
    try:
        yield
    finally:
        _DEVICE.reset(token)


def network_of(module: nn.Module, apply: Apply | None = None) -> Network:
    """The network that computes a module: its method `outputs`, or `apply`."""
    device = _DEVICE.get()
    if device is None and apply is None:
        by_hand = network_by_hand(module)
        if by_hand is not None:
            return by_hand
    remembers = any(layer.state and not layer.bounded for layer in layers_in(module))
    if remembers:
        compile_memories(module)
        compile_dense(module)
    kind = SequenceNetwork if remembers else AutogradNetwork
    return kind(module, apply, device)


def in_training(module: nn.Module, apply: Apply | None = None) -> TrainedNetwork:
    """Put a new module in training; see `network_of`."""
    return TrainedNetwork(module, partial(network_of, apply=apply), CompiledArithmetic())


def _categorical(module: CategoricalPolicy) -> tuple[RawOutput, int]:
    width = sum(module.choices)
    if module.factored:
        return FactoredHead(width, np.array(module.choices, np.int32)), width
    return CategoricalHead(width), width


def _gaussian(module: GaussianPolicy) -> tuple[RawOutput, int]:
    width = module.log_std.numel()
    return GaussianHead(width, module.log_std.detach().numpy()), width


# For the exact type of a network: the head that makes a loss's arguments of the last layer's
# output, and the width of that output; 0: any.
OUTPUTS: dict[type[nn.Module], Callable[[nn.Module], tuple[RawOutput, int]]] = {
    PolicyNetwork: lambda module: (RawOutput(), 0),
    CategoricalPolicy: _categorical,
    GaussianPolicy: _gaussian,
    ActionValueNetwork: lambda module: (RawOutput(), 0),
    ValueNetwork: lambda module: (ValueOutput(module.scale.numpy()), 1),
    CriticNetwork: lambda module: (RawOutput(), 0),
}


def network_by_hand(module: nn.Module) -> NetworkByHand | None:
    """The module in NumPy, on its own parameters; None where the types of the module and of its
    layers do not say that this is the same."""
    if type(module) not in OUTPUTS or not _is_unchanged(module):
        return None
    normalizer = module.normalizer
    if type(module) is CriticNetwork:  # its inputs are more than observations
        known = type(normalizer) is nn.Identity
        known = known and type(module.features) is nn.Sequential and not list(module.features)
    else:
        known = type(module.frames) is nn.Identity
        known = known and type(normalizer) in (nn.Identity, ObservationNormalizer)
    if not known or type(module.network) is not nn.Sequential:
        return None
    layers = list(module.network)
    kinds = [_kind_by_hand(layer) for layer in layers]
    output, width = OUTPUTS[type(module)](module)
    if not _fit(kinds) or width not in (0, _width(layers)):
        return None

    views = [
        [layer.arrays()[name] for name in kind.learned]
        for kind, layer in zip(kinds, layers, strict=True)
    ]
    # Its parameters have the names of the arrays.
    views.append([module.get_parameter(name) for name in output.learned])
    starts, start = {}, 0
    for parameter in module.parameters():
        starts[parameter.data_ptr()] = start
        start += 4 * parameter.numel()
    # Each parameter is learned by one layer alone.
    if sorted(view.data_ptr() for each in views for view in each) != sorted(starts):
        return None
    *of_layers, of_output = [tuple(_place(view, starts) for view in each) for each in views]
    placed = [
        PlacedLayer(kind(**layer.views()), places)
        for kind, layer, places in zip(kinds, layers, of_layers, strict=True)
    ]
    normalize = None
    if type(normalizer) is ObservationNormalizer:
        normalize = NormalizeLayer(**normalizer.views())
    compiled = compiled_layers(placed)
    kind = CompiledNetwork if compiled is not None and has_machine_code(output) else NetworkByHand
    return kind(compiled or PlainLayers(placed), output, of_output, normalize)


def _is_unchanged(module: nn.Module) -> bool:
    """Whether no submodule has hooks or a method of its own, and every parameter is
    trained, in float32."""
    submodules = list(module.modules())
    hooks = [
        each
        for submodule in submodules
        for each in (
            submodule._forward_hooks,
            submodule._forward_pre_hooks,
            submodule._backward_hooks,
            submodule._backward_pre_hooks,
        )
    ]
    own_methods = [value for each in submodules for value in vars(each).values() if callable(value)]
    trained = [
        each.dtype == torch.float32 and each.requires_grad and not each._backward_hooks
        for each in module.parameters()
    ]
    return not any(hooks) and not own_methods and all(trained)


def _kind_by_hand(layer: nn.Module) -> type[LayerByHand] | None:
    """The kind of a layer whose class says that it is the kind's; see `LayerModule`."""
    if not isinstance(layer, LayerModule) or "kind" not in vars(type(layer)):
        return None
    kind = LAYERS.get(layer.kind)
    return kind if kind is not None and issubclass(kind, LayerByHand) else None


def _fit(kinds: list[type[LayerByHand] | None]) -> bool:
    """Whether a network by hand may have these layers in this order; see `LayerByHand.in_place`."""
    if kinds[:1] == [SelectLayer]:
        kinds = kinds[1:]
    if None in kinds or not kinds or kinds[0] is not DenseLayer:
        return False
    return not any(first.in_place and second.in_place for first, second in pairwise(kinds))


def _width(layers: list[nn.Module]) -> int:
    """The width of what the layers give."""
    return [layer.out_features for layer in layers if type(layer) is Dense][-1]


def _place(view: Tensor, starts: dict[int, int]) -> ArrayPlace:
    """Where a view of a parameter lies if all parameters lie one after another; `starts` has their
    first bytes by address."""
    strides = tuple(4 * stride for stride in view.stride())
    return ArrayPlace(starts[view.data_ptr()], tuple(view.shape), strides)
