"""The tasks of a request: their sizes, order and deadlines, what is sent twice, what counts."""

import itertools
import math
import statistics
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flame_rl.actor.worker.supervisor import Limits
from flame_rl.wire.messages import CollectRequest, FailureKind

# A task of this length takes far longer than sending it, and the wait for the last one is short.
TASK_SECONDS = 0.25
# On a cluster, a task costs the learner half of this: to send and watch it, fetch and delete its
# answer. The learner keeps N workers busy if a task takes at least N times this.
LEARNER_SECONDS = 0.01
# The fraction of the episodes that many workers keep back for those that finish first.
KEPT_BACK = 0.2
# Nothing is kept back if a worker's part would be below this fraction of a task worth sending.
LEAST_KEPT_BACK = 0.15
# Below this fraction of the mean speed, tasks are sized so that the slowest plays one an iteration.
UNEVEN = 0.75
# A task is late after this many times its expected seconds, and at least `TASK_SECONDS` more.
LATE = 1.5
_REMEMBERED = 64  # the number of answered tasks from which the typical duration is known
FIRST_SECONDS = 600.0  # the deadline until a first task has succeeded
LEAST_SECONDS = 60.0
TIMES_THE_LONGEST = 10.0
# For a task of more episodes than any before it, which may be played one after another.
TIMES_ONE_BY_ONE = 2.0
# Each task killed at its deadline doubles all, up to this factor, until one of its size succeeds.
MOST_ALLOWANCE = 4.0


class TaskSizes:
    """Sizes the tasks of each iteration by what an episode cost in the last one. First every worker
    gets one large task, in which it steps many episodes side by side. Workers that finish share the
    rest (after Hummel, Schonberg and Flynn 1992, "Factoring") in tasks of about `TASK_SECONDS`, or
    longer if the learner could not keep up. Where one is much slower than the others, a large task
    is what it can play in the whole iteration; the others take more of the small ones."""

    def __init__(self, workers: int, together: int = 1) -> None:
        """`workers`: their number, which may be set between iterations. `together`: the number of
        processes in each worker; no task is smaller without need."""
        self.workers = workers
        self._together = together
        self._episode_seconds = math.inf
        # The speed of the slowest worker over the mean speed; 1 where it is not much slower.
        self._slowest = 1.0

    def split(self, episodes: int, evenly: bool = False) -> list[int]:
        """The number of episodes in each task of an iteration, in the order of sending; `evenly`:
        each worker has one task of the same size."""
        workers = self.workers
        if evenly:
            return _equal_parts(episodes, min(episodes, workers))
        worth_sending = max(TASK_SECONDS, LEARNER_SECONDS * workers) / self._episode_seconds
        kept_back = episodes * max(KEPT_BACK * (1 - 1 / workers) ** 2, 1 - self._slowest)
        large = int((episodes - kept_back) / workers)
        tasks, limit = [], math.inf
        if large > worth_sending and kept_back >= workers * worth_sending * LEAST_KEPT_BACK:
            tasks, limit = [large] * workers, worth_sending
        elif self._slowest < 1:
            limit = min(worth_sending, max(1, large))
        rest = episodes - sum(tasks)
        small = max(self._together, int(min(limit, rest / workers)))
        # As many tasks for each worker, so that none is idle.
        count = min(rest, workers * math.ceil(rest / (workers * small)))
        return tasks + _equal_parts(rest, count)

    def note(self, episodes: int, seconds: float, paces: Sequence[float]) -> None:
        """Note how long an iteration's episodes took, with all workers busy, and the seconds that
        each worker took for an episode of its first task; see `Tasks.paces`."""
        self._episode_seconds = seconds * self.workers / episodes
        if not paces:
            return
        slowest, typical = max(paces), statistics.median_low(paces)
        if (slowest - typical) * episodes / self.workers < TASK_SECONDS:
            self._slowest = 1.0  # equal tasks end together
        elif math.isinf(slowest):
            self._slowest /= 2  # it may finish one of half the size
        else:
            ratio = len(paces) / slowest / sum(1 / pace for pace in paces)
            self._slowest = ratio if ratio < UNEVEN else 1.0
        if self._slowest < 1:
            self._episode_seconds = typical


def _equal_parts(whole: int, parts: int) -> list[int]:
    return [whole // parts + (i < whole % parts) for i in range(parts)]


@dataclass(frozen=True, eq=False)
class Task:
    """Episodes that are asked for together; a single one, for the `attempt`th time."""

    request: CollectRequest
    attempt: int = 1


class Tasks:
    """Decides what is sent when; knows no clock, no transport and no answer's content. Workers take
    tasks in the order of sending, and each plays one at a time. Once all are sent and a worker has
    nothing to do, further episodes are asked for, if the request wants steps and these will be too
    few. Else the end of what is late is asked for again, in tasks that get smaller, each episode at
    most twice at a time; the first answer counts."""

    def __init__(
        self, request: CollectRequest, sizes: Sequence[int], workers: int, in_flight: int
    ) -> None:
        """`sizes` are the numbers of episodes in each task, which sum to that of the request, and
        `in_flight` the most tasks that are sent and not yet answered."""
        self._request, self._workers, self._in_flight = request, workers, in_flight
        self._place = {index: place for place, index in enumerate(request.indices)}
        # Their env steps, 0 of those that have not been answered.
        self._lengths = np.zeros(len(request.indices), np.int64)
        self._waiting = deque(self._split(request.indices, sizes))
        self._first = list(self._waiting)[:workers]
        # The tasks in flight, in the order of sending, and when each began.
        self._sent: dict[Task, float | None] = {}
        self._paces: dict[Task, float] = {}
        self._typical: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)

    @property
    def wanted(self) -> int | None:
        """How many episodes the request wants, from its first on; None until they have come."""
        known, steps = self._known, self._request.steps
        if steps is None:
            return known if known == len(self._lengths) else None
        last = int(np.searchsorted(np.cumsum(self._lengths[:known]), steps))
        return last + 1 if last < known else None

    @property
    def _known(self) -> int:
        """How many episodes have come before the first that has not."""
        return len(self._lengths) if self._lengths.all() else int(self._lengths.argmin())

    @property
    def paces(self) -> list[float]:
        """The seconds that each worker took for an episode of its first task; infinite if that is
        not answered. [] where there are fewer tasks than workers, or one of these failed."""
        if len(self._first) < self._workers:
            return []
        return [self._paces.get(task, math.inf) for task in self._first]

    def next(self, now: float) -> Task | None:
        """The task to send now, if there is one; it then counts as sent."""
        if not self._waiting and len(self._sent) < self._workers:
            self._extend()
        if self._waiting:
            task = self._waiting.popleft() if len(self._sent) < self._in_flight else None
        else:
            task = self._late(now) if len(self._sent) < self._workers else None
        if task is not None:
            self._sent[task] = None
            self._begin(now)
        return task

    def answered(self, task: Task, now: float, lengths: np.ndarray) -> list[slice]:
        """A task's episodes have come, of these lengths. Returns runs of those that count."""
        began = self._remove(task, now)
        places = self._places(task)
        self._paces[task] = (now - began) / len(places)
        self._typical.append((len(places), now - began))
        new = np.flatnonzero(self._lengths[places] == 0)
        self._lengths[places] = lengths
        breaks = (np.diff(new) != 1) | (np.diff(places[new]) != 1)
        runs = np.split(new, np.flatnonzero(breaks) + 1)
        return [slice(int(run[0]), int(run[-1]) + 1) for run in runs if len(run)]

    def failed(self, task: Task, now: float) -> tuple[int, ...]:
        """A task has failed. Returns the indices of its episodes that no other task brings."""
        self._remove(task, now)
        self._first = []
        return self._unanswered(task, self._copies(), 0)

    def put_first(self, tasks: Sequence[Task]) -> None:
        self._waiting.extendleft(reversed(tasks))

    def put_off(self, task: Task) -> bool:
        """Whether this task of one episode may prove unwanted; then it is sent last."""
        (index,) = task.request.indices
        perhaps = self._request.steps is not None and self._place[index] > self._known
        if perhaps:
            self._waiting.append(task)
        return perhaps

    def _extend(self) -> None:
        """Ask for the episodes that will be lacking if all are as long as those that have come."""
        steps, known = self._request.steps, self._lengths[self._lengths > 0]
        if steps is None or not len(known):
            return
        asked = len(self._lengths)
        if (count := math.ceil(steps / known.mean()) - asked) <= 0:
            return
        first = self._request.indices[0] + asked
        self._place |= {first + i: asked + i for i in range(count)}
        self._lengths = np.append(self._lengths, np.zeros(count, np.int64))
        sizes = _equal_parts(count, min(count, self._workers))
        self.put_first(self._split(range(first, first + count), sizes))

    def _split(self, indices: Sequence[int], sizes: Sequence[int]) -> list[Task]:
        ends = itertools.accumulate(sizes, initial=0)
        parts = [tuple(indices[start:stop]) for start, stop in itertools.pairwise(ends)]
        return [Task(replace(self._request, indices=part)) for part in parts]

    def _places(self, task: Task) -> np.ndarray:
        return np.array([self._place[index] for index in task.request.indices], np.int64)

    def _copies(self) -> Counter[int]:
        """The number of tasks, waiting or sent, that each episode is in, by its index."""
        indices = (task.request.indices for task in itertools.chain(self._waiting, self._sent))
        return Counter(itertools.chain.from_iterable(indices))

    def _unanswered(self, task: Task, copies: Counter[int], count: int) -> tuple[int, ...]:
        """The indices of the task's episodes that have not come and are in this number of tasks."""
        lengths = self._lengths[self._places(task)]
        pairs = zip(task.request.indices, lengths, strict=True)
        return tuple(i for i, length in pairs if not length and copies[i] == count)

    def _remove(self, task: Task, now: float) -> float:
        """The task is no longer in flight; returns when it began."""
        began = self._sent.pop(task)
        self._begin(now)
        return now if began is None else began

    def _begin(self, now: float) -> None:
        """The workers play the first tasks sent, one each."""
        for task, began in itertools.islice(self._sent.items(), self._workers):
            if began is None:
                self._sent[task] = now

    def _late(self, now: float) -> Task | None:
        """The end of the late task of which most is left."""
        most: tuple[int, ...] = ()
        attempt, copies = 1, self._copies()
        for task, began in self._sent.items():
            count = len(task.request.indices)
            known = [seconds * max(1.0, count / size) for size, seconds in self._typical]
            expected = statistics.median(known) if known else math.inf
            if now - began <= max(LATE * expected, expected + TASK_SECONDS):
                continue
            once = self._unanswered(task, copies, 1)
            if len(once) > len(most):
                most, attempt = once, task.attempt
        if not most:
            return None
        end = most[-math.ceil(len(most) / self._workers) :]
        return Task(replace(self._request, indices=end), attempt)


class Deadlines:
    """Sets the limits of tasks; used by several threads."""

    def __init__(
        self, deadline: float | None, episodes: int, megabytes: int, workers: int = 1
    ) -> None:
        """`deadline`, in seconds, is fixed unless it is None; the others are as in `Limits`."""
        self._fixed = deadline
        self._others = episodes, megabytes, workers
        # The longest task of each number of episodes, in seconds.
        self._longest: dict[int, float] = {}
        self._allowance = 1.0
        self._killed = 0
        self._lock = threading.Lock()

    def limits(self, episodes: int = 1) -> Limits:
        """The limits of the next task, which has this number of episodes."""
        with self._lock:
            return Limits(episodes, self._deadline(episodes), *self._others)

    def note(self, limits: Limits, seconds: float, failure: FailureKind | None) -> None:
        """Note how long a task with these limits took, and how it failed; None: it did not."""
        episodes = limits.episodes
        with self._lock:
            if failure is None:
                self._longest[episodes] = max(seconds, self._longest.get(episodes, 0.0))
                if episodes >= self._killed:
                    self._allowance, self._killed = 1.0, 0
            elif failure == "timeout":
                # Tasks that are killed together, with the same deadline, count once.
                if limits.deadline >= self._deadline(episodes):
                    self._allowance = min(2 * self._allowance, MOST_ALLOWANCE)
                self._killed = max(self._killed, episodes)

    def _deadline(self, episodes: int) -> float:
        if self._fixed is not None:
            return self._fixed
        if not self._longest:
            return FIRST_SECONDS * self._allowance
        one_by_one = min(time * max(1.0, episodes / n) for n, time in self._longest.items())
        longest = TIMES_THE_LONGEST * max(self._longest.values())
        return self._allowance * max(LEAST_SECONDS, longest, TIMES_ONE_BY_ONE * one_by_one)
