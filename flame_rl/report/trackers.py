"""Report a run to TensorBoard, Weights & Biases, MLflow or Trackio. Where trackers send a run is up
to their own variables, such as WANDB_MODE and MLFLOW_TRACKING_URI."""

import hashlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

from flame_rl.run.folder import STARTS_NAME
from flame_rl.run.results import SPREAD, IterationResult
from flame_rl.settings.config import TrainConfig

PROJECT = "flame-rl"

# How long the run waits for a tracker: at its start and end, for numbers, and once it is to stop.
_START_SECONDS, _LOG_SECONDS, _STOP_SECONDS = 60.0, 10.0, 3.0

Settings = dict[str, str | float | bool]


def numbers_of(result: IterationResult) -> dict[str, Mapping[str, float]]:
    """Returns, metrics of the update, the evaluation where there was one, and times, by name."""
    timing = result.timing
    rewards = {name: getattr(result, f"reward_{name}") for name in SPREAD}
    groups: dict[str, Mapping[str, float]] = {
        "reward": rewards | result.reward_parts,
        "outcome": result.outcomes,
        "episodes": {"length_mean": result.length_mean, "total": result.episodes},
        "update": result.metrics,
        "speed": {"env_steps_per_second": timing.env_steps_per_second},
        "seconds": {name: getattr(timing, name) for name in ("collecting", "updating", "waiting")},
    }
    if result.evaluation is not None:
        groups["seconds"]["evaluating"] = timing.evaluating
        groups["evaluation"] = result.evaluation.numbers()
    return groups


def _settings_of(config: TrainConfig) -> Settings:
    """The settings that decide the result, by name; of a list its words, of None the word none."""
    sections = config.to_data()
    values = sections["experiment"] | sections["algorithm"]
    values["algorithm"] = values.pop("name")
    lists = {n: " ".join(map(str, v)) for n, v in values.items() if isinstance(v, list | tuple)}
    return {name: "none" if v in (None, "") else v for name, v in (values | lists).items()}


@dataclass(frozen=True)
class TrackedRun:
    """A run at a tracker: `log` takes an iteration's numbers by name and the env steps so far,
    `film` the file of a film; `close` ends the run."""

    log: Callable[[dict[str, float], int], None]
    film: Callable[[Path], None]
    close: Callable[[], None]


class TrackReporter:
    """Logs every iteration. The tracker is asked for at the first one, so that one that fails is
    left out as any reporter is. It has a thread of its own: no run waits for one that blocks."""

    def __init__(self, folder: Path, config: TrainConfig, tracker: str, stop: Event) -> None:
        """The run folder, whose name is the run's, and the tracker's name, or tensorboard."""
        self._start = partial(_start, folder, config, tracker)
        self._tracker, self._stop = tracker, stop
        self._run: TrackedRun | None = None
        self._thread = ThreadPoolExecutor(1)
        self._asked = self._thread.submit(lambda: None)  # the latest call

    def report(self, result: IterationResult) -> None:
        groups = numbers_of(result).items()
        named = {f"{group}/{name}": n for group, own in groups for name, n in own.items()}
        # Of one that blocks, what is logged is kept for later.
        seconds = _START_SECONDS if self._run is None else _LOG_SECONDS
        seconds = seconds if self._asked.done() else 0.0
        self._ask(partial(self._log, named, result.env_steps), seconds)

    def close(self) -> None:
        seconds = _START_SECONDS if self._asked.done() else _LOG_SECONDS
        self._ask(lambda: self._run and self._run.close(), seconds)

    def _log(self, numbers: dict[str, float], steps: int) -> None:
        if self._run is None:
            self._run = self._start(steps)
        self._run.log(numbers, steps)

    def _ask(self, call: Callable[[], None], seconds: float) -> None:
        """Let the thread make a call, after those before. Raises what the tracker does, and
        TimeoutError if they take longer; the thread then goes on."""
        self._asked = self._thread.submit(call)
        until = time.monotonic() + seconds
        while not self._asked.done() and time.monotonic() < until and not self._stop.is_set():
            wait([self._asked], timeout=0.1)
        if self._stop.is_set():
            wait([self._asked], timeout=min(seconds, _STOP_SECONDS))
        if not self._asked.done():
            raise TimeoutError(f"{self._tracker} does not answer; the run no longer waits for it")
        self._asked.result()


def send_film(folder: Path, config: TrainConfig, film: Path) -> None:
    """Add a film's file to the run at its tracker. Raises whatever the tracker does."""
    run = _start(folder, config, config.output.track, 0)
    try:
        run.film(film)
    finally:
        run.close()


def _start(folder: Path, config: TrainConfig, tracker: str, first_step: int) -> TrackedRun:
    settings = _settings_of(config)
    if tracker == "tensorboard":
        return _tensorboard(folder, settings, first_step)
    # The same for a run whenever it goes on, wherever its folder is moved: of its first start.
    first = (folder / STARTS_NAME).read_bytes().partition(b"\n")[0]
    identity = hashlib.sha256(first).hexdigest()[:16]
    start = {"wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}[tracker]
    return start(folder, identity, settings)


def _tensorboard(folder: Path, settings: Settings, first_step: int) -> TrackedRun:
    """Files of events in the run folder. The first step of one replaces what earlier ones have from
    there on: a run that goes on from an earlier checkpoint computes it again."""
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    writer = SummaryWriter(folder / "tensorboard", purge_step=first_step)
    for summary in hparams(settings, {}):
        writer.file_writer.add_summary(summary)

    def log(numbers: dict[str, float], steps: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, steps)
        writer.flush()

    return TrackedRun(log=log, film=lambda path: None, close=writer.close)


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
    import mlflow

    mlflow.set_experiment(PROJECT)
    tag = {"flame_rl": identity}
    query = f"tags.flame_rl = '{identity}'"
    if found := mlflow.search_runs(filter_string=query, output_format="list"):
        mlflow.start_run(found[0].info.run_id)
    else:
        mlflow.start_run(run_name=folder.name, tags=tag)
        mlflow.log_params(settings)
    return TrackedRun(
        log=lambda numbers, steps: mlflow.log_metrics(numbers, step=steps),
        film=lambda path: mlflow.log_artifact(str(path), "films"),
        close=mlflow.end_run,
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
