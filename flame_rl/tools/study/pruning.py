"""The score of a trial, as far as it has come, and whether it is worth going on with.

A trial is compared at rungs, which are eighths of its env steps, and only with trials that were
finished before it began: whether it is pruned is a function of their values and of its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

Pruner = Literal["median", "halving", "none"]

# A power of two, so that each of the rungs of successive halving is one.
RUNGS = 8
# Rungs, from 1, at which the median counts: earlier, most policies have learned nothing.
_MEDIAN_RUNGS = range(2, RUNGS)
# Finished trials without which nothing is pruned by the median.
_MEDIAN_TRIALS = 5
_HALVING_RUNGS = (1, 2, 4)


def score_at(
    env_steps: Sequence[float], returns: Sequence[float], rung: int, total: int
) -> float | None:
    """The mean of the returns within a tenth of all env steps before a rung.

    Args:
        env_steps: rising, in total by the end of each iteration.
        returns: a mean return for each of `env_steps`.
        rung: from 1 to `RUNGS`, of which the last is the end.
        total: env steps of a trial.

    Returns:
        The mean over the first iteration that ends at the rung or beyond it, and those before it
        that are less than a tenth of `total` before the rung; None if no iteration has come so far.
    """
    place = total * rung / RUNGS
    reached = [steps for steps in env_steps if steps >= place][:1]
    if not reached:
        return None
    return mean_return(env_steps, returns, place - total / 10, reached[0])


def mean_return(
    env_steps: Sequence[float], returns: Sequence[float], after: float, until: float
) -> float:
    """The mean of the returns whose env steps are above `after`, but at most `until`."""
    pairs = zip(env_steps, returns, strict=True)
    return statistics.fmean(value for steps, value in pairs if after < steps <= until)


def goes_on(pruner: Pruner, values: Sequence[float], others: Sequence[Sequence[float]]) -> bool:
    """Whether a trial with these values at the rungs so far is trained for longer.

    median: its best value reaches the median of the others' at this rung, those that were pruned
    left out (Golovin et al. 2017, "Google Vizier", section 3.2.2).
    halving: it is in the better half of all that came to this rung, itself included, or the best of
    them (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning", with eta = 2).

    Args:
        pruner: which of them; none: every trial goes on.
        values: at least one.
        others: the values of the trials that were finished before this one began.
    """
    rung, value = len(values), values[-1]
    if pruner == "median" and rung in _MEDIAN_RUNGS:
        finished = [other[rung - 1] for other in others if len(other) == RUNGS]
        return len(finished) < _MEDIAN_TRIALS or max(values) >= statistics.median(finished)
    if pruner == "halving" and rung in _HALVING_RUNGS:
        rivals = sorted(
            [value, *(other[rung - 1] for other in others if len(other) >= rung)], reverse=True
        )
        return value >= rivals[max(1, len(rivals) // 2) - 1]
    return True
