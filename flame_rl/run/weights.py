"""The networks' weights as a file for any tool that reads safetensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import safetensors.numpy

from flame_rl.system.errors import RunError
from flame_rl.system.files import why_refused, write_atomically

WEIGHTS_NAME = "weights.safetensors"


def save_weights(folder: Path, weights: dict[str, np.ndarray]) -> None:
    """Write the weights to weights.safetensors. Raises RunError if the disk refuses."""
    path = folder / WEIGHTS_NAME
    # The format takes no array whose numbers are in another order than their bytes.
    ordered = {name: np.asarray(array, order="C") for name, array in weights.items()}
    try:
        write_atomically(path, safetensors.numpy.save(ordered))
    except OSError as error:
        raise RunError(f"{path} could not be written: {why_refused(error)}") from error
