"""Report a run to Weights & Biases, MLflow or Trackio; and the numbers and settings that they and
TensorBoard get. Where trackers send a run is up to their own variables, such as WANDB_MODE and
MLFLOW_TRACKING_URI.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flame_rl.run.folder import STARTS_NAME
from flame_rl.run.results import IterationResult
from flame_rl.settings.config import TrainConfig

PROJECT = "flame-rl"

Settings = dict[str, str | float | bool]


def scalars_of(result: IterationResult) -> dict[str, float]:
    """Returns, metrics of the update, the evaluation where there was one, and times, by name."""
    timing = result.timing
    rewards = {name: getattr(result, f"reward_{name}") for name in ("mean", "std", "min", "max")}
    groups: dict[str, Mapping[str, float]] = {
        "reward": rewards | result.reward_parts,
        "outcome": result.outcomes,
        "episodes": {"length_mean": result.length_mean, "total": result.episodes},
        "update": result.losses,
        "speed": {"env_steps_per_second": timing.env_steps_per_second},
        "seconds": {name: getattr(timing, name) for name in ("collecting", "updating", "waiting")},
    }
    if result.evaluation is not None:
        groups["seconds"]["evaluating"] = timing.evaluating
        groups["evaluation"] = result.evaluation.numbers()
    return {
        f"{group}/{name}": n for group, numbers in groups.items() for name, n in numbers.items()
    }


def settings_of(config: TrainConfig) -> Settings:
    """The settings that decide the result, by name; of a list its words, of None the word none."""
    sections = config.to_data()
    values = sections["experiment"] | sections["algorithm"]
    values["algorithm"] = values.pop("name")
    for name, value in values.items():
        if isinstance(value, list | tuple):
            values[name] = " ".join(map(str, value)) or "none"
        elif value is None:
            values[name] = "none"
    return values


@dataclass(frozen=True)
class TrackedRun:
    """A run at a tracker: `log` takes an iteration's numbers by name and the env steps so far,
    `film` the file of a film; `close` ends the run."""

    log: Callable[[dict[str, float], int], None]
    film: Callable[[Path], None]
    close: Callable[[], None]


class TrackReporter:
    """Logs every iteration. The tracker is asked for at the first one, so that one that fails is
    left out as any reporter is."""

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        """The run folder, whose name is the run's; `config.output.track` is the tracker's name."""
        self._folder, self._config = folder, config
        self._run: TrackedRun | None = None

    def report(self, result: IterationResult) -> None:
        if self._run is None:
            self._run = _start(self._folder, self._config)
        self._run.log(scalars_of(result), result.env_steps)

    def close(self) -> None:
        if self._run is not None:
            self._run.close()


def send_film(folder: Path, config: TrainConfig, film: Path) -> None:
    """Add the file of a film to the run at its tracker; see `TrackReporter`. Raises whatever the
    tracker does."""
    run = _start(folder, config)
    try:
        run.film(film)
    finally:
        run.close()


def _start(folder: Path, config: TrainConfig) -> TrackedRun:
    start = {"wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}
    # The same for a run whenever it goes on, wherever its folder is moved: of its first start.
    first = (folder / STARTS_NAME).read_bytes().partition(b"\n")[0]
    identity = hashlib.sha256(first).hexdigest()[:16]
    return start[config.output.track](folder, identity, settings_of(config))


def _wandb(folder: Path, identity: str, settings: Settings) -> TrackedRun:
    """A run of Weights & Biases, whose own files are in the run folder."""
    import wandb

    quiet = wandb.Settings(console="off")
    names = {"project": PROJECT, "name": folder.name, "id": identity}
    run = wandb.init(**names, dir=folder, config=settings, resume="allow", settings=quiet)
    # Not its own count, which a run that goes on from an earlier checkpoint cannot step back.
    run.define_metric("*", step_metric="env_steps")
    return TrackedRun(
        log=lambda numbers, steps: run.log({"env_steps": steps} | numbers),
        film=lambda path: run.log({"film": wandb.Video(str(path))}),
        close=run.finish,
    )


def _mlflow(folder: Path, identity: str, settings: Settings) -> TrackedRun:
    """A run of MLflow, found again by a tag."""
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name(PROJECT)
    number = experiment.experiment_id if experiment else client.create_experiment(PROJECT)
    found = client.search_runs([number], f"tags.flame_rl = '{identity}'", max_results=1)
    if found:
        run = found[0].info.run_id
        client.set_terminated(run, "RUNNING")
    else:
        tags = {"flame_rl": identity}
        run = client.create_run(number, run_name=folder.name, tags=tags).info.run_id
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


def _trackio(folder: Path, identity: str, settings: Settings) -> TrackedRun:
    """A run of Trackio, whose database is on this machine."""
    import trackio

    quiet = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}
    name = f"{folder.name}-{identity}"
    run = trackio.init(PROJECT, name=name, config=settings, resume="allow", **quiet)
    return TrackedRun(
        log=lambda numbers, steps: run.log(numbers, step=steps),
        film=lambda path: run.log({"film": trackio.Video(str(path))}),
        close=run.finish,
    )
