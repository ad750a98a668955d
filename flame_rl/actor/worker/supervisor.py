"""Supervise a worker, a child process that runs `collect_episodes`, or several that share each
task. A simulator may crash, hang or leak. It runs in a child, so that its death is a value."""

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import BinaryIO, NamedTuple

from flame_rl.actor.failure import summary
from flame_rl.actor.worker import process
from flame_rl.actor.worker.process import CLOSE_SECONDS, PROGRESS
from flame_rl.wire import codec, packing
from flame_rl.wire.messages import CollectFailure, Environment, Episodes, FailureKind, concatenate
from flame_rl.wire.packing import Buffer

# Answers of megabytes go through a larger pipe in fewer pieces; a user's pipes share a limit.
_PIPE_BYTES = 1 << 18

Check = Callable[[], bool]


class Limits(NamedTuple):
    """The number of a task's episodes; the seconds after which the child that plays it is killed,
    if there is no answer; after how many episodes, and at which peak memory, a child is replaced;
    and how many workers of an executor share the task, see `Team`."""

    episodes: int
    deadline: float
    child_episodes: int
    child_megabytes: int
    workers: int = 1


class _Child(process.ChildProcess):
    """The child, and what its supervisor remembers: a file for the traceback of a crash, whether it
    was ever asked anything, so that it may have environments, the encoded weights that it holds,
    the episodes played, and its peak memory at its last answer."""

    def __init__(self) -> None:
        self.asked, self.sent = False, None
        self.episodes = self.memory_bytes = 0
        self.last_words = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        # The child holds the other end and dies when this one closes, with its supervisor.
        lifeline, held = os.pipe()
        self._lifeline = os.fdopen(held, "wb", buffering=0)
        try:
            super().__init__("flame_rl.actor.worker.process", [self.last_words.fileno(), lifeline])
        finally:
            os.close(lifeline)
        for pipe in (self.questions, self.answers):
            os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(OSError, AttributeError):  # beyond the limit, or not on Linux
            fcntl.fcntl(self.answers, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def end(self, seconds: float = 0.0) -> bool:
        in_time = super().end(seconds)
        self.last_words.close()
        self._lifeline.close()
        return in_time

    def ending(self, error: OSError) -> str:
        try:
            code = self.wait(1.0)  # a pipe breaks a moment before its process is gone
        except subprocess.TimeoutExpired:
            return f"broke off: {error}"
        if code >= 0:
            return f"ended with exit code {code}"
        known = -code in {*signal.Signals}
        return f"died by {signal.Signals(-code).name if known else -code}"


class SupervisedWorker:
    """A worker: a child process. Where it dies, or is killed, the answer is a `CollectFailure`, and
    the next call starts a new one; `start` is optional and lets a child import early."""

    def __init__(self, warn: Callable[[str], None] = lambda text: None) -> None:
        """`warn` is told of a child that was killed because it did not end by itself."""
        self._warn = warn
        self._child: _Child | None = None
        self._closed = False
        # The episodes and env steps that the child has played of its task; for any thread.
        self.played = 0, 0
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
            if self._child is None or self._child.poll() is not None:
                self._end_child()
                self._child = _Child()

    def describe(self, environment: Environment, deadline: float, withdrawn: Check) -> Buffer:
        """Let the child describe an environment, whose simulator it keeps. Returns an encoded
        `EnvironmentSpec` or `CollectFailure`; `withdrawn` is as in `collect`."""
        with self._calling:
            return self._call(codec.encode_describe(environment), deadline, withdrawn)

    def collect(
        self, snapshot: bytes, request: bytes, limits: Limits, withdrawn: Check = lambda: False
    ) -> Buffer:
        """Let the child collect what an encoded request asks for. Returns encoded episodes, or an
        encoded `CollectFailure`, whatever the child does. `snapshot` is encoded, and sent only to a
        child that does not hold these bytes yet. `withdrawn` is called ten times a second; true
        when nobody wants the answer any more: the child has `CLOSE_SECONDS` to stop by itself."""
        with self._calling:
            answer = self._call(request, limits.deadline, withdrawn, snapshot)
            self.played = 0, 0
            if (child := self._child) is not None:
                child.episodes += limits.episodes
                large = child.memory_bytes > limits.child_megabytes * 1_000_000
                # After a failure the simulator may be in a broken state.
                broken = codec.failure_kind(answer) not in (None, "stale")
                if broken or large or child.episodes >= limits.child_episodes:
                    self._end_child(CLOSE_SECONDS)
                    with contextlib.suppress(OSError):  # the next call reports it
                        self.start()
            return answer

    def close(self) -> None:
        """End the child, for good, even in the middle of another thread's call."""
        self._closed = True  # which ends the call
        with self._calling:
            self._end_child(CLOSE_SECONDS)

    def _call(
        self, request: bytes, deadline: float, withdrawn: Check, snapshot: bytes | None = None
    ) -> Buffer:
        """Ask the child. Returns its answer, or an encoded `CollectFailure`."""
        # Whatever happens before the child says that it plays is not the episodes' doing.
        kind: FailureKind = "start"
        limit = time.monotonic() + deadline
        told = False

        def wait(pipe: BinaryIO, event: int) -> None:
            nonlocal told, limit
            poll = select.poll()
            poll.register(pipe, event)
            while not poll.poll(1000 * max(0.0, min(0.1, limit - time.monotonic()))):
                if time.monotonic() >= limit:
                    raise InterruptedError if told else TimeoutError
                # A process that the simulator has started may hold the pipe open.
                if self._child.poll() is not None:
                    raise BrokenPipeError("the child is gone")
                if self._closed:
                    raise InterruptedError
                if not told and withdrawn():
                    if pipe is self._child.questions:  # it has not begun
                        raise InterruptedError
                    told, limit = True, time.monotonic() + CLOSE_SECONDS
                    process.write_frame(self._child.questions, b"", wait)

        seconds_to_end = 0.0
        try:
            self.start()
            child = self._child
            child.asked = True
            if snapshot is not None and child.sent != snapshot:
                process.write_frame(child.questions, snapshot, wait)
                child.sent = snapshot
            process.write_frame(child.questions, request, wait)
            answer, child.memory_bytes = process.read_frame(child.answers, wait)
            while len(answer) == PROGRESS.size and time.monotonic() < limit:
                kind, self.played = "crash", PROGRESS.unpack(answer)
                answer, child.memory_bytes = process.read_frame(child.answers, wait)
            packing.message_type(answer)
            return answer
        except packing.WireError as error:
            kind, how = "garbled", f"gave an answer that cannot be read: {error}"
        except TimeoutError:
            kind, how = "timeout", f"gave no answer within {deadline:.0f} s and was killed"
        except InterruptedError:
            kind, how, seconds_to_end = "stale", "", 0.0 if told else CLOSE_SECONDS
        except OSError as error:
            started = self._child is not None
            how = self._child.ending(error) if started else f"could not be started: {error}"
        message = f"the worker process {how}" if how else "the learner has withdrawn this task"
        last_words = ""
        if self._child is not None:
            self._child.last_words.seek(0)
            last_words = self._child.last_words.read(20_000).decode(errors="replace")
        self._end_child(seconds_to_end)
        return codec.encode_failure(CollectFailure(kind, message, traceback=last_words))

    def _end_child(self, seconds: float = 0.0) -> None:
        """End the child; one that may have environments gets some seconds to close them."""
        child, self._child = self._child, None
        if child is None:
            return
        if not child.end(seconds if child.asked else 0.0) and child.asked and seconds:
            late = f"did not close within {seconds:.0f} s"
            self._warn(f"a worker process was killed: its environments {late}")


class Team:
    """Plays tasks as one `SupervisedWorker` does, with `Limits.workers` of them: who has nothing to
    do takes some of the episodes that are left, first more of them, then fewer."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._workers = [SupervisedWorker(warn)]

    def start(self) -> None:
        """Let the first child import early. Raises as `SupervisedWorker.start` does."""
        self._workers[0].start()

    def close(self) -> None:
        with ThreadPoolExecutor(len(self._workers)) as threads:
            list(threads.map(SupervisedWorker.close, self._workers))

    def collect(self, snapshot: bytes, request: bytes, limits: Limits, withdrawn: Check) -> Buffer:
        """See `SupervisedWorker.collect`. The first failure ends the task: it causes the others."""
        while len(self._workers) < limits.workers:
            self._workers.append(SupervisedWorker(self._warn))
        workers = self._workers[: min(limits.workers, limits.episodes)]
        if len(workers) == 1:
            return workers[0].collect(snapshot, request, limits, withdrawn)
        asked, ends = codec.decode_request(request), time.monotonic() + limits.deadline
        left, taking = asked.indices, threading.Lock()
        done: list[Episodes] = []
        failures: list[CollectFailure] = []

        def play(worker: SupervisedWorker) -> None:
            nonlocal left
            while not failures:
                with taking:
                    count = max(1, len(left) // (2 * limits.workers))
                    taken, left = left[:count], left[count:]
                if not taken:
                    return
                part = replace(asked, indices=taken)
                seconds = max(0.0, ends - time.monotonic())
                data = worker.collect(
                    snapshot,
                    codec.encode_request(part),
                    limits._replace(episodes=len(taken), deadline=seconds),
                    lambda: bool(failures) or withdrawn(),
                )
                try:
                    answer = codec.decode_result(data, part)
                except Exception as error:
                    answer = CollectFailure("garbled", summary(error))
                (failures if isinstance(answer, CollectFailure) else done).append(answer)

        with ThreadPoolExecutor(len(workers)) as threads:
            list(threads.map(play, workers))
        if failures:
            return codec.encode_failure(failures[0])
        done.sort(key=lambda episodes: episodes.index[0])
        return b"".join(codec.encode_result(concatenate(done), asked))
