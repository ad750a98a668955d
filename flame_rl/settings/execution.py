"""Settings of where a run is computed, and of what it writes and shows. Only the device changes a
result."""

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
    """Where networks are computed and episodes are collected, and the limits of workers. It changes
    no result, except that each device rounds in its own way."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the learner computes its networks. cuda: on the graphics card; auto: on the card, if
    there is one, for pictures, memory and very large layers. A resumed run stays on its device."""

    local: bool = False
    """Collect on this machine even where a Flame cluster is configured."""

    workers: CountOrZero | None = None
    """Local worker processes; none: one for each core; 0: collect in this process, so that a
    breakpoint in the collector works."""

    executors: Count | None = None
    """Executors of a Flame cluster; none: one for every core that it offers. A given number claims
    no core, for simulators that wait and do not compute, and half of the cluster's memory."""

    workers_per_executor: Count = 1
    """Processes that play inside each executor, which has as many cores: less work for learner and
    cluster where there are hundreds of cores."""

    executor_packages: Literal["install", "image"] = "install"
    """Where executors have NumPy, Gymnasium and MuJoCo from, in the learner's versions. install:
    their nodes install them; image: they are there."""

    simulator: Literal["auto", "plain", "fast"] = "auto"
    """Simulator of the environment. plain: Gymnasium; fast: a faster one with the same bits,
    for cartpole, halfcheetah, hopper, walker2d and ant; auto: fast where that is possible."""

    strict: bool = False
    """End a run at its start, and do not only warn, where an environment gives another episode for
    the same seed and actions."""

    slots: Count | None = None
    """Most environments side by side in each process, or executor; none: 32, or as many as fit into
    a gigabyte. 1, with --workers 1: one alone, as a port, a licence or a robot needs it."""

    task_timeout: Annotated[float, within(1e-9, 1e6, "above 0, up to 1000000")] | None = None
    """Seconds after which a worker that gives no answer is killed and its episodes are collected
    again; none: ten times the longest task so far, at least a minute; 600 at first."""

    worker_episodes: Count = 100_000
    """A worker process is replaced after this number of episodes."""

    worker_megabytes: Count = 4096
    """A worker process that has taken more memory than this is replaced."""

    cluster_patience: Positive = 120.0
    """Seconds without a result, or an executor at work on one, after which a cluster ends the
    run."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Output:
    """What a run writes and shows, and which run it resumes. It changes no result."""

    output: Path | None = None
    """Run folder; none: runs/<env>-<algorithm>-<time>."""

    resume: Path | None = None
    """Go on with the run in this folder, or from this checkpoint in one. It needs no other flag."""

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
