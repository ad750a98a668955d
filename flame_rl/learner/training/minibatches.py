"""A batch of steps as minibatches: of single steps, or of whole episodes."""

from __future__ import annotations

import numpy as np

from flame_rl.learner.training.frames import time_steps

# Steps. The gradient of a smaller minibatch is mostly noise, and takes as long.
LEAST_MINIBATCH = 64


def number_of_minibatches(wanted: int, steps: int) -> int:
    """`wanted`, or fewer, so that each has `LEAST_MINIBATCH` steps."""
    return min(wanted, max(1, steps // LEAST_MINIBATCH))


def random_order(
    steps: int, count: int, generator: np.random.Generator, time: np.ndarray | None = None
) -> np.ndarray:
    """The order of an epoch's steps: random, or their own order if there is one minibatch.

    Args:
        steps: N.
        count: the number of minibatches.
        generator: draws the order.
        time: int64 [N], the time step of each step in its episode: whole episodes are shuffled;
            None: single steps are.

    Returns:
        int64 [N].
    """
    if count == 1:
        return np.arange(steps)
    if time is None:
        return generator.permutation(steps)
    starts = np.flatnonzero(time == 0)
    lengths = np.diff(starts, append=steps)
    order = generator.permutation(len(starts))
    # Each step's place is its episode's new start and its time in it.
    return np.repeat(starts[order], lengths[order]) + time_steps(lengths[order])
