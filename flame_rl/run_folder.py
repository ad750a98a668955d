"""The folder of a run: where it is, and that no two runs share one."""

from __future__ import annotations

import re
import time
from pathlib import Path

from flame_rl.config import TrainConfig
from flame_rl.errors import UsageError

CONFIG_NAME = "config.json"


def choose_folder(config: TrainConfig, algorithm: str) -> Path:
    """The run's folder, not made yet. Raises UsageError if it holds another run.

    Args:
        config: `output`, or for the default name, `env`.
        algorithm: part of the default name.
    """
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
        raise UsageError(f"--output: {config.output} holds another run; name a new folder")
    return config.output


def make_folder(folder: Path, config: TrainConfig) -> None:
    """Make it and write config.json. Raises UsageError if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / CONFIG_NAME).open("x") as file:
            file.write(config.to_json())
    except FileExistsError as error:
        raise UsageError(f"--output: {folder} holds another run; name a new folder") from error
    except OSError as error:
        raise UsageError(f"--output: cannot write to {folder}: {error}") from error
