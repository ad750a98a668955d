"""Several seeds side by side: a process of main.py for each, as if it had been typed alone."""

from __future__ import annotations

import ctypes
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import flame_rl
from flame_rl.report.runs import RunRow, grid, read_row
from flame_rl.run.folder import check_output, is_held, make_folder, path_to_show
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.system.files import why_refused
from flame_rl.system.machine import available_cores
from flame_rl.system.output import say, warn
from flame_rl.system.signals import StopSignal

# To Linux's prctl: the signal that comes once the parent is gone.
_PR_SET_PDEATHSIG = 1
_C = ctypes.CDLL(None)
_MAIN = Path(flame_rl.__file__).parent.parent / "main.py"
# Flags whose values each seed has of its own.
_OWN = ("--seeds", "--output", "--workers")
_POLL_SECONDS = 0.1
# A line about all seeds this often.
_LINE_SECONDS = 30.0


@dataclass(frozen=True)
class SideRun:
    """One of several runs side by side.

    Attributes:
        name: in the lines about it.
        folder: its run folder.
        words: of its command line.
    """

    name: str
    folder: Path
    words: tuple[str, ...]

    @property
    def prints(self) -> Path:
        """The file with what its process prints."""
        return self.folder.with_suffix(".txt")


def train_seeds(config: TrainConfig, stop: StopSignal, arguments: Sequence[str]) -> int:
    """Train `config.output.seeds`, as many at a time as there are cores, and print how it went. A
    run that fails does not end the others.

    Args:
        config: of the command line.
        stop: set when the user asks to stop; every run is then saved.
        arguments: the words of the command line.

    Returns:
        The exit code: see `code_of`, or that of the signal.

    Raises:
        UsageError: --seed is there, too, or a folder cannot be used.
    """
    if any(word.partition("=")[0] == "--seed" for word in arguments):
        raise UsageError("--seed: --seeds takes its place; leave one of the two out")
    check_output(config)
    try:
        folder = make_folder(config)
    except OSError as error:
        raise UsageError(f"--output: {why_refused(error)}") from error
    at_once = min(len(config.output.seeds), available_cores())
    workers = str(share_of(config.execution.workers, at_once))
    words = (*without(arguments, _OWN), "--workers", workers)
    runs = {}
    for seed in config.output.seeds:
        own = folder / f"seed-{seed}"
        check_output(config.changed(seeds=(), output=own))
        place = ("--seed", str(seed), "--output", str(own))
        runs[seed] = SideRun(f"seed {seed}", own, (*words, *place))
    shown = path_to_show(folder.absolute(), Path.cwd())
    say(
        f"{len(runs)} seeds in {shown}, {at_once} at a time, --workers {workers} each; what each "
        "prints is in seed-N.txt"
    )
    codes = supervise(list(runs.values()), at_once, stop)
    rows = {seed: row_of(run) for seed, run in runs.items()}
    table = [
        (seed, 0, None, None, "not begun", runs[seed].folder)
        if row is None
        else (seed, row.env_steps, row.last, row.best, row.state, row.run)
        for seed, row in rows.items()
    ]
    say(f"\n{grid(('seed', 'env steps', 'last', 'best', 'state', 'run'), table)}\n")
    if any(codes.values()) and not stop.is_set():
        failed = [f"{run.name}: see {run.prints}" for run, code in codes.items() if code]
        warn("error: " + "; ".join(failed))
    if any(rows.values()):
        quoted = shlex.quote(str(shown))
        say(f"Compare and go on:\n  uv run main.py plot {quoted}\n  uv run main.py runs {quoted}")
    return stop.exit_code if stop.is_set() else code_of(list(codes.values()))


def code_of(codes: Sequence[int]) -> int:
    """The exit code of several runs with these: that of a mistake only if all made it."""
    if not any(codes):
        return 0
    return 2 if set(codes) == {2} else 1


def share_of(workers: int | None, at_once: int) -> int:
    """The worker processes of each of several runs side by side; 0 stays 0."""
    wanted = available_cores() if workers is None else workers
    return max(1, wanted // at_once) if wanted else 0


def without(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """The words of a command line without these flags and their values."""
    kept, leaving = [], False
    for word in words:
        if word.startswith("--"):
            leaving = word.partition("=")[0].replace("_", "-") in flags
        if not leaving:
            kept.append(word)
    return kept


def start_run(words: Sequence[str], prints: Path) -> subprocess.Popen[bytes]:
    """A process of main.py with these words, which prints into a file. However this process ends,
    the run is saved and ends, too."""
    with prints.open("wb") as file:
        # Ctrl-C in the terminal reaches this process alone, which tells the others once.
        return subprocess.Popen(
            [sys.executable, str(_MAIN), *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _C.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )


def errors_in(prints: Path) -> list[str]:
    """The lines with errors that a run printed."""
    lines = prints.read_text(errors="replace").split("\n")
    return [line for line in lines if line.startswith("error: ")]


def supervise(runs: Sequence[SideRun], at_once: int, stop: StopSignal) -> dict[SideRun, int]:
    """Run all of them, or stop and save all; returns the exit codes of those that began."""
    waiting, codes = list(runs), {}
    playing: dict[SideRun, subprocess.Popen[bytes]] = {}
    said_at, told = time.monotonic(), False
    while playing or (waiting and not stop.is_set()):
        while waiting and len(playing) < at_once and not stop.is_set():
            if is_held(waiting[0].folder):
                break  # by a process whose parent was killed, and which saves what it has
            run = waiting.pop(0)
            playing[run] = start_run(run.words, run.prints)
        if stop.is_set() and not told:
            told = True
            for process in playing.values():
                process.terminate()
        for run, process in list(playing.items()):
            if process.poll() is not None:
                del playing[run]
                codes[run] = process.returncode
                say(f"{run.name}: {_how_it_ended(run, process.returncode)}")
        if time.monotonic() - said_at >= _LINE_SECONDS and (playing or waiting):
            said_at = time.monotonic()
            lines = [f"{run.name}: {_how_far(run)}" for run in playing]
            say("; ".join(lines) or f"{waiting[0].name} waits: another process has its folder")
        # Not `stop.wait`, which returns at once when it is set.
        time.sleep(_POLL_SECONDS)
    return codes


def row_of(run: SideRun) -> RunRow | None:
    """How far the run is; None if it has not begun."""
    try:
        return read_row(run.folder)
    except UsageError:
        return None


def _how_far(run: SideRun) -> str:
    row = row_of(run)
    if row is None or row.last is None:
        return "no iteration yet"
    return f"mean return {row.last:.1f} after {row.env_steps:,} env steps"


def _how_it_ended(run: SideRun, code: int) -> str:
    if code == 0:
        return f"done; {_how_far(run)}"
    return "; ".join([f"ended with exit code {code}", _how_far(run), *errors_in(run.prints)[-1:]])
