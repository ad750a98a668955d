"""A batch of steps as minibatches."""

from __future__ import annotations

import numpy as np

from flame_rl.learner.gradients.network import Samples, split

# Steps. The gradient of a smaller minibatch is mostly noise, and takes as long.
LEAST_MINIBATCH = 64


def number_of_minibatches(wanted: int, steps: int) -> int:
    """Fewer than wanted where they would have under `LEAST_MINIBATCH` steps."""
    return min(wanted, max(1, steps // LEAST_MINIBATCH))


def random_order(steps: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """The order of the steps of an epoch with `count` minibatches, int64 [N]: random; a single
    minibatch is in order."""
    return generator.permutation(steps) if count > 1 else np.arange(steps)


def minibatches_of(
    inputs: np.ndarray, rows: np.ndarray, columns: Samples, order: np.ndarray, count: int
) -> list[Samples]:
    """All steps of a batch as minibatches for one epoch.

    Args:
        inputs: what the network takes of the batch's observations, [N + E, ...].
        rows: the rows of the steps' observations among them, int64 [N].
        columns: what the loss needs, [N, ...] by name.
        order: of the steps; see `random_order`.
        count: number of minibatches.
    """
    # Several times as quick as indexing.
    shuffled = {name: column.take(order, axis=0) for name, column in columns.items()}
    return split(shuffled | {"inputs": inputs.take(rows.take(order), axis=0)}, count)
