"""Simulators: several episodes side by side, stepped together, written into shared arrays.

Simulators are not trusted: what they return is checked where it arrives, and whatever is wrong
raises `SimulatorError`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Simulator(Protocol):
    """Episodes side by side, each in a slot of its own. The arrays stay the same objects.

    Attributes:
        slots: W, a multiple of `ROW_BLOCK`.
        observations: float32 [W, D], what each slot shows now.
        rewards: float64 [W], of the slot's last step.
        terminated, truncated: bool [W], after the slot's last step.
    """

    slots: int
    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    def expect(self, seeds: np.ndarray) -> None:
        """Told the seeds of all resets that will follow, int [n], to prepare them together."""
        ...

    def reset(self, slots: np.ndarray, seeds: np.ndarray) -> None:
        """Begin an episode in each of `slots`, determined by its seed.

        Args:
            slots: int [n], ascending.
            seeds: int [n].

        Raises:
            SimulatorError: so does `step`.
        """
        ...

    def step(self, actions: np.ndarray, slots: np.ndarray) -> None:
        """One step in each of `slots`; the rest stays as it is.

        Args:
            actions: float32 [at least the highest slot + 1, A], clipped to the bounds here, or
                int32 [as many] or [as many, F], counted from 0; only the rows of `slots` count.
            slots: int [n], ascending: those with a running episode.
        """
        ...

    def close(self) -> None: ...


def rows_of(slots: np.ndarray) -> slice | np.ndarray:
    """An index of the same rows; where they are neighbours a slice, which copies nothing.

    Args:
        slots: int [n], ascending.
    """
    if len(slots) == 0:
        return slice(0, 0)
    first, last = int(slots[0]), int(slots[-1])
    return slice(first, last + 1) if last - first + 1 == len(slots) else slots
