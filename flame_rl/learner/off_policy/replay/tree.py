"""A sum tree: numbers of a ring, and drawing from them in proportion to their size."""

from __future__ import annotations

import numpy as np


class SumTree:
    """A binary tree whose nodes hold the sums of their two children; the leaves are the numbers.

    A sum is always made anew from the two children, never adjusted, so that the tree is a function
    of its leaves alone, to the bit.

    Attributes:
        leaves: float64 [capacity], at least 0; read only.
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

    def set(self, leaves: np.ndarray, values: np.ndarray) -> None:
        """Set leaves, int64 [B], to values, float64 [B]; of a leaf named twice, the last counts."""
        nodes = leaves + (1 << self._depth)
        self._nodes[nodes] = values
        for _ in range(self._depth):
            # Two nodes with the same parent both set it to the same sum.
            nodes = nodes >> 1
            children = self._children.take(nodes, axis=0)
            self._nodes[nodes] = children[:, 0] + children[:, 1]

    def set_range(self, start: int, stop: int, values: np.ndarray | float) -> None:
        """Set the leaves from `start` to before `stop`, at least one."""
        first, last = start + (1 << self._depth), stop - 1 + (1 << self._depth)
        self._nodes[first : last + 1] = values
        for _ in range(self._depth):
            first, last = first >> 1, last >> 1
            children = self._children[first : last + 1]
            self._nodes[first : last + 1] = children[:, 0] + children[:, 1]

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
