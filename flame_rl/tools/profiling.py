"""Measure what an iteration costs: time a few whole iterations, then single parts of one."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from statistics import median

from flame_rl.backends import Backend
from flame_rl.backends.dispatch import Collected
from flame_rl.backends.inline import InlineBackend
from flame_rl.backends.select import is_distributed, local_workers, make_backend
from flame_rl.run.iteration import environment_of, make_request, run_iteration
from flame_rl.run.results import IterationResult, Timing
from flame_rl.run.trainer import Trainer, one_thread
from flame_rl.settings.config import TrainConfig
from flame_rl.system.cores import available_cores
from flame_rl.tools.scaling import Costs, collecting_seconds

# Each measurement ends after this many repetitions, or once they have taken this long.
ITERATIONS, ITERATIONS_SECONDS = 3, 10.0
SAMPLES, SAMPLES_SECONDS = 5, 2.0

# Seconds by the clock, CPU seconds of this process, and what was collected.
Played = tuple[float, float, Collected]


@dataclass(frozen=True)
class Profile:
    """The measured costs of an iteration.

    Attributes:
        env_id: the Gymnasium id.
        algorithm: the algorithm's name.
        workers: processes, or executors of a cluster, that collected; 0: the learner itself.
        timing: of the fastest iteration with these workers.
        costs: predict iterations with other numbers of workers.
    """

    env_id: str
    algorithm: str
    workers: int
    timing: Timing
    costs: Costs


def profile(config: TrainConfig, stop: threading.Event) -> Profile:
    """Run some iterations as training would, on this machine or on the cluster, and measure.

    Nothing is written. With `resume`, the policy is that of the run; otherwise it is untrained, and
    an algorithm that learns from replay has no warm-up, in which it would take no gradient step.

    Raises:
        UsageError, RunError: as in training.
        Interrupted: `stop` was set.
    """
    if config.output.resume is None and hasattr(config.algorithm, "warm_up_steps"):
        config = config.changed(warm_up_steps=0)
    with ExitStack() as ending:
        # First, so that workers start while torch is imported.
        backend = ending.enter_context(closing(make_backend(config, stop)))
        trainer = ending.enter_context(Trainer(config.changed(local=True, workers=0), stop=stop))
        trainer.resume_run()
        here = ending.enter_context(closing(InlineBackend(stop)))
        for each in (backend, here):
            each.describe(environment_of(config, trainer.spec.env_id))
        if is_distributed(config):
            workers, cores = backend.executors, None
        else:
            workers, cores = local_workers(config), available_cores()
        seconds, result = fastest_iteration(trainer, backend)
        timing = result.timing
        costs = replace(
            playing_costs(trainer, here, result.episodes - trainer.totals.episodes),
            updating=timing.updating,
            rest=seconds - timing.collecting - timing.updating,
            cores=cores,
        )
        if workers > 0:
            costs = crowded(with_tasks(costs, trainer, backend, workers, timing), workers, timing)
    return Profile(trainer.spec.env_id, trainer.config.algorithm_name, workers, timing, costs)


def fastest_iteration(trainer: Trainer, backend: Backend) -> tuple[float, IterationResult]:
    """Run the next iteration again and again from the same state of the learner; the seconds and
    the result of the fastest. The first time, in which workers start, does not count."""
    done = trainer.totals
    state = {name: tensor.clone() for name, tensor in trainer.learner.state_dict().items()}
    tries: list[tuple[float, IterationResult]] = []
    while len(tries) <= ITERATIONS and sum(s for s, _ in tries[1:]) < ITERATIONS_SECONDS:
        began = time.perf_counter()
        with one_thread():
            result = run_iteration(trainer.config, trainer.spec, trainer.learner, backend, done)
        tries.append((time.perf_counter() - began, result))
        trainer.learner.load_state_dict(state)
        # With steps_per_iter, the number of episodes depends on the length of those before.
        done = replace(done, length_mean=result.length_mean)
    return min(tries[1:], key=lambda each: each[0])


def playing_costs(trainer: Trainer, here: InlineBackend, episodes: int) -> Costs:
    """The costs of playing the iteration's episodes, measured with some of them in this process."""
    alone, _, single = fastest_play(trainer, here, 1)
    count = max(1, min(episodes, int(SAMPLES_SECONDS / alone)))
    seconds, cpu, sample = fastest_play(trainer, here, count)
    lengths = sample.episodes.lengths.tolist()
    return Costs(
        # Where not all were played, the others are taken to be as long.
        lengths=tuple(itertools.islice(itertools.cycle(lengths), episodes)),
        step=seconds / sum(lengths),
        step_alone=alone / single.episodes.steps,
        computing=min(1.0, cpu / seconds),
    )


def with_tasks(
    costs: Costs, trainer: Trainer, backend: Backend, workers: int, timing: Timing
) -> Costs:
    """The costs with `task` and `reading`, measured with one task of a single step per worker."""
    # The first call makes simulators with that time limit.
    play(trainer, backend, workers, steps=1)
    tries = [play(trainer, backend, workers, steps=1) for _ in range(SAMPLES)]
    seconds = median(seconds for seconds, *_ in tries)
    busy = median(seconds - collected.waiting_seconds for seconds, _, collected in tries)
    return replace(
        costs,
        task=max(0.0, seconds - costs.step_alone) / workers,
        reading=max(0.0, timing.collecting - timing.waiting - busy),
    )


def crowded(costs: Costs, workers: int, timing: Timing) -> Costs:
    """The costs with the `crowding` that makes the prediction for these workers the measurement."""
    late = timing.collecting - collecting_seconds(costs, workers)
    playing = collecting_seconds(replace(costs, task=0.0, reading=0.0), workers)
    # On one machine, workers together take no longer than one after another.
    most = workers if costs.cores is not None else float("inf")
    return replace(costs, crowding=min(most, max(1.0, 1 + late / playing)))


def play(trainer: Trainer, backend: Backend, episodes: int, steps: int | None = None) -> Played:
    """Collect the first episodes of the next iteration, or only their first `steps`."""
    snapshot, indices = trainer.learner.snapshot(), tuple(range(episodes))
    iteration = trainer.totals.iterations
    request = make_request(trainer.config, trainer.spec, iteration, indices, snapshot.version)
    if steps is not None:
        environment = replace(request.environment, max_episode_steps=steps)
        request = replace(request, environment=environment)
    cpu, began = time.process_time(), time.perf_counter()
    collected = backend.collect(snapshot, request)
    return time.perf_counter() - began, time.process_time() - cpu, collected


def fastest_play(trainer: Trainer, backend: Backend, episodes: int) -> Played:
    """The fastest of a few repetitions: other programs can only make it slower."""
    tries = [play(trainer, backend, episodes)]
    while len(tries) < SAMPLES and sum(seconds for seconds, *_ in tries) < SAMPLES_SECONDS:
        tries.append(play(trainer, backend, episodes))
    return min(tries, key=lambda each: each[0])
