"""How many episodes a task has: enough to be worth sending, few enough that all end together."""

from __future__ import annotations

import math
from collections.abc import Callable

# What it costs to send a task is little beside this, and so is waiting for the last one.
TASK_SECONDS = 0.25
# On a cluster a task costs the learner half of this: to send it, watch it, and fetch and delete its
# answer. If tasks are so long for each worker that there is, it keeps all of them busy.
LEARNER_SECONDS = 0.01


class Shares:
    """Sizes of the tasks of one iteration after another, by what episodes have cost so far.

    Two thirds of what is left are shared out among the workers, again and again (after
    Polychronopoulos and Kuck 1987, "Guided Self-Scheduling"): large tasks at first, in which a
    worker has many episodes to step side by side, small ones at the end. Those take about
    `TASK_SECONDS`, or more where the learner could not keep up, and are of equal size, as long as
    there is one for every worker. No result depends on it.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._task_seconds = max(TASK_SECONDS, LEARNER_SECONDS * workers)
        self._episode_seconds = math.inf

    def of(self, episodes: int) -> Callable[[int], int]:
        """For an iteration of so many episodes: how many of those that nobody has yet the next
        task takes."""
        worth_sending = max(
            1, int(min(self._task_seconds / self._episode_seconds, episodes / self._workers))
        )

        def size(left: int) -> int:
            small = math.ceil(left / max(1, round(left / worth_sending)))
            return max(small, int(left / (1.5 * self._workers)))

        return size

    def took(self, episodes: int, seconds: float) -> None:
        """An iteration of so many episodes took so long, with all workers busy."""
        self._episode_seconds = seconds * self._workers / episodes
