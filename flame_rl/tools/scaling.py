"""How long an iteration takes with any number of workers: arithmetic on costs that were measured.

docs/scaling.md explains the model and compares it with measurements.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flame_rl.backends.shares import Shares, split

# Shares learn from one iteration for the next. After so many they go up and down by a little, and
# as many again are averaged.
_SETTLING = 4


@dataclass(frozen=True)
class Costs:
    """What collecting costs in one place, this machine or a cluster. All times are seconds.

    Attributes:
        lock_step: of a worker, for stepping all its slots together, besides `step` for each.
        step: of a worker, for one env step of one episode.
        episode: of a worker, for one episode besides its steps.
        task: of a worker, for one task besides its episodes.
        client_task: of the learner's process, for one task.
        client_byte: of the learner's process, for one byte that comes back.
        iteration: once an iteration: weights out, the way of the last answer.
        slots: how many episodes of a task are stepped side by side.
        workers: how many `contention` was measured with.
        contention: how much longer work takes when that many are busy.
        cores: what all workers share; None where each has a core of its own.
        computing: the share of its time for which a worker needs a core; the rest it waits.
    """

    lock_step: float
    step: float
    episode: float
    task: float
    client_task: float
    client_byte: float
    iteration: float
    slots: int
    workers: int = 1
    contention: float = 1.0
    cores: int | None = None
    computing: float = 1.0

    def playing(self, lengths: Sequence[int]) -> float:
        """Seconds for which a worker plays one task of episodes of so many steps."""
        return (
            self.lock_step * lock_steps(lengths, self.slots)
            + self.step * sum(lengths)
            + self.episode * len(lengths)
        )

    def slowdown(self, busy: int) -> float:
        """How much longer a worker takes while so many are busy."""
        others = max(0, min(busy, self.workers) - 1)
        crowded = 1 + (self.contention - 1) * others / max(1, self.workers - 1)
        if self.cores is None:
            return crowded
        return crowded * max(1.0, busy * self.computing / self.cores)


def on_typical_cluster(local: Costs) -> Costs:
    """The same simulator where tasks cost what docs/scaling.md has measured, with a core for each
    worker."""
    return replace(
        local,
        task=0.02,
        client_task=0.004,
        client_byte=7e-9,
        iteration=0.005,
        workers=1,
        contention=1.0,
        cores=None,
    )


@dataclass(frozen=True)
class Workload:
    """What an iteration consists of, wherever it is collected.

    Attributes:
        lengths: steps of each of its episodes.
        bytes_per_step: that travel back.
        updating: seconds of the learner's update.
    """

    lengths: tuple[int, ...]
    bytes_per_step: float
    updating: float


@dataclass(frozen=True)
class Prediction:
    """An iteration with so many workers.

    Attributes:
        workers: on this machine, or executors.
        tasks: into how many the episodes are divided.
        collecting: seconds until all episodes are there.
        updating: seconds of the learner's update.
        shared_out: seconds of `collecting` if the workers' time could be divided evenly.
        client: seconds of `collecting` for which the learner's process sends and reads.
    """

    workers: int
    tasks: int
    collecting: float
    updating: float
    shared_out: float
    client: float

    @property
    def seconds(self) -> float:
        """Of the whole iteration."""
        return self.collecting + self.updating


def predict(costs: Costs, workload: Workload, workers: int, ahead: int) -> Prediction:
    """An iteration after the first few.

    Args:
        costs: of the place.
        workload: the iteration.
        workers: how many there are.
        ahead: how many tasks are sent beyond one for each worker.
    """
    shares = Shares(workers)
    count = len(workload.lengths)
    reading = costs.client_byte * workload.bytes_per_step
    collecting = []
    for _ in range(2 * _SETTLING):
        parts = split(workload.lengths, shares.of(count))
        tasks = [(costs.task + costs.playing(part), reading * sum(part)) for part in parts]
        seconds = costs.iteration + schedule(tasks, costs, workers, workers + ahead)
        collecting.append(seconds)
        shares.took(count, seconds)
    work = sum(seconds for seconds, _ in tasks)
    return Prediction(
        workers=workers,
        tasks=len(tasks),
        collecting=sum(collecting[_SETTLING:]) / _SETTLING,
        updating=workload.updating,
        shared_out=work * costs.slowdown(workers) / workers,
        client=sum(costs.client_task + reading for _, reading in tasks),
    )


def schedule(
    tasks: Sequence[tuple[float, float]], costs: Costs, workers: int, in_flight: int
) -> float:
    """Seconds until the learner has read the last answer; as `gather` works, event by event.

    Workers take tasks in the order in which they were sent. The learner does one thing at a time:
    it sends while fewer than `in_flight` are on their way, and otherwise reads what has come.

    Args:
        tasks: of each, the seconds of a worker that has its core to itself, and the seconds for
            which the learner reads its answer.
        costs: how workers slow each other down, and what sending costs.
        workers, in_flight: see above.
    """
    unsent = deque(tasks)
    queued: deque[tuple[float, float]] = deque()
    answers: deque[float] = deque()
    # Busy workers slow each other down alike, so that one clock of work serves them all. By it:
    # when each is done, and how long its answer is read.
    running: list[tuple[float, float]] = []
    now = work = 0.0
    underway = 0
    learner_until, sending = math.inf, None
    while unsent or underway:
        if learner_until == math.inf:
            if unsent and underway < in_flight:
                sending = unsent.popleft()
                underway += 1
                learner_until = now + costs.client_task
            elif answers:
                learner_until = now + answers.popleft()
        while queued and len(running) < workers:
            seconds, reading = queued.popleft()
            heapq.heappush(running, (work + seconds, reading))
        slowdown = costs.slowdown(len(running))
        worker_until = now + (running[0][0] - work) * slowdown if running else math.inf
        then = min(learner_until, worker_until)
        work += (then - now) / slowdown
        now = then
        if worker_until < learner_until:
            answers.append(heapq.heappop(running)[1])
            continue
        if sending is not None:
            queued.append(sending)
        else:
            underway -= 1
        learner_until, sending = math.inf, None
    return now


def lock_steps(lengths: Sequence[int], slots: int) -> int:
    """How many lock steps it takes when a slot whose episode ends takes the next one at once."""
    ends = [0] * slots
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def enough(predictions: Sequence[Prediction], within: float = 0.05) -> Prediction:
    """The fewest workers with which an iteration takes hardly longer than with any number."""
    best = min(prediction.seconds for prediction in predictions)
    return next(p for p in predictions if p.seconds <= best * (1 + within))
