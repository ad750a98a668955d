"""starts.jsonl in a run folder: a line for each time that the run began or went on."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import flame_rl
from flame_rl.run.saved.checkpoint import library_versions
from flame_rl.system.errors import UsageError
from flame_rl.system.files import why_refused

STARTS_NAME = "starts.jsonl"
_GIT_SECONDS = 5.0


def record_start(folder: Path, arguments: Sequence[str], iterations: int) -> None:
    """Add a line: when, by which command, after how many iterations, with which code and versions.

    Args:
        folder: the run folder.
        arguments: the words of the command line.
        iterations: those that were done before.

    Raises:
        UsageError: the folder cannot be written to.
    """
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(["main.py", *arguments]),
        "iterations": iterations,
        "flame_rl": package_version(),
        "versions": library_versions(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
    try:
        with (folder / STARTS_NAME).open("a") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise UsageError(f"--output: cannot write to {folder}: {why_refused(error)}") from error


def package_version() -> str:
    """The package's version and, in a git repository of its own, the commit, with "changed" where
    files differ from it."""
    root = Path(flame_rl.__file__).parent.parent
    # A hook of git sets variables that name another repository.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
        )
        return done.stdout.strip()

    try:
        if not (root / ".git").exists():
            return flame_rl.__version__
        commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain")
    except (OSError, subprocess.SubprocessError):  # there is no git, or it may not be read
        return flame_rl.__version__
    return f"{flame_rl.__version__}, commit {commit}{', changed' if changes else ''}"
