"""The folder of a run: where it is, that no two runs share one, and how a run is taken up again."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flame_rl.config import TrainConfig
from flame_rl.errors import UsageError
from flame_rl.files import write_atomically

CONFIG_NAME = "config.json"

# What a resumed run may do otherwise, because no result depends on it.
MAY_CHANGE = {
    *("iterations", "local", "workers", "plot", "output", "resume", "reproduce", "simulator"),
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
    different = [
        f"--{field.name.replace('_', '-')} {before} in the run, {after} now"
        for field in dataclasses.fields(TrainConfig)
        if field.name not in MAY_CHANGE
        and (before := getattr(saved, field.name)) != (after := getattr(given, field.name))
    ]
    if different:
        raise UsageError(
            f"--resume: these flags would make it another run: {'; '.join(different)}. Leave them "
            "out, or begin a new run"
        )
    if given.reproduce is not None and given.reproduce >= given.episodes_per_iter:
        raise UsageError(
            f"--reproduce: an episode from 0 to {given.episodes_per_iter - 1}, "
            f"not {given.reproduce}"
        )
    return given


def choose_folder(config: TrainConfig, algorithm: str) -> Path:
    """The run's folder, not made yet. Raises UsageError if it holds another run.

    Args:
        config: `resume`, `output`, or for the default name, `env`.
        algorithm: part of the default name.
    """
    if config.resume is not None:
        return config.resume
    if config.output is None:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", config.env)
        stem = Path("runs") / f"{name}-{algorithm}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder, number = stem, 2
        while folder.exists():
            folder, number = stem.with_name(f"{stem.name}-{number}"), number + 1
        return folder
    if config.output.exists() and not config.output.is_dir():
        raise UsageError(f"--output: {config.output} is a file; name a folder")
    if (config.output / CONFIG_NAME).exists():
        raise UsageError(
            f"--output: {config.output} holds another run; name a new folder, or go on with "
            f"--resume {config.output}"
        )
    return config.output


def make_folder(folder: Path, config: TrainConfig) -> None:
    """Make it and write config.json. Raises UsageError if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stored = replace(config, resume=None, reproduce=None)
        write_atomically(folder / CONFIG_NAME, stored.to_json().encode())
    except OSError as error:
        raise UsageError(f"--output: cannot write to {folder}: {error}") from error
