"""How many episodes a task has: enough to be worth sending, few enough that all end together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

# What it costs to send a task is little beside this, and so is waiting for the last one.
TASK_SECONDS = 0.25
# On a cluster a task costs the learner half of this: to send it, watch it, and fetch and delete its
# answer. If tasks are so long for each worker that there is, it keeps all of them busy.
LEARNER_SECONDS = 0.01
# Of the episodes, what many workers keep back for those of them that are done first. One has nobody
# to wait for, and two do not wait long for each other.
KEPT_BACK = 0.2
# Nothing is kept back where each worker's part would be less than this of a task worth sending: few
# episodes side by side take nearly as long as many.
LEAST_KEPT_BACK = 0.15


class Shares:
    """Sizes of the tasks of one iteration after another, by what episodes have cost so far.

    First every worker gets one large task, in which it has many episodes to step side by side. The
    rest is for whoever is done (after Hummel, Schonberg and Flynn 1992, "Factoring"), in tasks of
    about `TASK_SECONDS`, or more where the learner could not keep up. No result depends on it.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._task_seconds = max(TASK_SECONDS, LEARNER_SECONDS * workers)
        self._episode_seconds = math.inf

    def of(self, episodes: int) -> list[int]:
        """How many episodes each task of an iteration has, in the order in which to send them."""
        workers = self._workers
        worth_sending = self._task_seconds / self._episode_seconds
        kept_back = episodes * KEPT_BACK * (1 - 1 / workers) ** 2
        large = int((episodes - kept_back) / workers)
        tasks, limit = [], math.inf
        if large > worth_sending and kept_back >= workers * worth_sending * LEAST_KEPT_BACK:
            tasks, limit = [large] * workers, worth_sending
        rest = episodes - sum(tasks)
        small = max(1, int(min(limit, rest / workers)))
        # A task for everyone, or two, so that nobody is left without.
        count = min(rest, workers * math.ceil(rest / (workers * small)))
        return tasks + [rest // count + (i < rest % count) for i in range(count)]

    def took(self, episodes: int, seconds: float) -> None:
        """An iteration of so many episodes took so long, with all workers busy."""
        self._episode_seconds = seconds * self._workers / episodes


def split(items: Sequence[Item], sizes: Sequence[int]) -> list[Sequence[Item]]:
    """The items of each task, one task after another."""
    ends = itertools.accumulate(sizes)
    return [items[start:stop] for start, stop in itertools.pairwise([0, *ends])]
