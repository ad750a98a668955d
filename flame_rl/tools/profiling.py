"""Measure iterations with one worker and with several, and conclude how many are worth it."""

from __future__ import annotations

import math
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from statistics import mean

from flame_rl.backends.select import is_distributed, local_workers, make_backend
from flame_rl.run.iteration import environment_of, run_iteration
from flame_rl.run.trainer import Trainer, one_thread
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.environments import environment_id
from flame_rl.system.cores import available_cores

# A measurement ends after this many iterations, or once they have taken this long.
ITERATIONS, SECONDS = 3, 10.0
# More workers are worth it where an iteration takes this part longer without them.
WORTH = 0.1


@dataclass(frozen=True)
class Measured:
    """A mean iteration with a number of workers.

    Attributes:
        workers: processes on this machine, or executors of a cluster.
        iterations: how many were measured.
        episodes, env_steps: collected in an iteration.
        collecting, updating: seconds.
        env_steps_per_second: env steps of a second of collecting.
        bytes_out, bytes_in: sent to the workers and received from them.
    """

    workers: int
    iterations: int
    episodes: float
    env_steps: float
    collecting: float
    updating: float
    env_steps_per_second: float
    bytes_out: float
    bytes_in: float


@dataclass(frozen=True)
class Profile:
    """The same iterations with one worker and with several, and what follows.

    Collecting with w workers is taken to last `fixed` + `shared` / w seconds, which the two
    measurements determine (Amdahl 1967, "Validity of the single processor approach to achieving
    large scale computing capabilities").

    Attributes:
        env_id: the Gymnasium id.
        algorithm: the algorithm's name.
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
    def fixed(self) -> float:
        """The seconds of collecting that stay with any number of workers."""
        return self.one.collecting - self.shared

    @property
    def balance(self) -> float:
        """The number of workers with which collecting takes as long as updating; inf: collecting
        takes longer with any number."""
        spare = self.several.updating - self.fixed
        return self.shared / spare if spare > 0 else math.inf

    @property
    def worth(self) -> int:
        """The fewest workers with which an iteration takes at most 10 % longer than with the most
        that can be of use: as many as were measured, one for each core; on a cluster one for each
        episode."""
        most = int(self.several.episodes)
        if self.cores is not None:
            most = min(most, max(self.cores, self.several.workers))
        seconds = [
            self.fixed + self.shared / workers + self.several.updating
            for workers in range(1, most + 1)
        ]
        return 1 + next(i for i, taken in enumerate(seconds) if taken <= (1 + WORTH) * seconds[-1])


def measure_profile(config: TrainConfig, stop: threading.Event) -> Profile:
    """Run a few iterations as training would, on this machine or on the cluster, with several
    workers, and the same ones again with one.

    Several are as many as `config` asks for, or a worker for each core; on a cluster, all its
    executors. Nothing is written. With `resume`, the policy is that of the run; otherwise it is
    untrained, and an algorithm that learns from replay has no warm-up, in which it would take no
    gradient step.

    Raises:
        UsageError, RunError: as in training.
        Interrupted: `stop` was set.
    """
    if config.output.resume is None and hasattr(config.algorithm, "warm_up_steps"):
        config = config.changed(warm_up_steps=0)
    if is_distributed(config):
        cores, alone, together = None, config.changed(executors=1), config
    else:
        cores, asked = available_cores(), config.execution.workers or 0
        alone = config.changed(workers=1)
        together = config.changed(workers=asked if asked > 1 else max(2, cores))
    several = measure(together, stop, ITERATIONS, SECONDS)
    one = measure(alone, stop, several.iterations, math.inf)
    env_id = environment_id(config.experiment.env)
    return Profile(env_id, config.algorithm_name, cores, one, several)


def measure(
    config: TrainConfig, stop: threading.Event, iterations: int, seconds: float
) -> Measured:
    """Run iterations where `config` says, after one in which workers start.

    Args:
        config: a training run's.
        stop: as in `measure_profile`.
        iterations: how many to measure.
        seconds: no other begins after this time.
    """
    with ExitStack() as ending:
        # First, so that workers start while torch is imported.
        backend = ending.enter_context(closing(make_backend(config, stop)))
        here = config.changed(local=True, workers=0)
        trainer = ending.enter_context(Trainer(here, stop=stop, reports=True))
        trainer.resume_run()
        backend.describe(environment_of(config, trainer.spec.env_id))
        workers = backend.executors if is_distributed(config) else local_workers(config)
        with one_thread():
            results = [run_iteration(trainer, backend)]
            began = time.perf_counter()
            while len(results) <= iterations and time.perf_counter() - began < seconds:
                results.append(run_iteration(trainer, backend))
    first, last = results[0], results[-1]
    timings = [result.timing for result in results[1:]]
    count = len(timings)
    env_steps = (last.env_steps - first.env_steps) / count
    collecting = mean(timing.collecting for timing in timings)
    return Measured(
        workers=workers,
        iterations=count,
        episodes=(last.episodes - first.episodes) / count,
        env_steps=env_steps,
        collecting=collecting,
        updating=mean(timing.updating for timing in timings),
        env_steps_per_second=env_steps / collecting,
        bytes_out=mean(timing.bytes_out for timing in timings),
        bytes_in=mean(timing.bytes_in for timing in timings),
    )
