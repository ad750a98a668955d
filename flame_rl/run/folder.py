"""The folder of a run: where it is, that no two runs share one, and how a run is taken up again."""

from __future__ import annotations

import dataclasses
import fcntl
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.system.files import write_atomically

CONFIG_NAME = "config.json"
METRICS_NAME = "metrics.csv"
CHECKPOINTS_NAME = "checkpoints"
LOCK_NAME = ".lock"

# What a resumed run may do otherwise, because no result depends on it.
MAY_CHANGE = {
    *("iterations", "local", "workers", "executors", "output", "resume", "reproduce", "simulator"),
    *("plot", "verbose", "tensorboard"),
    *("task_timeout", "worker_episodes", "worker_megabytes", "cluster_patience"),
    *("checkpoint_every", "keep_checkpoints"),
}


def resumed_config(folder: Path, parse: Callable[[TrainConfig], TrainConfig]) -> TrainConfig:
    """The configuration of the run in `folder`, changed by the flags that were given.

    Args:
        folder: the run folder.
        parse: reads the command line with the given configuration as defaults.

    Raises:
        UsageError: it holds no run, or a flag would change its results.
    """
    path = folder / CONFIG_NAME
    try:
        saved = TrainConfig.from_json(path.read_text(errors="replace"))
    except OSError as error:
        raise UsageError(f"--resume: {folder} holds no run: {error}") from error
    given = parse(replace(saved, resume=folder, reproduce=None))
    different = differences(saved, given)
    if different:
        raise UsageError(
            f"--resume: these flags would make it another run: {different}. Leave them "
            "out, or begin a new run"
        )
    fixed = given.steps_per_iter is None
    if fixed and given.reproduce is not None and given.reproduce >= given.episodes_per_iter:
        raise UsageError(
            f"--reproduce: an episode from 0 to {given.episodes_per_iter - 1}, "
            f"not {given.reproduce}"
        )
    return given


def differences(saved: TrainConfig, given: TrainConfig) -> str:
    """What would make `given` another run than `saved`, for a person; empty if nothing."""
    return "; ".join(
        f"--{field.name.replace('_', '-')} {before} in the run, {after} now"
        for field in dataclasses.fields(TrainConfig)
        if field.name not in MAY_CHANGE
        and (before := getattr(saved, field.name)) != (after := getattr(given, field.name))
    )


def check_output(config: TrainConfig) -> None:
    """Raises UsageError if --output names what cannot be the folder of a new run."""
    if config.resume is not None or config.output is None:
        return
    if config.output.exists() and not config.output.is_dir():
        raise UsageError(f"--output: {config.output} is a file; name a folder")
    metrics = config.output / METRICS_NAME
    begun = metrics.exists() and metrics.stat().st_size > 0
    # One that failed in its first iteration has left nothing to go on with.
    if begun or any((config.output / CHECKPOINTS_NAME).glob("*.ckpt")):
        raise UsageError(
            f"--output: {config.output} holds another run; name a new folder, or go on with "
            f"--resume {config.output}"
        )


@contextmanager
def hold_folder(config: TrainConfig) -> Iterator[Path]:
    """The run's folder, made if it is not there; within the block no other process gets it.

    Args:
        config: `resume`, `output`, or for the default name, `env` and `algorithm`.

    Raises:
        UsageError: another process has it, it holds another run, or it cannot be written.
    """
    try:
        folder = _make_folder(config)
        lock = (folder / LOCK_NAME).open("ab")
    except OSError as error:
        raise UsageError(f"--output: cannot write to {error.filename}: {error}") from error
    with lock:
        try:
            # Gone with the process, however that ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another process is writing the run in {folder}; wait for its end or stop it, "
                "or begin a new run in another folder"
            ) from error
        except OSError:
            pass  # a file system that knows no locks
        check_output(config)  # again: another process may have held it until now
        yield folder


def write_config(folder: Path, config: TrainConfig) -> None:
    """Write config.json. Raises UsageError if it cannot be written."""
    stored = replace(config, resume=None, reproduce=None)
    try:
        write_atomically(folder / CONFIG_NAME, stored.to_json().encode())
    except OSError as error:
        raise UsageError(f"--output: cannot write to {folder}: {error}") from error


def _make_folder(config: TrainConfig) -> Path:
    chosen = config.resume or config.output
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        return chosen
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", config.env_name)
    stem = Path("runs") / f"{name}-{config.algorithm}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = stem, 2
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            folder, number = stem.with_name(f"{stem.name}-{number}"), number + 1
