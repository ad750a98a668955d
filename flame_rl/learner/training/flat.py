"""A torch module as arrays: its parameters as a flat one, its state by name."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.learner.state import Stateful
from flame_rl.learner.training.adam import Adam
from flame_rl.system.errors import UsageError


def adam_of(module: nn.Module) -> Adam:
    """An Adam whose `parameters` and `gradient` the module's parameters and their `.grad` become
    views of."""
    adam = Adam(flat_parameters(module))
    views = views_of(module, adam.gradient)
    for parameter, view in zip(module.parameters(), views, strict=True):
        parameter.grad = view
    return adam


def flat_parameters(module: nn.Module) -> np.ndarray:
    """All parameters in order, each flat, as one array float32 [P]; the module's parameters become
    views of it. Raises UsageError for parameters of another type."""
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            raise UsageError(
                f"model.py: {name} of {type(module).__name__} is {parameter.dtype}, and networks "
                "are trained in float32; make it with dtype=torch.float32"
            )
    flat = np.concatenate([p.detach().reshape(-1).numpy() for p in module.parameters()])
    for parameter, view in zip(module.parameters(), views_of(module, flat), strict=True):
        parameter.data = view
    return flat


def views_of(module: nn.Module, flat: np.ndarray) -> list[Tensor]:
    """Views of a flat array, each in the shape of one of the module's parameters."""
    parameters = list(module.parameters())
    views = torch.from_numpy(flat).split([parameter.numel() for parameter in parameters])
    return [view.view_as(p) for view, p in zip(views, parameters, strict=True)]


class _ModuleState:
    """The tensors of a torch module as a `Stateful`."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def state_dict(self) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in self._module.state_dict().items()}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        tensors = {name: torch.from_numpy(array) for name, array in state.items()}
        self._module.load_state_dict(tensors)


def state_of(part: Stateful | nn.Module) -> Stateful:
    """The part itself, or the tensors of a module as one; its arrays are views of them."""
    return _ModuleState(part) if isinstance(part, nn.Module) else part


def modules_in(parts: dict[str, Stateful | nn.Module]) -> dict[str, nn.Module]:
    """The modules among the parts."""
    return {name: part for name, part in parts.items() if isinstance(part, nn.Module)}


def refuse_common_parameters(modules: dict[str, nn.Module]) -> None:
    """Raise UsageError where a parameter belongs to two networks: only one would train it."""
    owners: dict[nn.Parameter, str] = {}
    for name, module in modules.items():
        for of, parameter in module.named_parameters():
            owner = owners.setdefault(parameter, name)
            if owner != name:
                raise UsageError(
                    f"model.py: the networks {owner!r} and {name!r} have the parameter {of} in "
                    "common, and each is trained by itself; add --shared-torso, or give each its "
                    "own layers"
                )
