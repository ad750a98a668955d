"""What the layers of a policy remember of the episodes that are being played."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

# Which slots: a slice, or their numbers, some perhaps more than once.
Rows = slice | np.ndarray


class States:
    """The state of each layer with a memory, for each slot: that of the slot's episode.

    It is float32 between steps, whatever a layer computes with, so that a state that is recorded is
    the one that acted.

    Attributes:
        arrays: float32 [W, ...], one for each layer with a memory, in order.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], slots: int) -> None:
        """
        Args:
            shapes: those of the layers' states.
            slots: W.
        """
        self.arrays = [np.zeros((slots, *shape), np.float32) for shape in shapes]

    def begin(self, slots: np.ndarray) -> None:
        """Episodes begin in these slots, int [n]: nothing is remembered there."""
        for array in self.arrays:
            array[slots] = 0

    def apply(
        self,
        place: int,
        layer: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
        x: np.ndarray,
        rows: Rows,
    ) -> np.ndarray:
        """One step of a layer, whose state becomes the next one.

        Args:
            place: of its state in `arrays`.
            layer: see `flame_rl.nets.layers`; it must neither write into the state nor
                return it.
            x: its input, [blocks, ROW_BLOCK, inputs].
            rows: the slot of each of these rows. A slot that occurs twice must have the same input
                twice.

        Returns:
            Its output, [blocks, ROW_BLOCK, outputs].
        """
        array = self.arrays[place]
        before = array[rows].astype(x.dtype, copy=False)
        y, state = layer(x, before.reshape(*x.shape[:2], *array.shape[1:]))
        array[rows] = state.reshape(-1, *array.shape[1:])
        return y
