"""Which tasks are sent when, to workers of different speeds: simulated on a virtual clock."""

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from flame_rl.backends.tasks import Task, Tasks, TaskSizes
from tests.helpers import request_for

# What a task costs a worker, beside playing.
TASK = 0.008
POLL = 0.1


def answered(tasks: Tasks, task: Task, now: float) -> list[slice]:
    """The task's episodes have come, of a step each."""
    return tasks.answered(task, now, np.ones(len(task.request.indices), np.int64))


class Cluster:
    """Workers that take tasks in the order in which they were sent; `sizes` is what the learner has
    learnt of them, `sent` the number of tasks of the last iteration."""

    def __init__(self, speeds: Sequence[float], seconds: Callable[[int], float]) -> None:
        """`seconds` of an episode with this index at speed 1."""
        self.sizes = TaskSizes(len(speeds))
        self.sent = 0
        self.speeds = list(speeds)
        self._now = 0.0
        self._seconds = seconds

    def iteration(self, episodes: int) -> float:
        """Returns the seconds of collecting; during the update, a second, what is late ends."""
        tasks = Tasks(
            request_for("CartPole-v1", range(episodes)),
            self.sizes.split(episodes),
            len(self.speeds),
            2 * len(self.speeds),
        )
        began = self._now
        queue: deque[Task] = deque()
        idle = list(range(len(self.speeds)))
        random.Random(3).shuffle(idle)
        busy: list[tuple[float, int, Task]] = []
        played: Counter[int] = Counter()
        self.sent = 0
        while tasks.wanted is None:
            while (task := tasks.next(self._now)) is not None:
                queue.append(task)
                self.sent += 1
            while queue and idle:
                task, worker = queue.popleft(), idle.pop()
                seconds = sum(map(self._seconds, task.request.indices)) / self.speeds[worker]
                heapq.heappush(busy, (self._now + TASK + seconds, self.sent + worker, worker, task))
            if busy[0][0] > self._now + POLL:
                self._now += POLL
                continue
            self._now, _, worker, task = heapq.heappop(busy)
            idle.append(worker)
            for run in answered(tasks, task, self._now):
                played.update(task.request.indices[run])
        took = self._now - began
        self.sizes.note(episodes, took, tasks.paces)
        self._now += 1.0
        assert played == Counter(range(episodes))
        return took


def uneven(seconds: float) -> Callable[[int], float]:
    """Episodes that last about so long at speed 1."""
    return lambda index: seconds * random.Random(index).uniform(0.7, 1.3)


@pytest.mark.parametrize(
    ("speeds", "seconds", "episodes", "first"),
    [
        ((1, 1, 0.1), 0.08, 100, 1.35),
        ((1, 1, 0.1), 0.5, 24, 1.3),
        ((1, 0.5), 0.08, 100, 1.45),
        ((1, 0.1), 0.08, 100, 1.45),
        ((1, 0.1), 0.5, 24, 1.5),
        ((1, 0.1), 0.02, 2000, 1.7),
        ((1, 1, 1, 0.5, 0.5), 0.08, 400, 1.4),
        ((*[1] * 16, 0.1, 0.1), 0.5, 400, 1.3),
    ],
)
def test_slow_workers_set_nobodys_pace(speeds, seconds, episodes, first):
    """Next to what the sum of speeds allows; without, the first case takes 5.5 times as long."""
    cluster = Cluster(speeds, uneven(seconds))
    ideal = sum(map(uneven(seconds), range(episodes))) / sum(speeds)
    took = [cluster.iteration(episodes) / ideal for _ in range(12)]
    assert took[0] <= first
    assert max(took[1:3]) <= 1.2
    assert max(took[3:]) <= 1.15


@pytest.mark.parametrize("workers", [1, 2, 4, 16])
@pytest.mark.parametrize("seconds", [0.02, 0.08, 0.5])
def test_nothing_is_sent_twice_to_equal_workers(workers, seconds):
    cluster = Cluster([1.0] * workers, uneven(seconds))
    for iteration in range(5):
        sizes = cluster.sizes.split(400)
        cluster.iteration(400)
        assert cluster.sent == len(sizes)
        if iteration:
            assert sizes[0] >= 0.8 * 400 / workers


def test_a_worker_that_recovers_gets_as_much_as_the_others():
    cluster = Cluster([1, 1, 0.1], uneven(0.08))
    before = cluster.sizes.split(100)[0]
    for _ in range(6):
        cluster.iteration(100)
    assert cluster.sizes.split(100)[0] <= 5
    cluster.speeds[2] = 1
    for _ in range(2):
        cluster.iteration(100)
    assert cluster.sizes.split(100)[0] >= 0.8 * before


def test_a_late_task_is_sent_twice_from_its_end_and_the_first_answer_counts():
    tasks = Tasks(request_for("CartPole-v1", range(10, 22)), [6, 6], workers=2, in_flight=4)
    quick, slow = tasks.next(0.0), tasks.next(0.0)
    assert tasks.next(0.0) is None
    assert answered(tasks, quick, 1.0) == [slice(0, 6)]
    assert tasks.next(1.4) is None
    again = tasks.next(1.6)
    assert again.request.indices == (19, 20, 21)
    assert tasks.next(1.7) is None  # both workers are busy
    assert answered(tasks, again, 2.0) == [slice(0, 3)]
    other = tasks.next(2.0)
    assert other.request.indices == (17, 18)
    assert answered(tasks, slow, 2.1) == [slice(0, 3)]
    assert tasks.wanted == 12 and answered(tasks, other, 2.2) == []
    assert tasks.paces == [1.0 / 6, 2.1 / 6]


def test_an_episode_that_another_task_brings_is_not_asked_for_again():
    tasks = Tasks(request_for("CartPole-v1", range(8)), [4, 4], workers=2, in_flight=4)
    quick, slow = tasks.next(0.0), tasks.next(0.0)
    answered(tasks, quick, 1.0)
    again = tasks.next(2.0)
    assert again.request.indices == (6, 7)
    assert tasks.failed(slow, 2.0) == (4, 5)
    tasks.put_first([Task(request_for("CartPole-v1", [index])) for index in (4, 5)])
    four, five = tasks.next(2.0), tasks.next(2.0)
    assert (four.request.indices, five.request.indices) == ((4,), (5,))
    assert tasks.failed(again, 2.1) == (6, 7)
    assert tasks.paces == []


def answered_of(tasks: Tasks, dice: random.Random, failing: float) -> Iterator[tuple[Task, float]]:
    """The tasks that are answered and when, in any order, while a share of all is failing."""
    sent: list[Task] = []
    now = 0.0
    while tasks.wanted is None:
        now += dice.uniform(0.0, 2.0)
        while (task := tasks.next(now)) is not None:
            sent.append(task)
        twice = Counter(index for task in sent for index in task.request.indices)
        assert max(twice.values()) <= 2
        task = sent.pop(dice.randrange(len(sent)))
        if dice.random() >= failing:
            yield task, now
            continue
        missing = tasks.failed(task, now)
        tasks.put_first([Task(replace(task.request, indices=(index,))) for index in missing])


@pytest.mark.parametrize("seed", range(20))
def test_every_episode_counts_once_whatever_fails(seed):
    dice = random.Random(seed)
    episodes, workers = dice.randint(1, 40), dice.randint(1, 5)
    indices = sorted(dice.sample(range(100), episodes))
    tasks = Tasks(request_for("CartPole-v1", indices), [episodes], workers, 2 * workers)
    counted = Counter()
    for task, now in answered_of(tasks, dice, 0.4):
        for run in answered(tasks, task, now):
            counted.update(task.request.indices[run])
    assert counted == Counter(indices)


def lognormal(index: int) -> int:
    return max(1, int(random.Random(index).lognormvariate(3, 2)))


@pytest.mark.parametrize("length", [lognormal, lambda index: 10, lambda index: 1 + index])
@pytest.mark.parametrize("seed", range(5))
def test_steps_are_those_of_the_first_episodes_whatever_comes_first(length, seed):
    dice = random.Random(seed)
    steps, workers = dice.randint(1, 3000), dice.randint(1, 5)
    first = dice.randint(1, 200)
    request = replace(request_for("CartPole-v1", range(first)), steps=steps)
    tasks = Tasks(request, [first], workers, 2 * workers)
    come = set()
    for task, now in answered_of(tasks, dice, 0.2):
        indices = task.request.indices
        tasks.answered(task, now, np.array([length(index) for index in indices]))
        come |= set(indices)
    total, expected = 0, 0
    while total < steps:
        total += length(expected)
        expected += 1
    assert tasks.wanted == expected and come >= set(range(expected))
