"""Samplers: which steps of a replay store are learned from next, as positions.

All random numbers come from a generator that is passed in. `state` and `restore` carry what a
sampler remembers over to a resumed run.
"""

from __future__ import annotations

import numpy as np

from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.learner.off_policy.replay.tree import SumTree

# The greatest p^alpha: a sum of a billion of them is finite.
_GREATEST_POWER = 1e290


def uniform(store: ReplayStore, count: int, generator: np.random.Generator) -> np.ndarray:
    """Positions of any steps, each as likely as any other, with replacement, int64 [count].

    Raises ValueError if the store is empty.
    """
    _refuse_if_empty(store)
    return generator.integers(store.first, store.steps, count)


class PrioritizedSampler:
    """Steps in proportion to their priorities: P(i) = p_i^alpha / sum over k of p_k^alpha (Schaul
    et al. 2016, "Prioritized Experience Replay", eq. 1, with one draw from each of `count` equal
    parts of the sum).

    New steps have the greatest priority so far, at the beginning 1. Overwritten steps are never
    drawn, and later priorities of theirs are ignored.
    """

    def __init__(self, store: ReplayStore, alpha: float) -> None:
        if not 0 <= alpha < np.inf:
            raise ValueError(f"alpha: {alpha}; it must be at least 0, which is uniform")
        self._store = store
        self._alpha = alpha
        self._greatest = 1.0
        self._tree = SumTree(store.capacity)
        # The steps that the tree holds.
        self._first = self._last = store.first

    def sample(
        self, count: int, beta: float, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw steps, with replacement.

        Args:
            count: B.
            beta: how far the weights correct the preference, from 0 (not at all) to 1 (wholly).
            generator: draws.

        Returns:
            Positions, int64 [B], and importance weights, float32 [B]: (size * P(i))^-beta, divided
            by the greatest of the batch (section 3.4).

        Raises:
            ValueError: the store is empty.
        """
        _refuse_if_empty(self._store)
        self._follow_store()
        share = self._tree.total / count
        leaves = self._tree.find((np.arange(count) + generator.random(count)) * share)
        priorities = self._tree.leaves[leaves]
        # Size and total cancel out.
        weights = (priorities / priorities.min()) ** -beta
        positions = self._first + (leaves - self._first) % self._store.capacity
        return positions, weights.astype(np.float32)

    def update(self, positions: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of steps, such as |TD error| plus a little; of a position named twice,
        the last counts.

        Args:
            positions: int64 [B].
            priorities: [B], greater than 0.

        Raises:
            ValueError: a priority is not a number greater than 0, or its power is too great or too
                small for a float64; or a position is of a step that did not come yet.
        """
        priorities = np.asarray(priorities, np.float64)
        with np.errstate(over="ignore", under="ignore"):
            powers = np.maximum(priorities, 0) ** self._alpha
        sound = (priorities > 0) & (priorities < np.inf) & (powers > 0) & (powers < _GREATEST_POWER)
        if not sound.all():
            raise ValueError(
                "priorities: one is not a finite number greater than 0; add a little to the TD "
                "errors, and see whether the loss is finite"
            )
        self._follow_store()
        if (positions >= self._last).any():
            raise ValueError(f"positions: {positions.max()}, of a step that did not come yet")
        self._greatest = max(self._greatest, float(priorities.max(initial=0)))
        kept = positions >= self._first
        self._tree.set(positions[kept] % self._store.capacity, powers[kept])

    def state(self) -> dict[str, np.ndarray]:
        """ "priorities", float64 [size]: p^alpha of the steps, the oldest first; and "greatest"."""
        self._follow_store()
        slots = np.arange(self._first, self._last) % self._store.capacity
        return {"priorities": self._tree.leaves[slots], "greatest": np.array(self._greatest)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """The inverse of `state`, after the store was restored.

        Raises:
            ValueError: the state is of another number of steps, or is no state.
        """
        for name, shape in (("priorities", (self._store.size,)), ("greatest", ())):
            if state[name].shape != shape:
                raise ValueError(f"{name}: {state[name].shape}, where the store has {shape}")
        self._tree.set_range(0, self._store.capacity, 0.0)
        self._first, self._last = self._store.first, self._store.steps
        self._greatest = float(state["greatest"])
        self._set(self._first, self._last, state["priorities"])

    def _follow_store(self) -> None:
        """Drop steps that were overwritten, and take in those that came."""
        first, last = self._store.first, self._store.steps
        if (first, last) == (self._first, self._last):
            return
        self._set(self._first, min(first, self._last), 0.0)
        new = max(first, self._last)
        self._set(new, last, np.float64(self._greatest) ** self._alpha)
        self._first, self._last = first, last

    def _set(self, first: int, last: int, values: np.ndarray | float) -> None:
        """Set the leaves of consecutive positions, which may pass the end of the ring."""
        capacity = self._store.capacity
        values = np.broadcast_to(values, last - first)
        start = first % capacity
        split = min(last - first, capacity - start)
        if split:
            self._tree.set_range(start, start + split, values[:split])
        if last - first > split:
            self._tree.set_range(0, last - first - split, values[split:])


def _refuse_if_empty(store: ReplayStore) -> None:
    if store.size == 0:
        raise ValueError("replay: no steps yet; add episodes before drawing from them")
