"""Measure iterations with one worker and with several."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from dataclasses import dataclass
from statistics import mean

from flame_rl.backends.select import is_distributed, local_workers, make_backend
from flame_rl.run.checkpoint import Checkpoint
from flame_rl.run.trainer import Trainer
from flame_rl.settings.algorithms import Replay
from flame_rl.settings.config import TrainConfig, environment_of
from flame_rl.system.machine import available_cores

# How many iterations are measured.
ITERATIONS = 3


@dataclass(frozen=True)
class Measured:
    """A mean iteration with a number of workers: processes on this machine, or executors of a
    cluster. `collecting` and `updating` are in seconds; `env_steps_per_second` is the rate of
    collecting."""

    workers: int
    episodes: int
    env_steps: float
    collecting: float
    updating: float
    env_steps_per_second: float


def measure_both(
    config: TrainConfig, stop: threading.Event, found: tuple[Checkpoint, list[str]] | None = None
) -> tuple[Measured, Measured]:
    """Run the same few iterations as training would, with one worker, and with as many as `config`
    asks for: by default one for each core, and on a cluster all its executors. Nothing is written.

    Args:
        config: what is measured. Without `resume` the policy is untrained, and an algorithm that
            learns from replay has no warm-up, in which it would take no gradient step.
        stop: ends it, when another thread sets it.
        found: see `Trainer.resume_run`.

    Raises:
        UsageError, RunError, Interrupted: as in training.
    """
    if config.output.resume is None and isinstance(config.algorithm, Replay):
        config = config.changed(warm_up_steps=0)
    if is_distributed(config):
        both = config.changed(executors=1), config
    else:
        asked = config.execution.workers or 0
        several = asked if asked > 1 else max(2, available_cores())
        both = config.changed(workers=1), config.changed(workers=several)
    one, several = (measure(each, stop, found) for each in both)
    return one, several


def measure(
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
        first, *results = [trainer.iterate(backend) for _ in range(1 + ITERATIONS)]
    env_steps = (results[-1].env_steps - first.env_steps) / ITERATIONS
    collecting = mean(result.timing.collecting for result in results)
    return Measured(
        workers=workers,
        episodes=round((results[-1].episodes - first.episodes) / ITERATIONS),
        env_steps=env_steps,
        collecting=collecting,
        updating=mean(result.timing.updating for result in results),
        env_steps_per_second=env_steps / collecting,
    )
