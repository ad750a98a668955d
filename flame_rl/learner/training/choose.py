"""Choose how a network is computed: by compiled code where each of its layers is one that this
knows, otherwise by torch, over whole sequences if it has a memory. On another device, always by
torch. A module that somebody changed, by a subclass, a hook, a method of its own, a frozen or a
shared parameter, goes through torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from flame_rl.learner.compiled.library import library
from flame_rl.learner.compiled.network import ACTIVATIONS, CompiledHead, CompiledNetwork
from flame_rl.learner.training.autograd import Apply, AutogradNetwork, SequenceNetwork, layers_in
from flame_rl.learner.training.network import Network
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.modules.layers import Activation, Convolution, Dense, LayerNorm, Select
from flame_rl.modules.networks import (
    ActionValueNetwork,
    CategoricalPolicy,
    CriticNetwork,
    GaussianPolicy,
    ObservationNetwork,
    PolicyNetwork,
    ValueNetwork,
)
from flame_rl.modules.observations import FrameStack, ObservationNormalizer
from flame_rl.modules.recurrent import MEMORIES
from flame_rl.nets.layers import NormalizeLayer

# A context variable, so that algorithms need not pass the device on to their networks.
_DEVICE: ContextVar[torch.device | None] = ContextVar("device", default=None)


@contextmanager
def computing_on(device: torch.device | None) -> Iterator[None]:
    """Networks that are chosen within the block are computed on this device, by torch; None: on the
    CPU."""
    token = _DEVICE.set(device)
    try:
        yield
    finally:
        _DEVICE.reset(token)


def network_of(module: nn.Module, apply: Apply | None = None) -> Network:
    """The network that computes a module: its method `outputs`, or `apply`."""
    device = _DEVICE.get()
    compiled = compiled_network(module) if device is None and apply is None else None
    if compiled is not None:
        return compiled
    remembers = any(layer.state and not layer.bounded for layer in layers_in(module))
    kind = SequenceNetwork if remembers else AutogradNetwork
    return kind(module, apply, device)


def in_training(module: nn.Module, apply: Apply | None = None) -> TrainedNetwork:
    """Put a new module in training; see `network_of`."""
    return TrainedNetwork(module, partial(network_of, apply=apply))


# The time of torch in that of compiled code, for two layers of 64 units and 64 steps.
_TORCH = 16

# For the exact type of a network: what a loss sees of its output.
HEADS: dict[type[nn.Module], Callable[[nn.Module], CompiledHead]] = {
    PolicyNetwork: lambda module: CompiledHead("raw"),
    ActionValueNetwork: lambda module: CompiledHead("raw"),
    CriticNetwork: lambda module: CompiledHead("raw"),
    ValueNetwork: lambda module: CompiledHead("value", scale=module.scale.numpy()),
    CategoricalPolicy: lambda module: CompiledHead(
        "categorical", choices=np.array(module.choices, np.int32)
    ),
    GaussianPolicy: lambda module: CompiledHead("gaussian", log_std=_place(module, module.log_std)),
}


def compiled_network(module: nn.Module) -> CompiledNetwork | None:
    """The module as compiled code, on its own parameters; None where the package has no library, or
    the types of the module and of its layers do not say that this is the same."""
    if library() is None or type(module) not in HEADS or not _is_plain(module):
        return None
    if type(module.network) is not nn.Sequential:
        return None
    normalizer, layers = module.normalizer, list(module.network)
    if type(module) is CriticNetwork:  # its inputs are more than observations
        known = type(normalizer) is nn.Identity and type(module.features) is nn.Sequential
        known = known and not len(module.features)
    else:
        known = type(module.frames) is nn.Identity
        known = known and type(normalizer) in (nn.Identity, ObservationNormalizer)
    twice = len(set(layers)) < len(layers)
    if not known or twice:
        return None
    select = layers.pop(0).places.numpy() if layers and type(layers[0]) is Select else None
    fields: list[dict[str, float]] = []
    while layers:
        dense = layers.pop(0)
        if type(dense) is not Dense or dense.bias is None:
            return None
        own = {"inputs": dense.in_features, "outputs": dense.out_features, "norm_weight": -1}
        own |= {name: _place(module, getattr(dense, name)) for name in ("weight", "bias")}
        if layers and type(layers[0]) is LayerNorm:
            norm = layers.pop(0)
            own |= {
                f"norm_{name}": _place(module, getattr(norm, name)) for name in ("weight", "bias")
            }
            own["epsilon"] = norm.eps
        if layers and type(layers[0]) is Activation and layers[0].name in ACTIVATIONS:
            own["activation"] = ACTIVATIONS[layers.pop(0).name]
        fields.append(own)
    if not fields or not _fits(module, fields):
        return None
    parameters = next(module.parameters()).detach().numpy()
    normalize = None
    if type(normalizer) is ObservationNormalizer:
        normalize = NormalizeLayer(**normalizer.views())
    return CompiledNetwork(fields, HEADS[type(module)](module), parameters, select, normalize)


def _fits(module: nn.Module, fields: list[dict[str, float]]) -> bool:
    """Whether the layers fit each other and the head, and no other parameters are there: compiled
    code would read beyond them."""
    width = fields[-1]["outputs"]
    of_head = {
        ValueNetwork: lambda: 1,
        CategoricalPolicy: lambda: sum(module.choices),
        GaussianPolicy: lambda: module.log_std.numel(),
    }
    numbers = [each["outputs"] * (each["inputs"] + 1 + 2 * ("epsilon" in each)) for each in fields]
    total = sum(numbers) + width * (type(module) is GaussianPolicy)
    return (
        all(one["outputs"] == other["inputs"] for one, other in pairwise(fields))
        and width == of_head.get(type(module), lambda: width)()
        and total == sum(parameter.numel() for parameter in module.parameters())
    )


def _is_plain(module: nn.Module) -> bool:
    """Whether no submodule has hooks or a method of its own, and all parameters are trained, in
    float32, each by one layer, and lie one after another in memory."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    changed = any(
        any(getattr(each, name) for name in hooks) or any(map(callable, vars(each).values()))
        for each in module.modules()
    )
    parameters = list(module.parameters())
    named = sum(len(each._parameters) for each in module.modules())
    trained = all(
        each.dtype == torch.float32 and each.requires_grad and not each._backward_hooks
        for each in parameters
    )
    if changed or not trained or named != len(parameters) or not parameters:
        return False
    sizes = np.cumsum([0, *(4 * each.numel() for each in parameters)])
    return all(
        each.data_ptr() - parameters[0].data_ptr() == place and each.is_contiguous()
        for each, place in zip(parameters, sizes, strict=False)
    )


def _place(module: nn.Module, parameter: nn.Parameter) -> int:
    """Where a parameter begins among all, in numbers."""
    return (parameter.data_ptr() - next(module.parameters()).data_ptr()) // 4


def notices_of(modules: dict[str, nn.Module]) -> list[str]:
    """Why networks on the CPU train slowly, where somebody can do something about it: the package
    has no compiled library, or a network of dense layers has one that this does not know."""
    slower = f"about {_TORCH} times slower with minibatches of 64 steps"
    if library() is None:
        return [
            "The package was installed without its compiled library: torch trains the networks, "
            f"{slower}; reinstall it by `uv sync --reinstall-package flame-rl`"
        ]
    unknown = dict.fromkeys(name for each in modules.values() for name in _unknown_layers(each))
    return [
        f"{name} is a layer that compiled code does not know: torch trains its networks, {slower}; "
        "see docs/add-a-layer.md"
        for name in unknown
    ]


def _unknown_layers(module: nn.Module) -> list[str]:
    """The classes that keep a network of dense layers from compiled code; none of a network that
    is always torch's, with convolutions, a memory or stacked frames."""
    always_torchs = (Convolution, FrameStack, *MEMORIES.values())
    if not isinstance(module, ObservationNetwork | CriticNetwork):
        return []
    if any(isinstance(each, always_torchs) for each in module.modules()):
        return []
    layers = list(module.network)
    if not any(isinstance(layer, nn.Linear) for layer in layers):
        return []
    known = (Dense, LayerNorm, Activation, Select)
    return [type(layer).__name__ for layer in layers if type(layer) not in known]
