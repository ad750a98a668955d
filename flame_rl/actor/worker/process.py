"""A module of this package in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import BinaryIO

# Not by PYTHONPATH: a folder whose path has a colon cannot be named there.
# What the process starts in its turn inherits no pipe.
_RUN = (
    "import json, os, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "name = sys.argv.pop(1); [os.set_inheritable(int(number), False) for number in sys.argv[1:]]; "
    "runpy.run_module(name, run_name='__main__', alter_sys=True)"
)
# More than one BLAS thread would change bits, and the process has one core to itself.
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}


class ChildProcess(subprocess.Popen[bytes]):
    """Runs a module as `python -m` does; it finds modules where this process does.

    The two talk over `questions`, which this process writes, and `answers`, which it reads:
    unbuffered pipes, whose other ends are the first two numbers in the module's `sys.argv`. Nothing
    else uses them: what is printed goes to standard error, even before the module begins. Ctrl-C in
    the terminal does not reach the process: that is this process's to handle.
    """

    def __init__(self, module: str, descriptors: Sequence[int] = (), silent: bool = False) -> None:
        """Start the process.

        Args:
            module: its full name.
            descriptors: open files that it inherits, whose numbers follow in `sys.argv`.
            silent: whether what it prints is lost, errors included.

        Raises:
            OSError: the system refuses.
        """
        # What the import system reads of it.
        path = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]  # noqa: PTH109
        # PYTHONPATH is for programs that a simulator starts in its turn.
        named = os.pathsep.join(entry for entry in path if os.pathsep not in entry)
        # Another file may have its number where standard error was closed before Python began.
        prints = subprocess.DEVNULL if silent or sys.__stderr__ is None else 2
        theirs, mine = os.pipe()
        self.questions: BinaryIO = os.fdopen(mine, "wb", buffering=0)
        mine, answers = os.pipe()
        self.answers: BinaryIO = os.fdopen(mine, "rb", buffering=0)
        descriptors = [theirs, answers, *descriptors]
        try:
            super().__init__(
                # -P: modules are found where the parent finds them, and nowhere else.
                [sys.executable, "-P", "-c", _RUN, json.dumps(path), module]
                + [str(number) for number in descriptors],
                stdin=subprocess.DEVNULL,
                stdout=prints,
                stderr=prints,
                env=os.environ | _ONE_THREAD | {"PYTHONPATH": named},
                pass_fds=descriptors,
                start_new_session=True,
            )
        except BaseException:
            self._close_pipes()
            raise
        finally:
            os.close(theirs)
            os.close(answers)

    def kill_group(self) -> None:
        """Kill the process and whatever it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self, seconds: float = 0.0) -> bool:
        """Close the pipes, upon which the process may end by itself within `seconds`; kill it and
        whatever it has started, and wait for that. May be called twice.

        Returns:
            Whether it has ended by itself.
        """
        if self.questions.closed:
            return True  # its number may be another process's by now
        self._close_pipes()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(seconds)
        in_time = self.returncode is not None
        self.kill_group()
        self.wait()
        return in_time

    def _close_pipes(self) -> None:
        self.questions.close()
        self.answers.close()
