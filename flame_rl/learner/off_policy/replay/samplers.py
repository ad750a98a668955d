"""Samplers: which steps of a replay store are learned from next, as positions.

All random numbers come from a generator that is passed in.
"""

import numpy as np

from flame_rl.learner.off_policy.replay.store import ReplayStore


def uniform(store: ReplayStore, count: int, generator: np.random.Generator) -> np.ndarray:
    """Positions of any steps, each as likely as any other, with replacement, int64 [count]."""
    return generator.integers(store.first, store.steps, count)


class PrioritizedSampler:
    """Steps in proportion to their priorities: P(i) = p_i^alpha / sum over k of p_k^alpha (Schaul
    et al. 2016, "Prioritized Experience Replay", eq. 1, with one draw from each of `count` equal
    parts of the sum).

    New steps have the greatest priority so far, at the beginning 1. Overwritten steps are never
    drawn, and later priorities of theirs are ignored.
    """

    def __init__(self, store: ReplayStore, alpha: float) -> None:
        self._store, self._alpha = store, alpha
        self._greatest = 1.0
        self._tree = SumTree(store.capacity)
        # The steps that the tree holds.
        self._first = self._last = store.first

    def sample(
        self, count: int, beta: float, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw B = `count` steps, with replacement. Returns positions, int64 [B], and importance
        weights, float32 [B]: (size * P(i))^-beta, divided by the greatest of the batch (section
        3.4). Beta 0 corrects nothing, 1 all."""
        self._follow_store()
        share = self._tree.total / count
        leaves = self._tree.find((np.arange(count) + generator.random(count)) * share)
        priorities = self._tree.leaves[leaves]
        # Size and total cancel out.
        weights = (priorities / priorities.min()) ** -beta
        positions = self._first + (leaves - self._first) % self._store.capacity
        return positions, weights.astype(np.float32)

    def update(self, positions: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of steps, int64 and float [B], finite and greater than 0, such as |TD
        error| plus a little; of a position named twice, the last counts."""
        priorities = np.asarray(priorities, np.float64)
        self._follow_store()
        self._greatest = max(self._greatest, float(priorities.max(initial=0)))
        kept = positions >= self._first
        powers = priorities[kept] ** self._alpha
        self._tree.set(positions[kept] % self._store.capacity, powers)

    def state(self) -> dict[str, np.ndarray]:
        """ "priorities", float64 [size]: p^alpha of the steps, the oldest first; and "greatest"."""
        self._follow_store()
        slots = np.arange(self._first, self._last) % self._store.capacity
        return {"priorities": self._tree.leaves[slots], "greatest": np.array(self._greatest)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """The inverse of `state`, after the store was restored. Raises ValueError if the state is
        of another number of steps, or is no state."""
        for name, shape in (("priorities", (self._store.size,)), ("greatest", ())):
            if state[name].shape != shape:
                raise ValueError(f"{name}: {state[name].shape}, where the store has {shape}")
        self._tree = SumTree(self._store.capacity)
        self._first, self._last = self._store.first, self._store.steps
        self._greatest = float(state["greatest"])
        self._set(self._first, self._last, state["priorities"])

    def _follow_store(self) -> None:
        """Drop steps that were overwritten, and take in those that came."""
        first, last = self._store.first, self._store.steps
        self._set(self._first, min(first, self._last), 0.0)
        new = max(first, self._last)
        self._set(new, last, np.float64(self._greatest) ** self._alpha)
        self._first, self._last = first, last

    def _set(self, first: int, last: int, values: np.ndarray | float) -> None:
        """Set the leaves of consecutive positions."""
        if last > first:
            self._tree.set(np.arange(first, last) % self._store.capacity, values)


class SumTree:
    """A binary tree whose nodes hold the sums of their two children; its leaves are drawn in
    proportion to their size.

    A sum is always made anew from the two children, never adjusted, so that the tree is a function
    of its leaves alone, to the bit. `leaves`: float64 [capacity], at least 0; read only.
    """

    def __init__(self, capacity: int) -> None:
        self._depth = (capacity - 1).bit_length()
        # Node i has the children 2i and 2i+1; the root is 1.
        self._nodes = np.zeros(2 << self._depth)
        self._children = self._nodes.reshape(-1, 2)
        self.leaves = self._nodes[1 << self._depth :][:capacity]
        self.leaves.flags.writeable = False

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self._nodes[1])

    def set(self, leaves: np.ndarray, values: np.ndarray | float) -> None:
        """Set leaves, int64 [B], to values, float64 [B] or one for all; of a leaf named twice, the
        last counts."""
        nodes = leaves + (1 << self._depth)
        self._nodes[nodes] = values
        for _ in range(self._depth):
            # Two nodes with the same parent both set it to the same sum.
            nodes = nodes >> 1
            children = self._children.take(nodes, axis=0)
            self._nodes[nodes] = children[:, 0] + children[:, 1]

    def find(self, sums: np.ndarray) -> np.ndarray:
        """For each number from 0 to the total, the leaf at which the running sum of the leaves
        passes it, int64 [B]; never a leaf that is 0."""
        rest = sums.copy()
        nodes = np.ones(len(sums), np.int64)
        for _ in range(self._depth):
            left, right = self._children.take(nodes, axis=0).T
            # By rounding, the rest may be a little more than all that is below a node.
            to_right = (rest >= left) & (right > 0)
            rest -= left * to_right
            nodes = 2 * nodes + to_right
        return nodes - (1 << self._depth)


def tree_bytes(capacity: int) -> int:
    """Bytes of a `SumTree`: between 16 and 32 for each leaf."""
    return 8 * (2 << (capacity - 1).bit_length())
