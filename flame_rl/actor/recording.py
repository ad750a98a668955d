"""What is played is recorded lock step by lock step, and cut out episode by episode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Block:
    """Some lock steps, one after another: what each slot saw, did and got. S steps of W slots.

    Attributes:
        first: the number of the first lock step.
        slots: int [W], which slots these are, ascending.
        observations: float32 [S, W, D].
        actions: float32 [S, W, A], or int32 [S, W] if discrete.
        rewards: float64 [S, W].
    """

    first: int
    slots: np.ndarray
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray

    def of(self, slots: np.ndarray) -> Block:
        """What is worth keeping where only `slots`, ascending, played: all, or a copy of theirs."""
        if 2 * len(slots) > len(self.slots):
            return self
        columns = np.searchsorted(self.slots, slots)
        parts = (part[:, columns] for part in (self.observations, self.actions, self.rewards))
        return Block(self.first, slots, *parts)


def cut_out(
    blocks: list[Block], slot: np.ndarray, first: np.ndarray, length: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The steps of E episodes, one episode after another.

    Args:
        blocks: all lock steps, ascending; emptied, so that their memory is free soon.
        slot: int [E], where each episode played.
        first: int [E], the lock step at which it began.
        length: int [E], its steps.
        last: float32 [E, D], the observation after its last step.

    Returns:
        observations, actions and rewards as in `flame_rl.wire.messages.Episodes`.
    """
    count = len(length)
    start = np.cumsum(length) - length
    sample, steps = blocks[0], int(length.sum())
    observations = np.empty((steps + count, *sample.observations.shape[2:]), np.float32)
    actions = np.empty((steps, *sample.actions.shape[2:]), sample.actions.dtype)
    rewards = np.empty(steps, np.float64)
    # Every episode has one observation more than it has steps.
    _rows(observations)[start + length + np.arange(count)] = _rows(last)
    for block in _taken(blocks):
        height, width = block.rewards.shape
        begin = np.maximum(first, block.first)
        here_steps = np.minimum(first + length, block.first + height) - begin
        here = np.flatnonzero(here_steps > 0)
        begin, here_steps = begin[here], here_steps[here]
        ramp = np.arange(here_steps.sum())
        ramp -= np.repeat(np.cumsum(here_steps) - here_steps, here_steps)
        column = np.searchsorted(block.slots, slot[here])
        source = np.repeat((begin - block.first) * width + column, here_steps) + ramp * width
        target = np.repeat(start[here] + begin - first[here], here_steps) + ramp
        actions_of = block.actions.reshape(height * width, *block.actions.shape[2:])
        observations_of = block.observations.reshape(height * width, -1)
        rewards[target] = block.rewards.reshape(-1)[source]
        _rows(actions)[target] = _rows(actions_of)[source]
        target += np.repeat(here, here_steps)
        _rows(observations)[target] = _rows(observations_of)[source]
    return observations, actions, rewards


def _taken(blocks: list[Block]) -> Iterator[Block]:
    while blocks:
        yield blocks.pop(0)


def _rows(array: np.ndarray) -> np.ndarray:
    """A matrix [n, m] as n opaque values, which NumPy takes and puts several times as fast."""
    if array.ndim == 1:
        return array
    return array.view(np.dtype((np.void, array.itemsize * array.shape[1])))[:, 0]
