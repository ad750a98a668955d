"""Measure iterations with one worker and with several, and conclude how many are worth it."""

from __future__ import annotations

import math
import threading
from contextlib import ExitStack, closing
from dataclasses import dataclass
from statistics import mean

from flame_rl.backends.select import is_distributed, local_workers, make_backend
from flame_rl.run.checkpoint import Checkpoint
from flame_rl.run.trainer import Trainer
from flame_rl.settings.config import TrainConfig, environment_of
from flame_rl.settings.environments import environment_id
from flame_rl.settings.groups import Replay
from flame_rl.system.machine import available_cores

# How many iterations are measured.
ITERATIONS = 3
# More workers are worth it where an iteration takes this part longer without them.
WORTH = 0.1


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


@dataclass(frozen=True)
class Profile:
    """The same iterations with one worker and with several, and what follows.

    Collecting with w workers is taken to last fixed + shared / w seconds, which the two
    measurements determine (Amdahl 1967, "Validity of the single processor approach to achieving
    large scale computing capabilities").

    Attributes:
        env_id, algorithm: what was trained.
        cores: the cores that all workers share; None if each has its own, on a cluster.
        one, several: what was measured.
    """

    env_id: str
    algorithm: str
    cores: int | None
    one: Measured
    several: Measured

    @property
    def speedup(self) -> float:
        """How many times as fast several workers collect as one."""
        return self.one.collecting / self.several.collecting

    @property
    def shared(self) -> float:
        """The seconds of one worker's collecting that more workers share among them."""
        saved = self.one.collecting - self.several.collecting
        part = 1 - 1 / self.several.workers
        return min(self.one.collecting, max(0.0, saved / part)) if part else 0.0

    @property
    def balance(self) -> float:
        """The number of workers with which collecting takes as long as updating; inf: collecting
        takes longer with any number."""
        spare = self.several.updating - (self.one.collecting - self.shared)
        return self.shared / spare if spare > 0 else math.inf

    @property
    def worth(self) -> int:
        """The fewest workers with which an iteration takes at most 10 % longer than with the most
        that can be of use: as many as were measured, one for each core; on a cluster one for each
        episode."""
        most = self.several.episodes
        if self.cores is not None:
            most = min(most, max(self.cores, self.several.workers))
        fixed = self.one.collecting - self.shared + self.several.updating
        limit = (1 + WORTH) * (fixed + self.shared / most)
        return next(w for w in range(1, most + 1) if fixed + self.shared / w <= limit)


def measure_profile(
    config: TrainConfig,
    stop: threading.Event,
    found: tuple[Checkpoint, list[str]] | None = None,
) -> Profile:
    """Run a few iterations as training would, on this machine or on the cluster, with one worker
    and then again with as many as `config` asks for, by default one for each core; on a cluster,
    all its executors.

    Nothing is written. With `resume`, the policy is that of the run; otherwise it is untrained, and
    an algorithm that learns from replay has no warm-up, in which it would take no gradient step.

    Args:
        config: what is measured.
        stop: ends it, when another thread sets it.
        found: see `Trainer.resume_run`.

    Raises:
        UsageError, RunError, Interrupted: as in training.
    """
    if config.output.resume is None and isinstance(config.algorithm, Replay):
        config = config.changed(warm_up_steps=0)
    if is_distributed(config):
        cores, alone, together = None, config.changed(executors=1), config
    else:
        cores, asked = available_cores(), config.execution.workers or 0
        alone = config.changed(workers=1)
        together = config.changed(workers=asked if asked > 1 else max(2, cores))
    one, several = measure(alone, stop, found), measure(together, stop, found)
    env_id = environment_id(config.experiment.env)
    return Profile(env_id, config.algorithm_name, cores, one, several)


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
