"""Report a run to an experiment tracker: Weights & Biases, MLflow or Trackio.

Where they send it, or that they stay offline, is up to their own variables of the environment, such
as WANDB_MODE and MLFLOW_TRACKING_URI.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flame_rl.report.scalars import Settings, scalars_of, settings_of
from flame_rl.run.folder import STARTS_NAME
from flame_rl.run.results import IterationResult
from flame_rl.settings.config import TrainConfig

PROJECT = "flame-rl"


@dataclass(frozen=True)
class TrackedRun:
    """A run at a tracker.

    Attributes:
        log: takes an iteration's numbers by name, and the env steps so far.
        film: takes the file of a film.
        close: ends the run.
    """

    log: Callable[[dict[str, float], int], None]
    film: Callable[[Path], None]
    close: Callable[[], None]


class TrackReporter:
    """Logs every iteration. The tracker is asked for at the first one, so that one that fails is
    left out as any reporter is."""

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        """
        Args:
            folder: the run folder, whose name is the run's.
            config: `output.track` is the tracker's name.
        """
        self._folder, self._config = folder, config
        self._run: TrackedRun | None = None

    def report(self, result: IterationResult) -> None:
        if self._run is None:
            self._run = _run_at_tracker(self._folder, self._config)
        self._run.log(scalars_of(result), result.env_steps)

    def close(self) -> None:
        if self._run is not None:
            self._run.close()


def send_film(folder: Path, config: TrainConfig, film: Path) -> None:
    """Add a film to the run at its tracker. Raises whatever the tracker does.

    Args:
        folder, config: see `TrackReporter`.
        film: its file.
    """
    run = _run_at_tracker(folder, config)
    try:
        run.film(film)
    finally:
        run.close()


def _run_at_tracker(folder: Path, config: TrainConfig) -> TrackedRun:
    start = {"wandb": wandb_run, "mlflow": mlflow_run, "trackio": trackio_run}
    return start[config.output.track](folder, settings_of(config))


def identity(folder: Path) -> str:
    """The same for a run whenever it goes on, wherever its folder is moved: 16 hexadecimal digits
    of its first start."""
    first = (folder / STARTS_NAME).read_bytes().partition(b"\n")[0]
    return hashlib.sha256(first).hexdigest()[:16]


def wandb_run(folder: Path, settings: Settings) -> TrackedRun:
    """A run of Weights & Biases, whose own files are in the run folder."""
    import wandb

    run = wandb.init(
        project=PROJECT,
        name=folder.name,
        id=identity(folder),
        dir=folder,
        config=settings,
        resume="allow",
        settings=wandb.Settings(console="off"),
    )
    # Not its own count, which a run that goes on from an earlier checkpoint cannot step back.
    run.define_metric("*", step_metric="env_steps")
    return TrackedRun(
        log=lambda numbers, steps: run.log({"env_steps": steps} | numbers),
        film=lambda path: run.log({"film": wandb.Video(str(path))}),
        close=run.finish,
    )


def mlflow_run(folder: Path, settings: Settings) -> TrackedRun:
    """A run of MLflow, found again by a tag."""
    from mlflow import MlflowClient

    client, tag = MlflowClient(), identity(folder)
    experiment = client.get_experiment_by_name(PROJECT)
    number = experiment.experiment_id if experiment else client.create_experiment(PROJECT)
    found = client.search_runs([number], f"tags.flame_rl = '{tag}'", max_results=1)
    if found:
        run = found[0].info.run_id
        client.set_terminated(run, "RUNNING")
    else:
        run = client.create_run(number, run_name=folder.name, tags={"flame_rl": tag}).info.run_id
        for name, value in settings.items():
            client.log_param(run, name, value)

    def log(numbers: dict[str, float], steps: int) -> None:
        for name, value in numbers.items():
            client.log_metric(run, name, value, step=steps)

    return TrackedRun(
        log=log,
        film=lambda path: client.log_artifact(run, str(path), "films"),
        close=lambda: client.set_terminated(run),
    )


def trackio_run(folder: Path, settings: Settings) -> TrackedRun:
    """A run of Trackio, whose database is on this machine."""
    import trackio

    run = trackio.init(
        PROJECT,
        name=f"{folder.name}-{identity(folder)}",
        config=settings,
        resume="allow",
        embed=False,
        auto_log_cpu=False,
        auto_log_gpu=False,
    )
    return TrackedRun(
        log=lambda numbers, steps: run.log(numbers, step=steps),
        film=lambda path: run.log({"film": trackio.Video(str(path))}),
        close=run.finish,
    )
