"""Settings of where a run is computed, and of what it writes. Only the device changes a result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from flame_rl.settings.checks import (
    RARE,
    Count,
    CountOrZero,
    Positive,
    Seed,
    check_fields,
    refuse,
    within,
)


@dataclass(frozen=True)
class Execution:
    """Where networks are computed and episodes are collected, and the limits of workers. Changes no
    result, except that each device rounds in its own way."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where networks learn; auto: on a graphics card for pictures, memory and very large layers."""

    local: bool = False
    """Collect on this machine even where a Flame cluster is configured."""

    workers: CountOrZero | None = None
    """Local worker processes; none: one for each core; 0: collect in the learner's own process."""

    executors: Count | None = None
    """Executors of a Flame cluster; none: one for every core that it offers."""

    workers_per_executor: Count = 1
    """Processes that play inside each executor, which has as many cores."""

    executor_packages: Literal["install", "image"] = "install"
    """Executors install the learner's NumPy, Gymnasium and MuJoCo, or their image has them."""

    simulator: Literal["auto", "plain", "fast"] = "auto"
    """Gymnasium's simulator, a faster one with the same bits, or that where there is one."""

    strict: bool = False
    """Refuse, and do not only warn, if the same seed and actions give another episode."""

    slots: Count | None = None
    """Most environments side by side in a process; none: 32, or as many as a gigabyte holds."""

    task_timeout: Annotated[float, within(1e-9, 1e6, "above 0, up to 1000000")] | None = None
    """Seconds until a silent worker is killed and its episodes are collected again; none: ten times
    the longest task so far, at least a minute; 600 at first."""

    worker_episodes: Count = 100_000
    """A worker process is replaced after this number of episodes."""

    worker_megabytes: Count = 4096
    """A worker process that has taken more memory than this is replaced."""

    cluster_patience: Positive = 120.0
    """Seconds without a result, or an executor at work on one, after which the run ends."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Output:
    """What a run writes and shows, and which run it resumes. It changes no result."""

    output: Path | None = None
    """Run folder; none: runs/<env>-<algorithm>-<time>."""

    resume: Path | None = None
    """Go on with the run in this folder, or from this checkpoint in one; needs no other flag."""

    seeds: Annotated[tuple[Seed, ...], RARE] = ()
    """A run for each of these seeds, side by side, in --output/seed-0 and so on."""

    verbose: bool = False
    """Print more about every iteration: spread of returns, metrics, speed, seconds by phase."""

    tensorboard: bool = False
    """Write returns, metrics and timings for TensorBoard into the run folder."""

    track: Annotated[Literal["wandb", "mlflow", "trackio"] | None, RARE] = None
    """Report settings and every iteration to an experiment tracker."""

    plot: bool = False
    """Draw curves.png at the end, and show it where there is a display."""

    checkpoint_every: Count = 10
    """Iterations between two checkpoints; the last state is saved in any case."""

    keep_checkpoints: Count = 3
    """Number of latest checkpoints to keep, besides the best."""

    reproduce: CountOrZero | None = None
    """With --resume: collect only this episode of the next iteration, in this process."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.reproduce is not None and self.resume is None:
            refuse("reproduce", "with --resume, an episode of an iteration", self.reproduce)
        if len(set(self.seeds)) < len(self.seeds) or (self.seeds and self.resume is not None):
            refuse("seeds", "each once, and for new runs alone", self.seeds)
