"""Steps are recorded in blocks, all slots together, and cut out episode by episode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flame_rl.wire.messages import Column


@dataclass(frozen=True)
class Block:
    """The recorded columns of S consecutive lock steps of W slots.

    Attributes:
        first: the number of the first lock step.
        slots: int [W], the numbers of the slots, ascending.
        columns: the recorded arrays by column name, [S, W, ...].
    """

    first: int
    slots: np.ndarray
    columns: dict[str, np.ndarray]

    def of(self, slots: np.ndarray) -> Block:
        """This block if `slots`, ascending, are more than half of its own, else a copy of them."""
        if 2 * len(slots) > len(self.slots):
            return self
        places = np.searchsorted(self.slots, slots)
        kept = {name: array[:, places] for name, array in self.columns.items()}
        return Block(self.first, slots, kept)


def new_block(columns: Sequence[Column], first: int, steps: int, width: int) -> Block:
    """An empty block for `steps` lock steps of `width` slots."""
    shape = steps, width
    arrays = {c.name: np.zeros((*shape, *c.shape), c.dtype) for c in columns}
    return Block(first, np.arange(width), arrays)


def cut_out(
    blocks: list[Block],
    columns: Sequence[Column],
    slot: np.ndarray,
    first: np.ndarray,
    length: np.ndarray,
    last: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """The columns of E episodes, as in `flame_rl.wire.messages.Episodes`.

    Args:
        blocks: all lock steps in order; the list is emptied, which frees memory early.
        columns: which to cut out.
        slot, first, length: int [E], the slot in which each episode played, the lock step at which
            it began, and its number of steps.
        last: for each column with a row per observation, the row after the last step, [E, ...].
    """
    count, steps = len(length), int(length.sum())
    start = np.cumsum(length) - length
    whole = {}
    for column in columns:
        rows = steps + count if column.per_observation else steps
        whole[column.name] = np.empty((rows, *column.shape), column.dtype)
        if column.per_observation:
            # Every episode has one observation more than it has steps.
            end = start + length + np.arange(count)
            _rows(whole[column.name], 1)[end] = _rows(last[column.name], 1)
    while blocks:
        block = blocks.pop(0)
        height, width = next(iter(block.columns.values())).shape[:2]
        begin = np.maximum(first, block.first)
        count = np.minimum(first + length, block.first + height) - begin
        # The episodes that have steps in this block, and how many.
        here = np.flatnonzero(count > 0)
        begin, count = begin[here], count[here]
        ramp = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        place = np.searchsorted(block.slots, slot[here])
        # Where each step is in the block, and where it goes.
        source = np.repeat((begin - block.first) * width + place, count) + ramp * width
        target = np.repeat(start[here] + begin - first[here], count) + ramp
        with_last = target + np.repeat(here, count)
        for column in columns:
            rows = with_last if column.per_observation else target
            _rows(whole[column.name], 1)[rows] = _rows(block.columns[column.name], 2)[source]
    return whole


def _rows(array: np.ndarray, axes: int) -> np.ndarray:
    """A view with the first `axes` dimensions as one, and each row as one opaque value, which NumPy
    gathers and scatters several times as fast."""
    count = math.prod(array.shape[:axes])
    if array.ndim == axes:
        return array.reshape(count)
    flat = array.reshape(count, -1)
    return flat.view(np.dtype((np.void, flat.itemsize * flat.shape[1])))[:, 0]
