"""Steps are recorded in blocks, all slots together, and cut out episode by episode."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from flame_rl.wire.messages import Column

# Rows of at least this many bytes are copied episode by episode, which needs no temporary array;
# smaller ones are gathered all at once.
_WIDE_BYTES = 1024


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
    """The steps of E episodes, one episode after another.

    Args:
        blocks: all lock steps in order; the list is emptied, which frees memory early.
        columns: the columns to cut out.
        slot: int [E], the slot in which each episode played.
        first: int [E], the lock step at which it began.
        length: int [E], its number of steps.
        last: for each column with a row per observation, the row after the last step, [E, ...].

    Returns:
        The columns as in `flame_rl.wire.messages.Episodes`.
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
    for block in _popped(blocks):
        height, width = next(iter(block.columns.values())).shape[:2]
        begin = np.maximum(first, block.first)
        here_steps = np.minimum(first + length, block.first + height) - begin
        # The episodes that have steps in this block.
        here = np.flatnonzero(here_steps > 0)
        begin, here_steps = begin[here], here_steps[here]
        ramp = np.arange(here_steps.sum())
        ramp -= np.repeat(np.cumsum(here_steps) - here_steps, here_steps)
        place = np.searchsorted(block.slots, slot[here])
        # Where the first of an episode's steps is in the block, and where it goes.
        from_row, to_row = begin - block.first, start[here] + begin - first[here]
        source = np.repeat(from_row * width + place, here_steps) + ramp * width
        target = np.repeat(to_row, here_steps) + ramp
        for per_observation in (False, True):
            if per_observation:
                target += np.repeat(here, here_steps)
                to_row += here
            for column in columns:
                if column.per_observation != per_observation:
                    continue
                array, rows = whole[column.name], block.columns[column.name]
                if rows[0, 0].nbytes < _WIDE_BYTES:
                    _rows(array, 1)[target] = _rows(rows, 2)[source]
                    continue
                parts = zip(to_row, from_row, here_steps, place, strict=True)
                for to, begin_row, length_here, slot_place in parts:
                    part = rows[begin_row : begin_row + length_here, slot_place]
                    array[to : to + length_here] = part
    return whole


def _popped(blocks: list[Block]) -> Iterator[Block]:
    while blocks:
        yield blocks.pop(0)


def _rows(array: np.ndarray, axes: int) -> np.ndarray:
    """A view with the first `axes` dimensions as one, and each row as one opaque value, which NumPy
    gathers and scatters several times as fast."""
    count = math.prod(array.shape[:axes])
    if array.ndim == axes:
        return array.reshape(count)
    flat = array.reshape(count, -1)
    return flat.view(np.dtype((np.void, flat.itemsize * flat.shape[1])))[:, 0]
