"""main.py in a fork of a process that has imported the libraries.

Importing torch takes longer than most runs of tests. The package itself is imported anew, from the
folder of main.py; nothing of it may be imported here.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing import forkserver
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO
from unittest import mock

LIBRARIES = ["flamepy.core", "gymnasium", "matplotlib.pyplot", "mujoco", "torch"]


class Forked:
    """What tests use of `subprocess.Popen`; streams are PIPE, DEVNULL, a file descriptor, or None
    for those of this process."""

    def __init__(
        self,
        script: Path,
        words: tuple[str, ...],
        cwd: Path,
        env: Mapping[str, str],
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        self.args = [str(script), *words]
        self.stdout, output = _stream(stdout, 1)
        self.stderr, errors = _stream(stderr, 2)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(LIBRARIES)
        with mock.patch.dict(os.environ):
            # By which tests find the processes of a run or of a cluster.
            for name in [name for name in os.environ if name.startswith(("FAULT_", "FLAME_"))]:
                del os.environ[name]
            # As flame_rl.backends.flame has it: grpc may read this when it is imported.
            os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
            forkserver.ensure_running()
        streams = _Descriptor(output), _Descriptor(errors)
        arguments = (self.args, str(cwd), dict(env), *streams)
        self._process = context.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        self.pid = self._process.pid
        for descriptor in (output, errors):
            os.close(descriptor)

    def poll(self) -> int | None:
        return self._process.exitcode

    returncode = property(poll)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        texts: dict[str, str] = {}

        def read(name: str) -> None:
            with getattr(self, name) as stream:
                texts[name] = stream.read()

        names = [name for name in ("stdout", "stderr") if getattr(self, name) is not None]
        readers = [threading.Thread(target=read, args=(name,), daemon=True) for name in names]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return texts.get("stdout"), texts.get("stderr")

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Descriptor:
    """A file descriptor, which the fork gets a duplicate of."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple:
        return _detached, (DupFd(self._number),)


def _detached(duplicate) -> int:
    return duplicate.detach()


def _stream(wanted: int | None, usual: int) -> tuple[IO[str] | None, int]:
    """The end that this process reads, if any, and a descriptor for the other process."""
    if wanted == subprocess.PIPE:
        mine, theirs = os.pipe()
        return open(mine), theirs  # noqa: PTH123
    if wanted == subprocess.DEVNULL:
        return None, os.open(os.devnull, os.O_WRONLY)
    return None, os.dup(usual if wanted is None else wanted)


def _run(args: list[str], cwd: str, env: dict[str, str], output: int, errors: int) -> None:
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for descriptor in (output, errors):
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    own = str(Path(__file__).parents[1])
    named = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    rest = [entry for entry in sys.path if entry not in (own, *named)]
    sys.path[:] = [str(Path(args[0]).parent), *named, *rest]
    sys.argv[:] = args
    runpy.run_path(args[0], run_name="__main__")
