"""A module where it is computed: itself on the CPU, or a twin of it on another device.

What is trained stays on the CPU in any case: the parameters, and with them Adam, checkpoints and
snapshots. A twin gets all numbers of its module before it computes, and its results come back as
arrays, so that nothing but a network knows of the device.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn


class Placed:
    """A module on its device.

    Attributes:
        module: what computes; after `follow` it has the numbers of the module in training.
        device: where it is.
    """

    def __init__(self, module: nn.Module, device: torch.device | None) -> None:
        """`device` is that of a twin; None: the module itself computes, on the CPU."""
        self._trained = module
        self.module = module if device is None else copy.deepcopy(module).to(device)
        self.device = torch.device("cpu") if device is None else device

    @torch.no_grad()
    def follow(self) -> None:
        """Give the twin the parameters and buffers that the module has now."""
        if self.module is self._trained:
            return
        pairs = zip(_numbers(self.module), _numbers(self._trained), strict=True)
        for own, given in pairs:
            # By `data`, because a pass through the twin may not have been carried back yet, and
            # autograd refuses to do that with a tensor that it has seen change.
            own.data.copy_(given)


def fetched(tensor: Tensor) -> np.ndarray:
    """A tensor of any device as an array."""
    return tensor.detach().cpu().numpy()


def _numbers(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()
