"""The random numbers by which actions are sampled, drawn ahead for all episodes that play."""

from __future__ import annotations

import numpy as np

from flame_rl.actor.policy.acting import ActingPolicy
from flame_rl.actor.random.seeds import generator_of, uniforms

# At most so many uniform numbers of each episode are drawn for all episodes together. Short
# episodes need no more, and no generator.
AHEAD = 32
# Where episodes are fewer than this, a generator for each takes less time.
MANY = 64


class Noise:
    """A table of random numbers, a column for each slot, a row for each lock step of a block.

    An episode's numbers come one after another from its own generator. How many of them are drawn
    at a time changes none.

    Attributes:
        rows: float64 [steps or more, W, noise_width].
    """

    def __init__(self, policy: ActingPolicy, words: np.ndarray, steps: int, width: int) -> None:
        """
        Args:
            policy: says how many numbers an action takes, and of what kind.
            words: the episodes' randomness, uint32 [E, 8], for `generator_of`.
            steps: of a block.
            width: W.
        """
        self._policy = policy
        self._words = words
        self._steps = steps
        head = policy.head
        self._ahead = np.zeros((0, len(words), head.noise_width))
        ahead = AHEAD // head.noise_width
        if head.noise == "uniform" and len(words) >= MANY and ahead:
            drawn = uniforms(words, ahead * head.noise_width)
            self._ahead = drawn.reshape(ahead, head.noise_width, len(words)).swapaxes(1, 2)
        # What is drawn ahead in a block's last row reaches into the next block.
        self.rows = np.zeros((steps + len(self._ahead), width, head.noise_width))
        # Up to which row a slot's numbers are there; -1 for a slot that does not play.
        self._until = np.full(width, -1)
        self._generators: dict[int, np.random.Generator] = {}
        self._episode = np.zeros(width, np.int64)

    def begin(self, row: int, slots: np.ndarray, episodes: np.ndarray) -> None:
        """Episodes begin at `row`.

        Args:
            row: of the block.
            slots: int [n], where.
            episodes: int [n], which of `words`.
        """
        self.end(slots)
        self._episode[slots] = episodes
        count = len(self._ahead)
        self.rows[row : row + count, slots] = self._ahead[:, episodes]
        self._until[slots] = row + count

    def end(self, slots: np.ndarray) -> None:
        """Nothing plays in `slots` any more."""
        self._until[slots] = -1
        if self._generators:
            for slot in slots.tolist():
                self._generators.pop(slot, None)

    def need(self, row: int) -> np.ndarray:
        """The numbers of a row, float64 [W, noise_width]; rows are asked for one after another."""
        due = self._until == row
        if due.any():
            for slot in np.flatnonzero(due).tolist():
                self._draw(slot, row)
        return self.rows[row]

    def next_block(self) -> None:
        """The rows begin anew."""
        left = len(self.rows) - self._steps
        self.rows[:left] = self.rows[self._steps :]
        self._until[self._until >= 0] -= self._steps

    def _draw(self, slot: int, row: int) -> None:
        generator = self._generators.get(slot)
        if generator is None:
            generator = generator_of(self._words[self._episode[slot]])
            # Each uniform number is one advance; of normal ones none was drawn ahead.
            generator.bit_generator.advance(len(self._ahead) * self._ahead.shape[2])
            self._generators[slot] = generator
        count = len(self.rows) - row
        self.rows[row:, slot] = self._policy.draw_noise(generator, count)
        self._until[slot] = len(self.rows)
