"""The random numbers with which actions are sampled, drawn ahead for all running episodes."""

from __future__ import annotations

import numpy as np

from flame_rl.actor.random.generators import generator_of, uniforms
from flame_rl.nets.acting import ActingPolicy

# The most uniform numbers of each episode that are drawn for all episodes together. Short episodes
# need no more, and no generator of their own.
AHEAD = 32
# With fewer episodes than this, a generator for each is faster.
MANY = 64


class Noise:
    """A table of random numbers, a column for each slot, a row for each lock step of a block.

    An episode's numbers come one after another from its own generator and, where a step's noise
    depends on the step before, from the episode's own last row, however many are drawn at a time.

    Attributes:
        rows: float64 [steps or more, W, noise_width].
    """

    def __init__(self, policy: ActingPolicy, words: np.ndarray, steps: int, width: int) -> None:
        """
        Args:
            policy: says how many numbers an action takes, and of what kind.
            words: uint32 [E, 8], from which `generator_of` makes each episode's generator.
            steps: the number of lock steps in a block.
            width: W, the number of slots.
        """
        self._policy = policy
        self._words = words
        self._steps = steps
        head = policy.head
        self._ahead = np.zeros((0, len(words), head.noise_width))
        ahead = AHEAD // head.noise_width
        plain = head.noise == "uniform" and not head.noise_repeat
        if plain and len(words) >= MANY and ahead:
            drawn = uniforms(words, ahead * head.noise_width)
            self._ahead = drawn.reshape(ahead, head.noise_width, len(words)).swapaxes(1, 2)
        # The numbers of an episode that begins in a block's last row reach into the next block.
        self.rows = np.zeros((steps + len(self._ahead), width, head.noise_width))
        # The first row for which a slot's numbers are yet to be drawn; -1: the slot does not play.
        self._until = np.full(width, -1)
        self._generators: dict[int, np.random.Generator] = {}
        # The last row that was drawn for the episode of each slot.
        self._before = np.zeros((width, head.noise_width))
        self._episode = np.zeros(width, np.int64)

    def begin(self, row: int, slots: np.ndarray, episodes: np.ndarray) -> None:
        """Episodes begin at `row`.

        Args:
            row: the row of the block.
            slots: int [n], the slots in which they play.
            episodes: int [n], their rows in `words`.
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
        """The numbers of a row, float64 [W, noise_width]. Ask for every row in order."""
        due = self._until == row
        if due.any():
            for slot in np.flatnonzero(due).tolist():
                self._draw(slot, row)
        return self.rows[row]

    def next_block(self) -> None:
        """Make the row after the block's last one row 0."""
        left = len(self.rows) - self._steps
        self.rows[:left] = self.rows[self._steps :]
        self._until[self._until >= 0] -= self._steps

    def _draw(self, slot: int, row: int) -> None:
        """Draw the numbers of a slot from `row` on."""
        generator, before = self._generators.get(slot), self._before[slot]
        if generator is None:
            before = None
            generator = generator_of(self._words[self._episode[slot]])
            # A uniform number advances the generator once; no normal number is drawn ahead.
            generator.bit_generator.advance(len(self._ahead) * self._ahead.shape[2])
            self._generators[slot] = generator
        count = len(self.rows) - row
        drawn = self._policy.draw_noise(generator, count, before)
        self.rows[row:, slot] = drawn
        self._before[slot] = drawn[-1]
        self._until[slot] = len(self.rows)
