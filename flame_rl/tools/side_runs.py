"""Runs side by side: a process of main.py for each, as if it had been typed alone."""

import ctypes
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from flame_rl.report.runs import RunRow, grid, read_row
from flame_rl.run.folder import CHECKPOINTS_NAME, check_output, is_held, make_folder, path_to_show
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError, say, warn
from flame_rl.system.files import refused_as
from flame_rl.system.machine import available_cores
from flame_rl.system.program import process, typed
from flame_rl.system.signals import StopSignal

_PR_SET_PDEATHSIG = 1  # to Linux's prctl: the signal that comes once the parent is gone
_C = ctypes.CDLL(None)
_OWN = ("--seeds", "--output", "--workers")  # flags whose values each seed has of its own
_POLL_SECONDS = 0.1
_LINE_SECONDS = 30.0  # a line about all runs this often


class SideRun:
    """One of several runs side by side: `name` is in the lines about it, `prints` is the file with
    what its process prints, and `process` is None before it begins."""

    def __init__(self, name: str, folder: Path, words: Sequence[str]) -> None:
        """`words` are those of its command line, `folder` is its run folder."""
        self.name, self.folder, self.words = name, folder, tuple(words)
        self.prints = folder.with_suffix(".txt")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> bool:
        """Start its process. Returns False where another one still saves what it has there."""
        if is_held(self.folder):
            return False
        self.process = start_process(self.words, self.prints)
        return True

    def end(self) -> None:
        """End its process, which saves what it has learned, and wait for that."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()

    def row(self) -> RunRow | None:
        """How far it is; None if it has not begun."""
        try:
            return read_row(self.folder)
        except UsageError:
            return None

    def how_far(self) -> str:
        """How far it is, in words, and how its process failed."""
        row, code = self.row(), self.process.poll()
        text = "no iteration yet"
        if row is not None and row.last is not None:
            text = f"mean return {row.last:.1f} after {row.env_steps:,} env steps"
        if code:
            return "; ".join([f"ended with exit code {code}", text, *self.errors()[-1:]])
        return text if code is None else f"done; {text}"

    def errors(self) -> list[str]:
        """The lines with errors that it printed."""
        lines = self.prints.read_text(errors="replace").split("\n")
        return [line for line in lines if line.startswith("error: ")]


def start_process(words: Sequence[str], prints: Path) -> subprocess.Popen[bytes]:
    """A process of main.py, which prints into a file; once this process ends, it saves its run."""
    with prints.open("wb") as file:
        # Ctrl-C in the terminal reaches this process alone, which tells the others once.
        return subprocess.Popen(
            [*process(), *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _C.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )


def supervise(runs: Sequence[SideRun], at_once: int, stop: StopSignal) -> None:
    """Run all of them, or stop and save all once `stop` is set."""
    waiting, playing = list(runs), []
    said_at, told = time.monotonic(), False
    while playing or (waiting and not stop.is_set()):
        while waiting and len(playing) < at_once and not stop.is_set() and waiting[0].start():
            playing.append(waiting.pop(0))
        if stop.is_set() and not told:
            told = True
            for run in playing:
                run.process.terminate()
        for run in [each for each in playing if each.process.poll() is not None]:
            playing.remove(run)
            say(f"{run.name}: {run.how_far()}")
        if time.monotonic() - said_at >= _LINE_SECONDS and (playing or waiting):
            said_at = time.monotonic()
            line = "; ".join(f"{run.name}: {run.how_far()}" for run in playing)
            say(line or f"{waiting[0].name} waits: another process has its folder")
        time.sleep(_POLL_SECONDS)  # not `stop.wait`, which returns at once when it is set


def train_seeds(config: TrainConfig, stop: StopSignal, arguments: Sequence[str]) -> int:
    """Train `config.output.seeds`, as many at a time as there are cores, and print how it went. A
    run that fails does not end the others, and one that has begun goes on; all are saved at `stop`.
    Returns the exit code. Raises UsageError if there is --seed, too, or a folder cannot be used."""
    if any(word.partition("=")[0] == "--seed" for word in arguments):
        raise UsageError("--seed: --seeds takes its place; leave one of the two out")
    check_output(config)
    with refused_as(UsageError, "--output"):
        folder = make_folder(config)
    at_once = min(len(config.output.seeds), available_cores())
    workers = share_of(config.execution.workers, at_once)
    runs = []
    for seed in config.output.seeds:
        own = folder / f"seed-{seed}"
        # One that has begun goes on, and is refused by itself if the flags make it another run.
        where = "--resume" if any((own / CHECKPOINTS_NAME).glob("*.ckpt")) else "--output"
        words = [*without(arguments, _OWN), "--workers", str(workers), "--seed", str(seed)]
        runs.append(SideRun(f"seed {seed}", own, [*words, where, str(own)]))
    shown = path_to_show(folder.absolute(), Path.cwd())
    say(f"{len(runs)} seeds in {shown}, {at_once} at a time, --workers {workers}: see seed-N.txt")
    supervise(runs, at_once, stop)
    table = []
    for seed, run in zip(config.output.seeds, runs, strict=True):
        row = run.row()
        own = row and (row.env_steps, row.last, row.best, row.state, row.run)
        table.append((seed, *(own or (0, None, None, "not begun", run.folder))))
    say(f"\n{grid(('seed', 'env steps', 'last', 'best', 'state', 'run'), table)}\n")
    failed = [run for run in runs if run.process is not None and run.process.returncode]
    if failed and not stop.is_set():
        warn("error: " + "; ".join(f"{run.name}: see {run.prints}" for run in failed))
    if any(run.row() for run in runs):
        quoted = shlex.quote(str(shown))
        say(f"Compare them:\n  {typed(f'plot {quoted}')}\n  {typed(f'runs {quoted}')}")
    if stop.is_set():
        words = [*without(arguments, ("--output",)), "--output", str(shown)]
        say(f"The same command goes on with each:\n  {typed(shlex.join(words))}")
        return stop.exit_code
    return exit_code([run.process.returncode for run in runs])


def exit_code(codes: Sequence[int]) -> int:
    """The exit code of several runs with these: that of a mistake only if all made it."""
    return 2 if set(codes) == {2} else int(any(codes))


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
