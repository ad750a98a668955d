"""The tasks of one request: which comes next, what is sent twice, which answers count."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flame_rl.backends.shares import TASK_SECONDS
from flame_rl.wire.messages import CollectRequest

# A task is late after this many times the seconds that it should take, and after `TASK_SECONDS`
# more than those: a shorter wait is not worth another task.
LATE = 1.5
# Of how many answered tasks the typical duration is known.
_REMEMBERED = 64


@dataclass(frozen=True, eq=False)
class Task:
    """Episodes that are asked for together.

    Attributes:
        request: names them.
        attempt: the number of times that its only episode has been asked for, from 1.
    """

    request: CollectRequest
    attempt: int = 1


class Tasks:
    """Decides what is sent when; knows no clock, no transport and no answer's content.

    Workers take the tasks in the order in which these are sent, and each plays one at a time. Once
    all are sent and a worker has nothing to do, the end of what is late is asked for again, in
    tasks that get smaller, each episode at most twice at a time; the first answer counts.
    """

    def __init__(
        self, request: CollectRequest, sizes: Sequence[int], workers: int, in_flight: int
    ) -> None:
        """
        Args:
            request: names all episodes.
            sizes: the number of episodes in each task; their sum is that of the request.
            workers: how many play.
            in_flight: the most tasks that are sent and not yet answered.
        """
        self._request = request
        self._workers = workers
        self._in_flight = in_flight
        self._place = {index: place for place, index in enumerate(request.indices)}
        self._missing = np.ones(len(request.indices), bool)
        # In how many tasks, waiting or sent, each episode is.
        self._copies = np.zeros(len(request.indices), np.int64)
        # A stack: the first task is at the end.
        self._waiting: list[Task] = []
        ends = list(itertools.accumulate(sizes))
        for start, stop in list(itertools.pairwise([0, *ends]))[::-1]:
            self._add(Task(replace(request, indices=request.indices[start:stop])))
        self._first = self._waiting[-workers:][::-1]
        # The tasks on their way, in the order in which they were sent, and when each began.
        self._sent: dict[Task, float | None] = {}
        self._paces: dict[Task, float] = {}
        self._typical: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)

    @property
    def complete(self) -> bool:
        """Whether every episode has been answered."""
        return not self._missing.any()

    @property
    def paces(self) -> list[float]:
        """The seconds that each worker took for an episode of its first task; infinite if that is
        not answered. [] where there are fewer tasks than workers, or one of these failed."""
        if len(self._first) < self._workers:
            return []
        return [self._paces.get(task, math.inf) for task in self._first]

    def next(self, now: float) -> Task | None:
        """The task to send now, if there is one; it then counts as sent."""
        if self._waiting:
            task = self._waiting.pop() if len(self._sent) < self._in_flight else None
        else:
            task = self._late(now) if len(self._sent) < self._workers else None
        if task is not None:
            self._sent[task] = None
            self._begin(now)
        return task

    def answered(self, task: Task, now: float) -> list[slice]:
        """A task's episodes have come. Returns which of them count, in runs of consecutive ones."""
        began = self._remove(task, now)
        places = self._places(task)
        self._paces[task] = (now - began) / len(places)
        self._typical.append((len(places), now - began))
        new = np.flatnonzero(self._missing[places])
        self._missing[places] = False
        breaks = (np.diff(new) != 1) | (np.diff(places[new]) != 1)
        runs = np.split(new, np.flatnonzero(breaks) + 1)
        return [slice(int(run[0]), int(run[-1]) + 1) for run in runs if len(run)]

    def failed(self, task: Task, now: float) -> tuple[int, ...]:
        """A task has failed. Returns the indices of its episodes that no other task brings."""
        self._remove(task, now)
        self._first = []
        places = self._places(task)
        needed = self._missing[places] & (self._copies[places] == 0)
        return tuple(itertools.compress(task.request.indices, needed))

    def retry(self, tasks: Sequence[Task]) -> None:
        """These come next, the first of them first."""
        for task in reversed(tasks):
            self._add(task)

    def _add(self, task: Task) -> None:
        self._waiting.append(task)
        self._copies[self._places(task)] += 1

    def _places(self, task: Task) -> np.ndarray:
        return np.array([self._place[index] for index in task.request.indices], np.int64)

    def _remove(self, task: Task, now: float) -> float:
        """It is not on its way any more; returns when it began."""
        began = self._sent.pop(task)
        self._copies[self._places(task)] -= 1
        self._begin(now)
        return now if began is None else began

    def _begin(self, now: float) -> None:
        """As many of the tasks sent as there are workers are being played."""
        for task, began in itertools.islice(self._sent.items(), self._workers):
            if began is None:
                self._sent[task] = now

    def _late(self, now: float) -> Task | None:
        """The end of that late task of which most is left."""
        most: list[int] = []
        attempt = 1
        for task, began in self._sent.items():
            expected = self._expected(len(task.request.indices))
            if now - began <= max(LATE * expected, expected + TASK_SECONDS):
                continue
            places = self._places(task)
            once = self._missing[places] & (self._copies[places] == 1)
            if once.sum() > len(most):
                most = list(itertools.compress(task.request.indices, once))
                attempt = task.attempt
        if not most:
            return None
        end = most[-math.ceil(len(most) / self._workers) :]
        task = Task(replace(self._request, indices=tuple(end)), attempt)
        self._copies[self._places(task)] += 1
        return task

    def _expected(self, count: int) -> float:
        """The seconds that a task of so many episodes typically takes; infinite if unknown."""
        known = [seconds * max(1.0, count / size) for size, seconds in self._typical]
        return statistics.median(known) if known else math.inf
