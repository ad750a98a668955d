"""Predict the seconds of an iteration for any number of workers, from costs that were measured.

docs/scaling.md gives the formula, what it leaves out, and predictions beside measured runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """The costs of one iteration. All times are in seconds.

    Attributes:
        lengths: the number of env steps of each episode.
        step: a worker's time for an env step, with many episodes stepped side by side.
        step_alone: the same for an episode that is played alone.
        task: from sending a task without work to reading its answer, per worker.
        reading: the learner's time for reading all episodes.
        updating: the learner's update.
        rest: everything else the learner does in an iteration.
        crowding: the factor by which a worker is slower while others are busy.
        computing: the share of its time for which a simulator needs a core; else it waits.
        cores: the cores that all workers share; None if each worker has its own.
    """

    lengths: tuple[int, ...]
    step: float
    step_alone: float
    task: float = 0.0
    reading: float = 0.0
    updating: float = 0.0
    rest: float = 0.0
    crowding: float = 1.0
    computing: float = 1.0
    cores: int | None = None


def iteration_seconds(costs: Costs, workers: int) -> float:
    """The predicted seconds of one iteration with this number of workers."""
    return collecting_seconds(costs, workers) + costs.updating + costs.rest


def collecting_seconds(costs: Costs, workers: int) -> float:
    """The predicted seconds from publishing the weights to having read all episodes."""
    tasks = min(workers, len(costs.lengths))
    # A cluster's executors may be slower than this machine, where `step` was measured.
    slowdown = costs.crowding if workers > 1 or costs.cores is None else 1.0
    if costs.cores is not None:
        slowdown *= max(1.0, tasks * costs.computing / costs.cores)
    playing = max(
        costs.step * busiest_worker(costs.lengths, workers), costs.step_alone * max(costs.lengths)
    )
    return slowdown * playing + costs.task * tasks + costs.reading


def busiest_worker(lengths: tuple[int, ...], workers: int) -> int:
    """The env steps of the worker that ends last, if each episode goes to the first free one."""
    ends = [0] * workers
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def enough(seconds: Mapping[int, float]) -> int:
    """The fewest workers with which an iteration takes at most 5 % longer than with the best, from
    its seconds by number of workers."""
    limit = 1.05 * min(seconds.values())
    return min(workers for workers, taken in seconds.items() if taken <= limit)
