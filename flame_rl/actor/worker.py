"""A child process around `collect_episodes`, and the handle that supervises it.

A simulator may crash, hang or leak. It runs in a child, so that its death is a value: whoever holds
the `Worker` gets a `CollectFailure` and, with the next call, a new child. The two talk over the
child's standard input and output in frames, each a message of `flame_rl.wire`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from flame_rl import packing, wire
from flame_rl.messages import CollectFailure, FailureKind, PolicySnapshot
from flame_rl.packing import Buffer, WireError

# A frame's size, and the most memory that its sender has taken so far, both in bytes.
_HEAD = struct.Struct("<QQ")
# Far above any real answer; a child that announces more is not answering.
MAX_FRAME_BYTES = 1 << 34
# Memory is taken for so much of a frame at once, and not for what a broken child announces.
_PIECE_BYTES = 1 << 26

# Through Linux's 64 KiB, an answer of megabytes comes in a hundred pieces, with a wait for each
# other at every one. A user's pipes share a limit, so no more than helps.
_PIPE_BYTES = 1 << 18

# One thread each: workers are as many as cores, and more BLAS threads change bits.
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}


class Limits(NamedTuple):
    """When a child is killed or replaced.

    Attributes:
        deadline: seconds that one answer may take.
        episodes: a child that has played so many is replaced.
        megabytes: one that has taken more memory is replaced.
    """

    deadline: float
    episodes: int
    megabytes: int


class Worker:
    """Supervises one child. `start` is optional and lets the child import while others work."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._last_words: BinaryIO | None = None
        self._lifeline: BinaryIO | None = None
        self._sent_version: int | None = None
        self._episodes = 0
        self._memory_bytes = 0
        self._closed = False
        self._calling = threading.RLock()

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is none."""
        child = self._child
        return child.pid if child else None

    def start(self) -> None:
        """Start the child unless it runs. Raises BrokenPipeError after `close`."""
        with self._calling:
            if self._closed:
                raise BrokenPipeError("this worker is closed")
            if self._child is not None and self._child.poll() is None:
                return
            self._forget()
            self._last_words = tempfile.TemporaryFile()  # noqa: SIM115 - lives as the child does
            path = [entry or os.getcwd() for entry in sys.path]  # noqa: PTH109
            # The child holds the other end and dies when this one closes, with its supervisor.
            lifeline, held = os.pipe()
            self._lifeline = os.fdopen(held, "wb", buffering=0)
            descriptors = [self._last_words.fileno(), lifeline]
            self._child = subprocess.Popen(
                # -P: modules are found where the parent finds them, and nowhere else.
                [sys.executable, "-P", "-m", "flame_rl.actor.worker", *map(str, descriptors)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(path)},
                pass_fds=descriptors,
                bufsize=0,
                start_new_session=True,  # Ctrl-C in the terminal is the learner's to handle
            )
            os.close(lifeline)
            for pipe in (self._child.stdin, self._child.stdout):
                os.set_blocking(pipe.fileno(), False)
            if sys.platform == "linux":
                with contextlib.suppress(OSError):  # at that limit: slower, that is all
                    fcntl.fcntl(self._child.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            if self._closed:  # while the child was being started
                _kill(self._child)

    def describe(
        self,
        env_id: str,
        max_episode_steps: int | None,
        deadline: float,
        withdrawn: Callable[[], bool] = lambda: False,
        simulator: str = "auto",
    ) -> Buffer:
        """An encoded `EnvironmentSpec` or `CollectFailure`; the rest is as in `collect`."""
        question = wire.encode_describe(env_id, max_episode_steps, simulator)
        with self._calling:
            return self._call([question], env_id, deadline, withdrawn)

    def collect(
        self,
        snapshot: bytes,
        version: int,
        request: bytes,
        limits: Limits,
        withdrawn: Callable[[], bool] = lambda: False,
    ) -> Buffer:
        """Let the child collect.

        Args:
            snapshot: encoded; sent only to a child that does not hold this version yet.
            version: the snapshot's.
            request: encoded.
            limits: when the child is killed or replaced.
            withdrawn: asked about once a second; true when nobody wants the answer any more, and
                the child is killed.

        Returns:
            Encoded episodes, or an encoded `CollectFailure`: never raises for what the child does.
        """
        decoded = wire.decode_request(request)
        with self._calling:
            alive = self._child is not None and self._child.poll() is None
            holds_it = alive and self._sent_version == version
            frames = [request] if holds_it else [snapshot, request]
            answer = self._call(frames, decoded.env_id, limits.deadline, withdrawn)
            if self._child is not None:
                self._sent_version = version
                self._episodes += len(decoded.indices)
                if (
                    # What made a simulator fail may have left it unfit for more.
                    packing.message_type(answer) == "failure"
                    or self._episodes >= limits.episodes
                    or self._memory_bytes > limits.megabytes * 1_000_000
                ):
                    self._replace()
            return answer

    def close(self) -> None:
        """Kill the child, for good, even in the middle of another thread's call."""
        self._closed = True
        child = self._child
        if child is not None:
            _kill(child)
        with self._calling:
            self._end_child()

    def _call(
        self, frames: list[bytes], env_id: str, deadline: float, withdrawn: Callable[[], bool]
    ) -> Buffer:
        kind: FailureKind = "crash"
        try:
            self.start()
            limit = time.monotonic() + deadline
            for frame in frames:
                _write(self._child.stdin, frame, limit)
            while not _ready(self._child.stdout, select.POLLIN, min(1.0, limit - time.monotonic())):
                if time.monotonic() >= limit:
                    raise TimeoutError
                if withdrawn():
                    raise InterruptedError
            answer, self._memory_bytes = _read(self._child.stdout, limit)
            return answer
        except TimeoutError:
            kind = "timeout"
            message = f"the worker process gave no answer within {deadline:.0f} s and was killed"
        except InterruptedError:
            kind = "stale"
            message = "the learner has withdrawn this task"
        except OSError as error:
            message = f"the worker process {self._ending(error)}"
        last_words = self._read_last_words()
        self._end_child()
        return wire.encode_failure(
            CollectFailure(kind=kind, message=message, env_id=env_id, traceback=last_words)
        )

    def _replace(self) -> None:
        self._end_child()
        with contextlib.suppress(OSError):  # closed, or for the next call to report
            self.start()

    def _end_child(self) -> None:
        if self._child is not None:
            _kill(self._child)
            self._child.wait()
        self._forget()

    def _ending(self, error: OSError) -> str:
        if self._child is None:
            return f"could not be started: {error}"
        try:
            # A pipe breaks a moment before its process is gone.
            code = self._child.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"broke off: {error}"
        return f"died by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"

    def _forget(self) -> None:
        if self._child is not None:
            self._child.stdin.close()
            self._child.stdout.close()
        for file in (self._last_words, self._lifeline):
            if file is not None:
                file.close()
        self._child = self._last_words = self._lifeline = self._sent_version = None
        self._episodes = self._memory_bytes = 0

    def _read_last_words(self) -> str:
        if self._last_words is None:
            return ""
        self._last_words.seek(0)
        return self._last_words.read(20_000).decode(errors="replace")


def main(last_words_fd: int, lifeline: int) -> None:
    """The child: read frames, answer requests, until standard input closes."""
    faulthandler.enable(os.fdopen(last_words_fd, "w"))
    questions = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    # What a simulator prints must not end up between the frames.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _die_with(lifeline)

    from flame_rl.actor.choose import choose_simulator, describe
    from flame_rl.actor.collect import collect_episodes
    from flame_rl.actor.simulators import Simulator, SimulatorError

    snapshot: PolicySnapshot | WireError = WireError("no weights have come yet")
    simulators: dict[tuple[str, int | None, str], Simulator] = {}
    while True:
        try:
            frame, _ = _read(questions)
        except OSError:
            return
        env_id = ""
        try:
            kind = packing.message_type(frame)
            if kind == "snapshot":
                # Nothing is answered to weights; what is wrong with them is said to the request.
                try:
                    snapshot = wire.decode_snapshot(frame)
                except WireError as error:
                    snapshot = error
                continue
            if kind == "describe":
                key = wire.decode_describe(frame)
                env_id = key[0]
                simulators[key], spec = describe(*key)
                answer = wire.encode_description(spec)
            else:
                request = wire.decode_request(frame)
                env_id = request.env_id
                if isinstance(snapshot, WireError):
                    raise snapshot
                key = (env_id, request.max_episode_steps, request.simulator)
                if key not in simulators:
                    simulators[key], _ = choose_simulator(*key)
                result = collect_episodes(snapshot, request, simulators[key])
                answer = (
                    wire.encode_failure(result)
                    if isinstance(result, CollectFailure)
                    else wire.episodes_in_parts(result, request)
                )
        except SimulatorError as error:
            answer = wire.encode_failure(
                CollectFailure(error.kind, str(error), env_id, traceback=error.cause)
            )
        except Exception as error:
            answer = wire.encode_failure(
                CollectFailure(
                    "simulator",
                    f"the collector raised {type(error).__name__}: {error}",
                    env_id,
                    traceback=traceback.format_exc(),
                )
            )
        _write(answers, answer)


def _die_with(lifeline: int) -> None:
    """End this process, and what its simulator has started, when the other end of the pipe closes:
    the parent is gone, whatever the simulator is doing."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    if sys.platform == "linux":
        # A simulator may compute for long without giving that thread a chance: the kernel itself.
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _write(pipe: BinaryIO, frame: Buffer | list[Buffer], limit: float | None = None) -> None:
    """Send a frame, which may come in parts. Raises TimeoutError at `limit` (monotonic seconds),
    OSError if nobody reads."""
    parts = frame if isinstance(frame, list) else [frame]
    for part in (_HEAD.pack(sum(map(len, parts)), _peak_memory()), *parts):
        view = memoryview(part)
        while view:
            written = pipe.write(view)
            if written is not None:
                view = view[written:]
            elif not _ready(pipe, select.POLLOUT, limit - time.monotonic()):
                raise TimeoutError


def _read(pipe: BinaryIO, limit: float | None = None) -> tuple[bytearray, int]:
    """A frame and its sender's memory in bytes. Raises TimeoutError at `limit` (monotonic seconds),
    OSError at the end."""
    size, memory = _HEAD.unpack(_read_exactly(pipe, _HEAD.size, limit))
    if size > MAX_FRAME_BYTES:
        raise OSError(f"a frame of {size} bytes is announced")
    return _read_exactly(pipe, size, limit), memory


def _peak_memory() -> int:
    # Not getrusage's, which on Linux begins with what the parent had when it forked.
    with contextlib.suppress(OSError), open("/proc/self/status") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _read_exactly(pipe: BinaryIO, size: int, limit: float | None) -> bytearray:
    pieces: list[bytearray] = []
    while size > 0:
        piece = bytearray(min(size, _PIECE_BYTES))
        view = memoryview(piece)
        while view:
            count = pipe.readinto(view)
            if count == 0:
                raise BrokenPipeError("the other side is gone")
            if count is not None:
                view = view[count:]
            elif not _ready(pipe, select.POLLIN, limit - time.monotonic()):
                raise TimeoutError
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else bytearray().join(pieces)


def _ready(pipe: BinaryIO, event: int, seconds: float) -> bool:
    """Wait until the pipe can be read (POLLIN) or written (POLLOUT), or is broken."""
    poll = select.poll()
    poll.register(pipe, event)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the child and whatever its simulator has started: they are one group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
