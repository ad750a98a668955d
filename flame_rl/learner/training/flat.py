"""A torch module's parameters as one flat array."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

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
