"""Measure iterations with one worker and with several."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from statistics import mean
from typing import NamedTuple

from flame_rl.backends.select import is_distributed, local_workers, make_backend
from flame_rl.run.checkpoint import Checkpoint
from flame_rl.run.trainer import Trainer
from flame_rl.settings.algorithms import Replay
from flame_rl.settings.config import TrainConfig, environment_of
from flame_rl.system.machine import available_cores

# How many iterations are measured.
_ITERATIONS = 3


class Measured(NamedTuple):
    """A mean iteration with a number of workers (processes on this machine, or executors), in
    seconds of collecting and of updating, and env steps per second of collecting."""

    workers: int
    episodes: int
    env_steps: float
    collecting: float
    updating: float
    env_steps_per_second: float


def measure_both(
    config: TrainConfig, stop: threading.Event, found: tuple[Checkpoint, list[str]] | None = None
) -> list[Measured]:
    """Run the same few iterations as training would, with one worker, and with as many as `config`
    asks for: by default one for each core, and on a cluster all its executors. Nothing is written.

    `found` is as in `Trainer.resume_run`. Without it the policy is untrained, and replay has no
    warm-up, in which there would be no gradient step. Raises as training does.
    """
    if config.output.resume is None and isinstance(config.algorithm, Replay):
        config = config.changed(warm_up_steps=0)
    both = [config.changed(executors=1), config]
    if not is_distributed(config):
        asked = config.execution.workers or 0
        several = asked if asked > 1 else max(2, available_cores())
        both = [config.changed(workers=number) for number in (1, several)]
    return [_measure(each, stop, found) for each in both]


def _measure(
    config: TrainConfig, stop: threading.Event, found: tuple[Checkpoint, list[str]] | None
) -> Measured:
    """Run iterations where `config` says. The first, in which workers start, does not count."""
    with ExitStack() as ending:
        # First, so that workers start while torch is imported.
        backend = ending.enter_context(closing(make_backend(config, stop)))
        here = config.changed(local=True, workers=0)
        trainer = ending.enter_context(Trainer(here, stop=stop, reports=True))
        trainer.resume_run(found)
        backend.describe(environment_of(trainer.config, trainer.spec.env_id))
        workers = backend.executors if is_distributed(config) else local_workers(config)
        first, *results = [trainer.iterate(backend) for _ in range(1 + _ITERATIONS)]
    episodes = round((results[-1].episodes - first.episodes) / _ITERATIONS)
    env_steps = (results[-1].env_steps - first.env_steps) / _ITERATIONS
    collecting = mean(result.timing.collecting for result in results)
    updating = mean(result.timing.updating for result in results)
    return Measured(workers, episodes, env_steps, collecting, updating, env_steps / collecting)
