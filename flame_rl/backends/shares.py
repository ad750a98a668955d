"""The number of episodes in a task: enough to be worth sending, few enough that all workers finish
together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

# A task of this length takes far longer than sending it, and the wait for the last one is short.
TASK_SECONDS = 0.25
# On a cluster, a task costs the learner half of this: to send and watch it, fetch and delete its
# answer. The learner keeps N workers busy if a task takes at least N times this.
LEARNER_SECONDS = 0.01
# The fraction of the episodes that many workers keep back for those that finish first. One
# worker waits for no other, and two do not wait long for each other.
KEPT_BACK = 0.2
# Nothing is kept back if a worker's part of it would be less than this fraction of a task worth
# sending: few episodes side by side take nearly as long as many.
LEAST_KEPT_BACK = 0.15
# A worker is slow if it has less than this fraction of the mean speed. Below it, tasks are sized so
# that the slowest plays one in an iteration.
UNEVEN = 0.75


class Shares:
    """Sizes the tasks of each iteration by what an episode cost in the last one.

    First every worker gets one large task, in which it steps many episodes side by side. Workers
    that finish share the rest (after Hummel, Schonberg and Flynn 1992, "Factoring") in tasks of
    about `TASK_SECONDS`, or longer if the learner could not keep up. Where one is much slower than
    the others, a large task is what it can play in the whole iteration; the others take more of
    the small ones. No result depends on it.
    """

    def __init__(self, workers: int, together: int = 1) -> None:
        """`together`: the number of processes in each worker, which play as many episodes in the
        time of one."""
        self._together = together
        # Of as many episodes as are played together.
        self._episode_seconds = math.inf
        # The speed of the slowest worker over the mean speed; 1 where it is not much slower.
        self._slowest = 1.0
        self.among(workers)

    def among(self, workers: int) -> None:
        """From now on there are so many workers."""
        self.workers = workers
        self._task_seconds = max(TASK_SECONDS, LEARNER_SECONDS * workers)

    def of(self, episodes: int) -> list[int]:
        """How many episodes each task of an iteration has, in the order in which to send them."""
        sizes = [size * self._together for size in self._sizes(self._groups(episodes))]
        sizes[-1] -= sum(sizes) - episodes
        return sizes

    def _groups(self, episodes: int) -> int:
        return math.ceil(episodes / self._together)

    def _sizes(self, episodes: int) -> list[int]:
        workers = self.workers
        worth_sending = self._task_seconds / self._episode_seconds
        kept_back = episodes * max(KEPT_BACK * (1 - 1 / workers) ** 2, 1 - self._slowest)
        large = int((episodes - kept_back) / workers)
        tasks, limit = [], math.inf
        if large > worth_sending and kept_back >= workers * worth_sending * LEAST_KEPT_BACK:
            tasks, limit = [large] * workers, worth_sending
        elif self._slowest < 1:
            limit = min(worth_sending, max(1, large))
        rest = episodes - sum(tasks)
        small = max(1, int(min(limit, rest / workers)))
        # As many tasks for each worker, so that none is idle.
        count = min(rest, workers * math.ceil(rest / (workers * small)))
        return tasks + [rest // count + (i < rest % count) for i in range(count)]

    def took(self, episodes: int, seconds: float, paces: Sequence[float]) -> None:
        """Note how long an iteration's episodes took, with all workers busy, and the seconds that
        each worker took for an episode of its first task; see `Tasks.paces`."""
        groups = self._groups(episodes)
        self._episode_seconds = seconds * self.workers / groups
        if not paces:
            return
        paces = [pace * self._together for pace in paces]
        self._slowest = self._slowest_of(paces, groups / self.workers)
        if self._slowest < 1:
            self._episode_seconds = statistics.median(paces)

    def _slowest_of(self, paces: Sequence[float], share: float) -> float:
        """The speed of the slowest worker over the mean speed; 1 where equal shares, of so many
        episodes, end together."""
        slowest = max(paces)
        if (slowest - statistics.median(paces)) * share < TASK_SECONDS:
            return 1.0
        if math.isinf(slowest):
            return self._slowest / 2  # it may do one of half the size
        ratio = len(paces) / slowest / sum(1 / pace for pace in paces)
        return ratio if ratio < UNEVEN else 1.0
