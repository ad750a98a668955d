"""What collecting and updating cost: measured with the backends that training uses.

Every measurement is of tasks of a known number of episodes. Some are cut to a single step, so that
they are almost no work, some to a few, so that many can be side by side and it does not take long.
`flame_rl.tools.scaling` makes predictions of the costs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from flame_rl.actor.simulators.choose import choose_simulator
from flame_rl.backends.select import is_distributed, make_backend
from flame_rl.run.loop import episodes_wanted, make_request
from flame_rl.run.trainer import Trainer, one_thread
from flame_rl.settings.config import TrainConfig
from flame_rl.system.cores import available_cores
from flame_rl.tools.scaling import Costs, Workload, lock_steps, on_typical_cluster, schedule
from flame_rl.wire.messages import Environment, Episodes, joined

# Tasks have 1, 2, 4, … episodes, but no more than these, and stop growing at so many seconds.
MOST_EPISODES = 64
LONG_SECONDS = 0.25
# Each size is tried so often, or until it has taken so many seconds.
REPETITIONS = 3
ENOUGH_SECONDS = 2.0
# Tasks of almost no work, to see what a task costs.
EMPTY_TASKS = 40


@dataclass(frozen=True)
class Profile:
    """What was measured.

    Attributes:
        config: of the training, with everything filled in.
        env_id: the Gymnasium id.
        workload: an iteration; its episodes are as long as those that were played.
        local: costs on this machine.
        cluster: costs on the cluster, None where none is configured.
        executors: how many the cluster has room for; 0 where there is none.
    """

    config: TrainConfig
    env_id: str
    workload: Workload
    local: Costs
    cluster: Costs | None
    executors: int

    @property
    def cluster_costs(self) -> Costs:
        """Of the cluster, or of one like that in docs/scaling.md."""
        return self.cluster or on_typical_cluster(self.local)


@dataclass(frozen=True)
class Timed:
    """One request, divided into tasks of equal size.

    Attributes:
        lengths: steps of each episode, by index.
        size: episodes of a task.
        seconds: until all were there.
        client: of them, seconds for which the learner's process computed.
        computing: seconds for which the workers needed a core; None where that is unknown.
        bytes_in: that came back.
    """

    lengths: tuple[int, ...]
    size: int
    seconds: float
    client: float
    computing: float | None
    bytes_in: int

    @property
    def tasks(self) -> list[tuple[int, ...]]:
        return [self.lengths[i : i + self.size] for i in range(0, len(self.lengths), self.size)]


def profile(config: TrainConfig, stop: threading.Event) -> Profile:
    """Measure what training with this configuration costs, here and on the cluster if there is one.

    Args:
        config: with `resume`, the policy is that of the run, and otherwise an untrained one.
        stop: may be set from elsewhere, to end it with `Interrupted`.

    Raises:
        UsageError, RunError, Interrupted: as in training.
    """
    cores = available_cores()
    here = replace(config, local=True, workers=cores)
    with contextlib.ExitStack() as ending:
        # Both at once, so that executors start in the meantime.
        local_backend = ending.enter_context(contextlib.closing(make_backend(here, stop)))
        cluster_backend = None
        if is_distributed(config):
            cluster_backend = ending.enter_context(contextlib.closing(make_backend(config, stop)))
        # It has the networks; it collects nothing.
        trainer = ending.enter_context(Trainer(replace(here, workers=0), stop=stop))
        if config.resume is not None:
            trainer.take_up_run()
        config, env_id = trainer.config, trainer.spec.env_id
        environment = Environment(env_id, config.max_episode_steps, config.simulator)
        simulator, _ = choose_simulator(environment)
        slots = simulator.slots
        simulator.close()

        bench = Bench(local_backend, cores, trainer, lambda: core_seconds(local_backend.pids))
        local = replace(measure(bench, slots), cores=cores)
        played = joined(bench.parts)
        episodes = first_of(played, episodes_wanted(config, played.steps / len(played)))
        cluster, executors = None, 0
        if cluster_backend is not None:
            cluster_backend.describe(environment)
            executors = cluster_backend.executors
            cluster = measure(Bench(cluster_backend, executors, trainer), slots)
        workload = Workload(
            lengths=tuple(episodes.lengths.tolist()),
            bytes_per_step=bench.bytes_in / played.steps,
            updating=seconds_of_update(trainer, episodes),
        )
    return Profile(config, env_id, workload, local, cluster, executors)


class Bench:
    """A backend, asked for tasks of a given size.

    Attributes:
        workers: how many the backend has.
        parts: all whole episodes so far.
        bytes_in: that they came in.
    """

    def __init__(
        self,
        backend,
        workers: int,
        trainer: Trainer,
        computing: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`computing` tells for how many seconds the workers have needed a core so far."""
        self.workers = workers
        self.parts: list[Episodes] = []
        self.bytes_in = 0
        self._backend = backend
        self._trainer = trainer
        self._computing = computing
        self._iteration = itertools.count()

    def time(self, tasks: int, size: int = 1, steps: int | None = None) -> Timed:
        """Collect so many tasks of so many episodes, whole or cut after so many steps."""
        config, iteration = self._trainer.config, next(self._iteration)
        # As after an update: workers must get the weights anew.
        snapshot = replace(self._trainer.learner.snapshot(), version=iteration)
        if steps is not None:
            config = replace(config, max_episode_steps=steps)
        indices = tuple(range(tasks * size))
        request = make_request(config, self._trainer.spec, iteration, indices, snapshot)
        self._backend.shares = _OfSize(size)
        computing, client, began = self._computing(), time.process_time(), time.perf_counter()
        collected = self._backend.collect(snapshot, request)
        seconds = time.perf_counter() - began
        client = time.process_time() - client
        now = self._computing()
        if steps is None:
            self.parts.append(collected.episodes)
            self.bytes_in += collected.bytes_in
        return Timed(
            lengths=tuple(collected.episodes.lengths.tolist()),
            size=size,
            seconds=seconds,
            client=client,
            computing=None if computing is None or now is None else now - computing,
            bytes_in=collected.bytes_in,
        )


class _OfSize:
    """In place of `Shares`: tasks of one size."""

    def __init__(self, size: int) -> None:
        self._size = size

    def of(self, episodes: int) -> list[int]:
        return [self._size] * (episodes // self._size)

    def took(self, episodes: int, seconds: float) -> None:
        pass


def measure(bench: Bench, slots: int) -> Costs:
    """The costs of the place where a backend collects, without `cores`."""
    workers = bench.workers
    # Every worker makes its simulators, and is not measured.
    bench.time(2 * workers, steps=1)
    empty = [bench.time(1, steps=1) for _ in range(3 * REPETITIONS)]
    many = bench.time(EMPTY_TASKS, steps=1)
    alone, size = [], 1
    while True:
        warm = bench.time(2 * workers, size)
        spent, again = 0.0, []
        while len(again) < REPETITIONS and (not again or spent < ENOUGH_SECONDS):
            again.append(bench.time(1, size))
            spent += again[-1].seconds
        alone += again
        long = median(timed.seconds for timed in again) > LONG_SECONDS
        if size >= MOST_EPISODES or (long and size > 1):
            break
        size *= 2
    # From a few episodes nothing could be said of many, which share their lock steps.
    last = again[-1]
    per_step = last.seconds / sum(last.lengths)
    width = max(2, min(MOST_EPISODES, int(LONG_SECONDS / per_step)))
    steps = math.ceil(min(sum(last.lengths) / size, LONG_SECONDS / (per_step * width)))
    wide = []
    for limit in sorted({1, steps}):
        bench.time(2 * workers, width, limit)
        wide += [bench.time(1, width, limit) for _ in range(REPETITIONS)]
    crowded = [warm, *(bench.time(2 * workers, size) for _ in range(REPETITIONS))]

    client_task = many.client / EMPTY_TASKS
    reading = sum(timed.client - client_task * len(timed.tasks) for timed in crowded)
    client_byte = max(0.0, reading / sum(timed.bytes_in for timed in crowded))
    fitted, lock_step, step, episode = fit(
        [
            (
                (1, lock_steps(timed.lengths, slots), sum(timed.lengths), len(timed.lengths)),
                timed.seconds - client_byte * timed.bytes_in,
            )
            for timed in empty + alone + wide
        ]
    )
    # With many tasks a worker has the next one at hand: what is left is what keeps it busy.
    playing = lock_step + step + episode
    per_task = workers * (many.seconds - fitted) / (EMPTY_TASKS - 1)
    task = max(0.0, min(fitted - client_task, per_task - playing))
    costs = Costs(
        lock_step=lock_step,
        step=step,
        episode=episode,
        task=task,
        client_task=client_task,
        client_byte=client_byte,
        iteration=max(0.0, fitted - task - client_task),
        slots=slots,
        computing=share_computing(alone),
    )
    contention = min(timed.seconds / undisturbed(costs, timed, workers) for timed in crowded)
    # One after another would take `workers` times as long; what seems to take longer is noise.
    return replace(costs, workers=workers, contention=min(max(1.0, contention), workers))


def undisturbed(costs: Costs, timed: Timed, workers: int) -> float:
    """The seconds that a request would have taken if workers did not disturb each other."""
    bytes_per_step = timed.bytes_in / sum(timed.lengths)
    tasks = [
        (costs.task + costs.playing(part), costs.client_byte * bytes_per_step * sum(part))
        for part in timed.tasks
    ]
    return costs.iteration + schedule(tasks, costs, workers, 2 * workers)


def share_computing(timed: Sequence[Timed]) -> float:
    """The share of its time for which a worker needed a core; 1 where that is unknown."""
    if any(each.computing is None for each in timed):
        return 1.0
    computing = sum(each.computing for each in timed)
    return min(1.0, computing / sum(each.seconds for each in timed))


def fit(rows: Sequence[tuple[Sequence[float], float]]) -> list[float]:
    """Coefficients of 0 or more by which a weighted sum comes nearest to what was measured.

    Args:
        rows: pairs of K numbers, and what their weighted sum should be; how far it is off counts
            in proportion to that.
    """
    numbers, sums = (np.array(part, np.float64) for part in zip(*rows, strict=True))
    scaled = numbers / sums[:, None]
    best, least = np.zeros(scaled.shape[1]), np.inf
    # Least squares on every subset of the columns: there are few.
    for chosen in itertools.product((False, True), repeat=scaled.shape[1]):
        columns = np.flatnonzero(chosen)
        solution, *_ = np.linalg.lstsq(scaled[:, columns], np.ones(len(sums)), rcond=None)
        if (solution < 0).any():
            continue
        error = np.square(scaled[:, columns] @ solution - 1).sum()
        if error < least:
            best, least = np.zeros(scaled.shape[1]), error
            best[columns] = solution
    return best.tolist()


def first_of(episodes: Episodes, count: int) -> Episodes:
    """The first `count`, from the beginning again where there are fewer."""
    enough = joined([episodes] * math.ceil(count / len(episodes)))
    return replace(enough.first(count), index=np.arange(count))


def seconds_of_update(trainer: Trainer, episodes: Episodes) -> float:
    """What the learner's update by these episodes takes. It changes the learner."""
    took = []
    with one_thread():
        for _ in range(2):  # the first one touches everything for the first time
            began = time.perf_counter()
            trainer.learner.update(episodes)
            took.append(time.perf_counter() - began)
    return min(took)


def core_seconds(pids: Sequence[int]) -> float | None:
    """For how long these processes have had a core or waited for one; None where /proc does not
    say. Of each, its main thread counts: there the simulator runs."""
    try:
        # Nanoseconds running, nanoseconds runnable, and how often.
        states = [Path(f"/proc/{pid}/schedstat").read_text().split() for pid in pids]
    except OSError:
        return None
    return sum(int(running) + int(runnable) for running, runnable, _ in states) / 1e9
