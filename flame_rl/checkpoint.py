"""Weights on disk: safetensors, written so that a file is either whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import safetensors.torch
from torch import Tensor

WEIGHTS_NAME = "weights.safetensors"


def save_weights(folder: Path, tensors: dict[str, Tensor]) -> Path:
    """Write `weights.safetensors` into the run folder. Raises OSError if the disk refuses.

    Args:
        folder: the run folder.
        tensors: the policy's weights by name.
    """
    path = folder / WEIGHTS_NAME
    write_atomically(path, safetensors.torch.save({k: t.contiguous() for k, t in tensors.items()}))
    return path


def load_weights(folder: Path) -> dict[str, Tensor]:
    """The inverse of `save_weights`."""
    return safetensors.torch.load_file(folder / WEIGHTS_NAME)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: after a crash it holds the old bytes or the new, never a part."""
    temporary = path.with_name(path.name + ".part")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    # The rename itself is durable only once the folder is.
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
