"""Whether a network, layer by layer, is one that compiled code knows; otherwise torch computes it,
and on another device always. A module that somebody changed, by a subclass, a hook, a method of its
own, a frozen or a shared parameter, goes through torch.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from flame_rl.learner.compiled.library import library
from flame_rl.learner.compiled.network import ACTIVATIONS, CompiledHead, CompiledNetwork
from flame_rl.learner.training.autograd import Apply, AutogradNetwork
from flame_rl.learner.training.device import NETWORK_DEVICE
from flame_rl.learner.training.network import Network
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.modules.layers import MEMORIES, Activation, Convolution, Dense, LayerNorm, Select
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
from flame_rl.nets.layers import NormalizeLayer

# How many times slower torch is, for two layers of 64 units and minibatches of 64 steps.
_TIMES_SLOWER = 16

# How a loss sees the output of a network of exactly this type; see `CompiledHead`.
_SEEN_AS: dict[type[nn.Module], str] = {
    PolicyNetwork: "values",
    ActionValueNetwork: "values",
    CriticNetwork: "values",
    ValueNetwork: "values",
    CategoricalPolicy: "categorical",
    GaussianPolicy: "gaussian",
}


def network_of(module: nn.Module, apply: Apply | None = None) -> Network:
    """The network that computes a module: its method `outputs`, or `apply`."""
    device = NETWORK_DEVICE.get()
    compiled = compiled_network(module) if device is None and apply is None else None
    return compiled or AutogradNetwork(module, apply, device)


def in_training(module: nn.Module, apply: Apply | None = None) -> TrainedNetwork:
    """Put a new module in training; see `network_of`."""
    return TrainedNetwork(module, partial(network_of, apply=apply))


def compiled_network(module: nn.Module) -> CompiledNetwork | None:
    """The module as compiled code, on its own parameters; None where the package has no library, or
    the types of the module and of its layers do not say that this is the same."""
    if library() is None or type(module) not in _SEEN_AS or not _is_plain(module):
        return None
    head, width, expected = CompiledHead(_SEEN_AS[type(module)]), None, []
    if type(module) is ValueNetwork:
        head, width = replace(head, scale=module.scale.numpy()), 1
    elif type(module) is CategoricalPolicy:
        head = replace(head, choices=np.array(module.choices, np.int32))
        width = sum(module.choices)
    elif type(module) is GaussianPolicy:
        width, expected = module.log_std.numel(), [module.log_std]
    place, layers = sum(each.numel() for each in expected), list(module.network)
    select = layers.pop(0).places.numpy() if layers and type(layers[0]) is Select else None
    fields: list[dict[str, float]] = []
    while layers:
        dense = layers.pop(0)
        if type(dense) is not Dense:
            return None
        inputs, outputs = dense.in_features, dense.out_features
        own = {"inputs": inputs, "outputs": outputs, "weight": place, "norm_weight": -1}
        own["bias"] = place + inputs * outputs
        place += (inputs + 1) * outputs
        expected += dense.weight, dense.bias
        if layers and type(layers[0]) is LayerNorm:
            norm = layers.pop(0)
            own |= {"norm_weight": place, "norm_bias": place + outputs, "epsilon": norm.eps}
            place += 2 * outputs
            expected += norm.weight, norm.bias
        if layers and type(layers[0]) is Activation and layers[0].kind in ACTIVATIONS:
            own["activation"] = ACTIVATIONS[layers.pop(0).kind]
        fields.append(own)
    # Compiled code would read beyond layers that do not fit each other, or the head.
    fit = all(one["outputs"] == other["inputs"] for one, other in pairwise(fields))
    if not fields or not fit or width not in (None, fields[-1]["outputs"]):
        return None
    parameters = list(module.parameters())
    if list(map(id, parameters)) != list(map(id, expected)):  # one more, or one of two layers
        return None
    first, last = parameters[0], parameters[-1]
    if first.data_ptr() + 4 * place != last.data_ptr() + 4 * last.numel():  # not in one array
        return None
    normalize = None
    if type(module.normalizer) is ObservationNormalizer:
        normalize = NormalizeLayer(**module.normalizer.views())
    return CompiledNetwork(fields, head, first.detach().numpy(), select, normalize)


def _is_plain(module: nn.Module) -> bool:
    """Whether nothing but known preprocessing is around the layers, no submodule has hooks or a
    method of its own, and all parameters are trained, in float32."""
    changed = any(
        callable(value) or (value and name.endswith("_hooks"))
        for each in module.modules()
        for name, value in vars(each).items()
    )
    trained = all(
        each.dtype == torch.float32 and each.requires_grad and not each._backward_hooks
        for each in module.parameters()
    )
    known = [nn.Identity, ObservationNormalizer]
    if type(module) is CriticNetwork:  # its inputs are more than observations
        known.remove(ObservationNormalizer)
        other = type(module.features) is not nn.Sequential or len(module.features)
    else:
        other = type(module.frames) is not nn.Identity
    plain = type(module.network) is nn.Sequential and type(module.normalizer) in known
    return plain and trained and not changed and not other


def notices_of(modules: dict[str, nn.Module]) -> list[str]:
    """Why networks on the CPU train slowly, where somebody can do something about it: the package
    has no compiled library, or a network of dense layers has one that this does not know."""
    slower = f"about {_TIMES_SLOWER} times slower with minibatches of 64 steps"
    if library() is None:
        return [
            "The package was installed without its compiled library: torch trains the networks, "
            f"{slower}; reinstall it by `uv sync --reinstall-package flame-rl`"
        ]
    unknown: dict[str, None] = {}
    for module in modules.values():
        if not isinstance(module, ObservationNetwork | CriticNetwork):
            continue
        torchs = (Convolution, FrameStack, *MEMORIES.values())
        dense = any(isinstance(layer, nn.Linear) for layer in module.network)
        if dense and not any(isinstance(each, torchs) for each in module.modules()):
            types = {type(layer): None for layer in module.network}
            known = (Dense, LayerNorm, Activation, Select)
            unknown |= dict.fromkeys(kind.__name__ for kind in types if kind not in known)
    return [
        f"{name} is a layer that compiled code does not know: torch trains its networks, {slower}; "
        "see docs/add-a-layer.md"
        for name in unknown
    ]
