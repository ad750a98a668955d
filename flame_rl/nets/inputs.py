"""Inputs of an observation that layers act on one by one, such as pictures beside numbers."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flame_rl.nets.layers import LayerKind, Shapes
from flame_rl.wire.packing import WireError


class InputsLayer(LayerKind):
    """Divides an observation into inputs, by their widths. Each of the layers after it may act on
    one of them (`Layer.input`); the first that does not acts on all, side by side."""

    kind = "inputs"
    integers: ClassVar[Shapes] = {"widths": ("count",)}
    dtype = "float32"

    def sizes(self) -> dict[str, int]:
        if self.widths.min() < 1:
            raise WireError(f"widths: {self.widths.tolist()[:20]}, not all at least 1")
        return {"in": int(self.widths.sum(dtype=np.int64))}

    def act(self, x: np.ndarray) -> np.ndarray:
        return x

    def divide(self, x: np.ndarray) -> list[np.ndarray]:
        """Each input of the observations, in C order."""
        ends = np.cumsum(self.widths)[:-1]
        return [np.ascontiguousarray(part) for part in np.split(x, ends, axis=-1)]
