"""Measure what an iteration costs: a few real ones, then single parts of one."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from dataclasses import dataclass, replace
from statistics import median

from flame_rl.backends import Backend
from flame_rl.backends.dispatch import Collected
from flame_rl.backends.inline import InlineBackend
from flame_rl.backends.select import is_distributed, local_workers, make_backend
from flame_rl.run.iteration import environment_of, make_request, run_iteration
from flame_rl.run.trainer import Trainer, one_thread
from flame_rl.settings.config import TrainConfig
from flame_rl.system.cores import available_cores
from flame_rl.tools.scaling import Costs, collecting_seconds

# Iterations are measured until there are this many, or until they have taken this long.
ITERATIONS = 3
ENOUGH_SECONDS = 10.0
# Episodes played in this process, to measure a step; about this long.
SAMPLE_SECONDS = 2.0
# Repetitions of measurements that take milliseconds.
REPETITIONS = 5


@dataclass(frozen=True)
class Phases:
    """One iteration as it was measured: seconds of its phases, and bytes.

    Attributes:
        episodes: how many it had.
        collecting: from publishing the weights to having read all episodes.
        updating: the learner's update.
        rest: everything else, an evaluation included.
        waiting: of `collecting`, the time in which the learner had nothing to do.
        bytes_out, bytes_in: to the workers and from them.
    """

    episodes: int
    collecting: float
    updating: float
    rest: float
    waiting: float
    bytes_out: int
    bytes_in: int

    @property
    def seconds(self) -> float:
        return self.collecting + self.updating + self.rest


@dataclass(frozen=True)
class Profile:
    """What was measured.

    Attributes:
        env_id: the Gymnasium id.
        algorithm: its name.
        workers: processes, or executors of a cluster, that collected; 0: the learner itself.
        phases: of the fastest iteration with these workers.
        costs: from which iterations with other numbers of workers are predicted.
    """

    env_id: str
    algorithm: str
    workers: int
    phases: Phases
    costs: Costs


def profile(config: TrainConfig, stop: threading.Event) -> Profile:
    """Run some iterations as training would, on this machine or on the cluster, and measure.

    Nothing is written. With `resume`, the policy is that of the run; otherwise it is untrained.

    Raises:
        UsageError, RunError: as in training.
        Interrupted: `stop` was set.
    """
    with contextlib.ExitStack() as ending:
        # First, so that workers start while torch is imported.
        backend = ending.enter_context(contextlib.closing(make_backend(config, stop)))
        trainer = ending.enter_context(Trainer(config.changed(local=True, workers=0), stop=stop))
        trainer.resume_run()
        here = ending.enter_context(contextlib.closing(InlineBackend(stop)))
        for each in (backend, here):
            each.describe(environment_of(config, trainer.spec.env_id))
        if is_distributed(config):
            workers, cores = backend.executors, None
        else:
            workers, cores = local_workers(config), available_cores()
        phases = fastest_iteration(trainer, backend)
        costs = playing_costs(trainer, here, phases.episodes)
        costs = replace(costs, updating=phases.updating, rest=phases.rest, cores=cores)
        if workers > 0:
            costs = with_tasks(costs, trainer, backend, workers, phases)
    return Profile(
        trainer.spec.env_id,
        trainer.config.algorithm_name,
        workers,
        phases,
        crowded(costs, workers, phases),
    )


def crowded(costs: Costs, workers: int, phases: Phases) -> Costs:
    """With the `crowding` by which the prediction for these workers is what was measured."""
    workers = max(1, workers)
    predicted = collecting_seconds(costs, workers)
    playing = collecting_seconds(replace(costs, task=0.0, reading=0.0), workers)
    crowding = max(1.0, 1 + (phases.collecting - predicted) / playing)
    if costs.cores is not None:
        # One after another would take `workers` times as long: more is noise.
        crowding = min(crowding, workers)
    return replace(costs, crowding=crowding)


def fastest_iteration(trainer: Trainer, backend: Backend) -> Phases:
    """Run the next iteration several times, each from the same state of the learner; the one that
    took least. The first time, in which workers start, does not count."""
    done = trainer.totals
    state = {name: tensor.clone() for name, tensor in trainer.learner.state_dict().items()}
    measured: list[Phases] = []
    while len(measured) <= ITERATIONS and sum(p.seconds for p in measured[1:]) < ENOUGH_SECONDS:
        began = time.perf_counter()
        with one_thread():
            result = run_iteration(trainer.config, trainer.spec, trainer.learner, backend, done)
        seconds = time.perf_counter() - began
        trainer.learner.load_state_dict(state)
        timing = result.timing
        phases = Phases(
            episodes=result.episodes - done.episodes,
            collecting=timing.collecting,
            updating=timing.updating,
            rest=seconds - timing.collecting - timing.updating,
            waiting=timing.waiting,
            bytes_out=timing.bytes_out,
            bytes_in=timing.bytes_in,
        )
        measured.append(phases)
        # By the length of episodes, the next time has as many as the configuration asks for.
        done = replace(done, length_mean=result.length_mean)
    return min(measured[1:], key=lambda phases: phases.seconds)


def playing_costs(trainer: Trainer, here: InlineBackend, episodes: int) -> Costs:
    """The costs of playing the iteration's episodes, measured with some of them in this process."""
    alone = min_seconds(trainer, here, 1)
    count = max(1, min(episodes, int(SAMPLE_SECONDS / alone.seconds)))
    sample = min_seconds(trainer, here, count)
    lengths = sample.collected.episodes.lengths.tolist()
    return Costs(
        # Where not all were played, the others are taken to be as long.
        lengths=tuple(itertools.islice(itertools.cycle(lengths), episodes)),
        step=sample.seconds / sum(lengths),
        step_alone=alone.seconds / alone.collected.episodes.steps,
        computing=min(1.0, sample.cpu / sample.seconds),
    )


def with_tasks(
    costs: Costs, trainer: Trainer, backend: Backend, workers: int, phases: Phases
) -> Costs:
    """With `task` and `reading`, from tasks of one step, one for each worker."""
    play(trainer, backend, workers, steps=1)  # workers make simulators with that time limit
    tries = [play(trainer, backend, workers, steps=1) for _ in range(REPETITIONS)]
    seconds = median(played.seconds for played in tries)
    busy = median(played.seconds - played.collected.waiting_seconds for played in tries)
    return replace(
        costs,
        task=max(0.0, seconds - costs.step_alone) / workers,
        reading=max(0.0, phases.collecting - phases.waiting - busy),
    )


@dataclass(frozen=True)
class Played:
    """Episodes; the seconds until they were there, and this process's seconds of a core."""

    collected: Collected
    seconds: float
    cpu: float


def play(trainer: Trainer, backend: Backend, episodes: int, steps: int | None = None) -> Played:
    """Collect the first episodes of the next iteration; with `steps`, only so much of each."""
    snapshot, indices = trainer.learner.snapshot(), tuple(range(episodes))
    iteration = trainer.totals.iterations
    request = make_request(trainer.config, trainer.spec, iteration, indices, snapshot.version)
    if steps is not None:
        request = replace(
            request, environment=replace(request.environment, max_episode_steps=steps)
        )
    cpu, began = time.process_time(), time.perf_counter()
    collected = backend.collect(snapshot, request)
    return Played(collected, time.perf_counter() - began, time.process_time() - cpu)


def min_seconds(trainer: Trainer, backend: Backend, episodes: int) -> Played:
    """The fastest of a few repetitions: other programs can only make it slower."""
    tries: list[Played] = []
    while len(tries) < REPETITIONS and sum(played.seconds for played in tries) < SAMPLE_SECONDS:
        tries.append(play(trainer, backend, episodes))
    return min(tries, key=lambda played: played.seconds)
