"""The networks' weights as a file for any tool that reads safetensors."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
from torch import Tensor

from flame_rl.system.errors import RunError
from flame_rl.system.files import why_refused, write_atomically

WEIGHTS_NAME = "weights.safetensors"


def save_weights(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write the weights to weights.safetensors.

    Raises:
        RunError: the disk refuses.
    """
    path = folder / WEIGHTS_NAME
    # Copies, because layers may share a weight, which the format refuses.
    data = safetensors.torch.save(
        {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    )
    try:
        write_atomically(path, data)
    except OSError as error:
        raise RunError(f"{path} could not be written: {why_refused(error)}") from error
