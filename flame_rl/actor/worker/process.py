"""A module of this package in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

# Not by PYTHONPATH: a folder whose path has a colon cannot be named there.
_RUN = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
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

    Its standard input and output are unbuffered pipes, `stdin` and `stdout`. Ctrl-C in the terminal
    does not reach it: that is this process's to handle.
    """

    def __init__(
        self, module: str, *arguments: str, descriptors: Sequence[int] = (), silent: bool = False
    ) -> None:
        """Start the process.

        Args:
            module: its full name.
            arguments: for `sys.argv`.
            descriptors: open files that it inherits.
            silent: whether what it prints is lost, errors included; then there is no `stdout`.

        Raises:
            OSError: the system refuses.
        """
        path = [entry or os.getcwd() for entry in sys.path]  # noqa: PTH109
        # PYTHONPATH is for programs that a simulator starts in its turn.
        named = os.pathsep.join(entry for entry in path if os.pathsep not in entry)
        super().__init__(
            # -P: modules are found where the parent finds them, and nowhere else.
            [sys.executable, "-P", "-c", _RUN, json.dumps(path), module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL if silent else subprocess.PIPE,
            stderr=subprocess.DEVNULL if silent else None,
            env=os.environ | _ONE_THREAD | {"PYTHONPATH": named},
            pass_fds=descriptors,
            bufsize=0,
            start_new_session=True,
        )

    def kill_group(self) -> None:
        """Kill the process and whatever it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and whatever it has started; wait for its end, and close the pipes. It
        may be called twice."""
        if self.stdin.closed:
            return  # its number may be another process's by now
        self.kill_group()
        self.wait()
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                pipe.close()
