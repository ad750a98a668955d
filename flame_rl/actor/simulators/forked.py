"""Work that an environment may break, in a fork of this process: there it may crash, hang or count
without a trace. And the memory of a process, as the system tells it."""

import contextlib
import gc
import json
import os
import resource
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

# Notes of what was found, by name; each call adds to those before it.
Note = Callable[[dict[str, Any]], None]
# filelock, which torch imports, refuses a fork while another thread forks.
_ONE_FORK = threading.Lock()
_DONE = "done"  # the last note, which a fork that code of an environment's ends does not write


def in_fork(work: Callable[[Note, contextlib.ExitStack], None]) -> tuple[dict[str, Any], str]:
    """Do `work` in a fork, without what it prints. It is given a function that notes values of
    JSON, and a stack that closes at its end; it sets an alarm (`signal.alarm`) where it may hang.
    What it raises ends it. Returns what it noted, and its end: "", "SIGALRM", "exit code 3"."""
    with tempfile.TemporaryFile() as file:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            with _ONE_FORK:
                child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                gc.freeze()  # what else this process has is not the fork's to finalise
                sys.breakpointhook = lambda *_, **__: None  # nobody would see a debugger there
                nowhere = os.open(os.devnull, os.O_RDWR)
                for descriptor in (0, 1, 2):
                    os.dup2(nowhere, descriptor)
                with contextlib.ExitStack() as closing:
                    work(lambda values: _write(file.fileno(), values), closing)
            finally:
                _write(file.fileno(), {_DONE: True})
                os._exit(0)
        _, status = os.waitpid(child, 0)
        file.seek(0)
        found: dict[str, Any] = {}
        for line in file:
            with contextlib.suppress(ValueError, TypeError):  # the environment wrote here
                found |= json.loads(line)
    ended = "" if found.pop(_DONE, False) else f"exit code {os.WEXITSTATUS(status)}"
    if os.WIFSIGNALED(status):
        ended = signal.Signals(os.WTERMSIG(status)).name
    return found, ended


def _write(descriptor: int, values: dict[str, Any]) -> None:
    data = json.dumps(values).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def end_if_forked(process: int) -> None:
    """End this process unless it is `process`, with what it raised: an environment has forked, and
    its child came back. It would go on as a second learner, or worker."""
    if os.getpid() != process:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        os._exit(1)


def own_bytes() -> int:
    """What no file backs, now, and so all that a fork has from its beginning; 0: unknown."""
    return _in_status("RssAnon")


def peak_bytes() -> int:
    """The most that was resident so far."""
    # Not getrusage's, which on Linux begins with what the parent had when it forked.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _in_status("VmHWM") or most * (1 if sys.platform == "darwin" else 1024)


def _in_status(name: str) -> int:
    """A size in /proc/self/status, in bytes; 0 where there is none."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:  # noqa: PTH123
        for line in file:
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    return 0
