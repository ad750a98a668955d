"""Whether a network, layer by layer, is one that compiled code knows. Torch computes every other
one: of other layers, changed by a subclass, a hook, a method of its own, a frozen or a shared
parameter, or on another device.
"""

from functools import partial

from torch import nn

from flame_rl.learner.compiled.library import library
from flame_rl.learner.compiled.network import ACTIVATIONS, COMPILED_TYPES, CompiledNetwork
from flame_rl.learner.training.autograd import Apply, AutogradNetwork
from flame_rl.learner.training.device import NETWORK_DEVICE
from flame_rl.learner.training.network import Network
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.modules import networks
from flame_rl.modules.layers import MEMORIES, Activation, Convolution, Dense, LayerNorm, Select
from flame_rl.modules.observations import FrameStack, ObservationNormalizer

# Layers that compiled code may know, and those of which a network is always computed by torch.
_KNOWN = Dense, LayerNorm, Activation, Select
_BY_TORCH = Convolution, FrameStack, *MEMORIES.values()


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
    if library() is None or type(module) not in COMPILED_TYPES or not _is_plain(module):
        return None
    width, expected, place = None, [], 0
    if type(module) is networks.ValueNetwork:
        width = 1
    elif type(module) is networks.CategoricalPolicy:
        width = sum(module.choices)
    elif type(module) is networks.GaussianPolicy:
        width, expected = module.log_std.numel(), [module.log_std]
        place = width
    layers: list[dict[str, float]] = []
    select = None
    for layer in module.network:
        kind, last = type(layer), layers[-1] if layers else {}
        if kind is Dense and last.get("outputs", layer.in_features) == layer.in_features:
            inputs, outputs = layer.in_features, layer.out_features
            own = {"weight": place, "bias": place + inputs * outputs, "norm_weight": -1}
            layers.append({"inputs": inputs, "outputs": outputs, **own})
            place += (inputs + 1) * outputs
        elif kind is LayerNorm and last and not {"epsilon", "activation"} & last.keys():
            bias = place + last["outputs"]
            last |= {"norm_weight": place, "norm_bias": bias, "epsilon": layer.eps}
            place = bias + last["outputs"]
        elif kind is Activation and last and "activation" not in last and layer.kind in ACTIVATIONS:
            last["activation"] = ACTIVATIONS[layer.kind]
        elif kind is Select and not layers and select is None:
            select = layer.places.numpy()
        else:
            return None
        expected += layer.parameters()
    parameters = list(module.parameters())
    # No layer, or a parameter more, or one of two layers.
    if not layers or list(map(id, parameters)) != list(map(id, expected)):
        return None
    # Compiled code would read beyond a layer that does not fit the head, or parameters elsewhere.
    end = parameters[-1].data_ptr() + 4 * parameters[-1].numel()
    if width not in (None, layers[-1]["outputs"]) or parameters[0].data_ptr() + 4 * place != end:
        return None
    return CompiledNetwork(module, layers, parameters[0].detach().numpy(), select)


def _is_plain(module: nn.Module) -> bool:
    """Whether nothing but a normaliser is around the layers, no submodule has hooks or a method of
    its own, and all parameters are trained."""
    own = [item for each in module.modules() for item in vars(each).items()]
    changed = any(callable(value) or (value and name.endswith("_hooks")) for name, value in own)
    trained = all(each.requires_grad and not each._backward_hooks for each in module.parameters())
    around = type(module.normalizer)
    if type(module) is networks.CriticNetwork:  # whose inputs are more than observations
        plain = around is nn.Identity and not len(module.features)
    else:
        known = around in (nn.Identity, ObservationNormalizer)
        plain = known and type(module.frames) is nn.Identity
    return plain and trained and not changed and type(module.network) is nn.Sequential


def notices_of(modules: dict[str, nn.Module]) -> list[str]:
    """Why networks on the CPU train slowly, where somebody can do something about it: the package
    has no compiled library, or a network of dense layers has one that this does not know."""
    slower = "about 16 times slower with minibatches of 64 steps"
    if library() is None:
        return [
            "The package was installed without its compiled library: torch trains the networks, "
            f"{slower}; reinstall it by `uv sync --reinstall-package flame-rl`"
        ]
    kinds = {
        type(layer).__name__: None
        for module in modules.values()
        if isinstance(module, networks.ObservationNetwork | networks.CriticNetwork)
        and any(isinstance(layer, nn.Linear) for layer in module.network)
        and not any(isinstance(each, _BY_TORCH) for each in module.modules())
        for layer in module.network
        if type(layer) not in _KNOWN
    }
    return [
        f"{name} is a layer that compiled code does not know: torch trains its networks, {slower}; "
        "see docs/add-a-layer.md"
        for name in kinds
    ]
