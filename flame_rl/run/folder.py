"""The folder of a run: its name, its lock, and the configuration with which the run is resumed."""

from __future__ import annotations

import fcntl
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from flame_rl.settings.checks import flag
from flame_rl.settings.config import TrainConfig, names_of
from flame_rl.settings.parse import parse
from flame_rl.system.errors import UsageError
from flame_rl.system.files import write_atomically

CONFIG_NAME = "config.json"
METRICS_NAME = "metrics.csv"
EVALUATIONS_NAME = "evaluations.csv"
CHECKPOINTS_NAME = "checkpoints"
LOCK_NAME = ".lock"


def resumed_config(folder: Path, arguments: Sequence[str]) -> TrainConfig:
    """The configuration of the run in `folder`, changed by the flags that were given.

    Args:
        folder: the run folder.
        arguments: the command line.

    Raises:
        UsageError: the folder holds no run, or a flag would change its results.
    """
    saved = saved_config(folder)
    given, _ = parse(arguments, saved)
    if different := differences(saved, given):
        raise UsageError(
            f"--resume: these flags would make it another run: {different}. Leave them "
            "out, or begin a new run"
        )
    if given.output.output != saved.output.output:
        raise UsageError(
            f"--output: a resumed run stays in its folder, {folder}; leave the flag out, or copy "
            "the folder and resume the copy"
        )
    experiment, episode = given.experiment, given.output.reproduce
    fixed = experiment.steps_per_iter is None
    if fixed and episode is not None and episode >= experiment.episodes_per_iter:
        raise UsageError(
            f"--reproduce: an episode from 0 to {experiment.episodes_per_iter - 1}, not {episode}"
        )
    return given


def saved_config(folder: Path) -> TrainConfig:
    """The configuration of the run in `folder`, to be resumed. Raises UsageError if there is
    none."""
    try:
        text = (folder / CONFIG_NAME).read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"--resume: {folder} holds no run: {error}") from error
    return TrainConfig.from_json(text).changed(resume=folder)


def differences(saved: TrainConfig, given: TrainConfig) -> str:
    """The settings of `given` that make it another run than `saved`, as text; "" if there are none.

    Settings that decide the result must stay, except for the number of iterations.
    """
    extended = replace(saved.experiment, iterations=given.experiment.iterations)
    pairs = [(extended, given.experiment), (saved.algorithm, given.algorithm)]
    return "; ".join(
        f"{flag(name)} {getattr(before, name)} in the run, {getattr(after, name)} now"
        for before, after in pairs
        for name in names_of(type(before))
        if getattr(before, name) != getattr(after, name)
    )


def check_output(config: TrainConfig) -> None:
    """Raise UsageError if --output cannot be the folder of a new run."""
    if config.output.resume is not None or config.output.output is None:
        return
    if config.output.output.exists() and not config.output.output.is_dir():
        raise UsageError(f"--output: {config.output.output} is a file; name a folder")
    metrics = config.output.output / METRICS_NAME
    begun = metrics.exists() and metrics.stat().st_size > 0
    # A run that failed in its first iteration left nothing to resume; its folder can be used again.
    if begun or any((config.output.output / CHECKPOINTS_NAME).glob("*.ckpt")):
        raise UsageError(
            f"--output: {config.output.output} holds another run; name a new folder, or go on with "
            f"--resume {config.output.output}"
        )


@contextmanager
def hold_folder(config: TrainConfig) -> Iterator[Path]:
    """The run's folder, made if it is not there; within the block no other process gets it.

    Args:
        config: names the folder by `resume` or `output`, or by default by `env` and `algorithm`.

    Raises:
        UsageError: another process holds the folder, another run is in it, or writing fails.
    """
    try:
        folder = _make_folder(config).absolute()  # an environment may change the directory
        lock = (folder / LOCK_NAME).open("ab")
    except OSError as error:
        raise UsageError(f"--output: cannot write to {error.filename}: {error}") from error
    with lock:
        try:
            # The system releases the lock when the process ends, however it ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another process is writing the run in {shown(folder, Path.cwd())}; wait for its "
                "end or stop it, or begin a new run in another folder"
            ) from error
        except OSError:
            pass  # a file system without locks
        check_output(config)  # again: another process may have held it until now
        yield folder


def write_config(folder: Path, config: TrainConfig) -> None:
    """Write config.json. Raises UsageError if it cannot be written."""
    try:
        write_atomically(folder / CONFIG_NAME, config.to_json().encode())
    except OSError as error:
        raise UsageError(f"--output: cannot write to {folder}: {error}") from error


def _make_folder(config: TrainConfig) -> Path:
    chosen = config.output.resume or config.output.output
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        return chosen
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", config.experiment.env_name)
    stem = Path("runs") / f"{name}-{config.algorithm_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = stem, 2
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            folder, number = stem.with_name(f"{stem.name}-{number}"), number + 1


def shown(folder: Path, here: Path) -> Path:
    """The folder as it is seen from where the user is."""
    return folder.relative_to(here) if folder.is_relative_to(here) else folder
