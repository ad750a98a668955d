"""The device on which a run's networks are computed: the CPU, or a graphics card."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Literal

import torch

from flame_rl.modules.observations import picture_size
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec

# Weights of the hidden layers from which on they count as very large: two of 2,048 units.
_VERY_LARGE = 1 << 22
# The smallest of the sizes in torch's documentation with which cuBLAS and cuDNN give the same bits
# each time, for products and for recurrent layers.
_CUBLAS_WORKSPACE = ":16:8"


def choose_device(config: TrainConfig, spec: EnvironmentSpec) -> Literal["cpu", "cuda"]:
    """The device that `--device` stands for on this machine.

    Raises:
        UsageError: a card is asked for, and torch finds none.
    """
    wanted = config.execution.device
    if wanted == "auto":
        return "cuda" if prefers_card(config, spec) and torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        cause = "this machine has none, or its driver does not answer"
        if not torch.backends.cuda.is_built():
            cause = f"torch {torch.__version__} is a build without CUDA"
        raise UsageError(
            f"--device: cuda, and torch finds no graphics card: {cause}. Leave the flag out; a run "
            "that began on a card goes on without one by --device cpu, in Python by device='cpu', "
            "with other results from there on"
        )
    return wanted


def prefers_card(config: TrainConfig, spec: EnvironmentSpec) -> bool:
    """Whether `auto` takes a graphics card where there is one: for convolutions, for recurrent
    layers, and for very large dense ones. With small dense layers a minibatch is computed before a
    card has got it."""
    experiment = config.experiment
    if picture_size(spec) is not None:
        return True
    inputs = spec.observation_dim * experiment.frame_stack
    weights = sum(map(math.prod, pairwise((inputs, *experiment.hidden_sizes))))
    return experiment.memory != "none" or weights >= _VERY_LARGE


def device_of(name: str) -> torch.device | None:
    """The name that `choose_device` returns as an argument of `computing_on`; None for the CPU."""
    if name == "cpu":
        return None
    # It is read when the card is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _CUBLAS_WORKSPACE)
    return torch.device(name)


@contextmanager
def reproducible(name: str) -> Iterator[None]:
    """Within the block a graphics card gives the same bits each time, and computes in float32
    throughout; for the CPU nothing changes."""
    if name != "cuda":
        yield
        return
    mode, precision = torch.get_deterministic_debug_mode(), torch.get_float32_matmul_precision()
    torch.set_deterministic_debug_mode("error")
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        ):
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.set_float32_matmul_precision(precision)
