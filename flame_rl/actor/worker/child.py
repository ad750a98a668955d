"""The child process of a worker: reads frames, answers requests, until standard input closes."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import sys
import threading

from flame_rl.actor.worker.frames import PROGRESS, read_frame, write_frame
from flame_rl.wire import codec, packing
from flame_rl.wire.messages import CollectFailure, Environment, PolicySnapshot
from flame_rl.wire.packing import WireError


def main(last_words_fd: int, lifeline: int, progress_fd: int) -> None:
    """Read frames and answer requests until standard input closes.

    Args:
        last_words_fd: the file for the traceback of a crash.
        lifeline: the pipe whose other end the supervisor holds.
        progress_fd: the file for `frames.PROGRESS` of the task.
    """
    faulthandler.enable(os.fdopen(last_words_fd, "w"))
    questions = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    # What a simulator prints must not end up between the frames.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _die_with(lifeline)

    # Imported only now, when their prints are redirected and their hangs supervised.
    from flame_rl.actor.collect import collect_episodes
    from flame_rl.actor.failure import SimulatorError, summary, traceback_of
    from flame_rl.actor.simulators.choose import choose_simulator, describe
    from flame_rl.actor.simulators.simulator import Simulator

    snapshot: PolicySnapshot | WireError = WireError("no weights have come yet")
    simulators: dict[Environment, Simulator] = {}

    def played(episodes: int, env_steps: int) -> None:
        with contextlib.suppress(OSError):  # a full disk
            os.pwrite(progress_fd, PROGRESS.pack(episodes, env_steps), 0)

    while True:
        try:
            frame, _ = read_frame(questions)
        except OSError:
            return
        try:
            kind = packing.message_type(frame)
            if kind == "snapshot":
                # A snapshot gets no answer; an error in it is the answer to the next request.
                try:
                    snapshot = codec.decode_snapshot(frame)
                except WireError as error:
                    snapshot = error
                continue
            if kind == "describe":
                environment = codec.decode_describe(frame)
                simulators[environment], spec = describe(environment)
                answer = codec.encode_description(spec)
            else:
                request = codec.decode_request(frame)
                environment = request.environment
                if isinstance(snapshot, WireError):
                    raise snapshot
                if environment not in simulators:
                    simulators[environment], _ = choose_simulator(environment)
                write_frame(answers, b"")  # from here on it plays
                result = collect_episodes(snapshot, request, simulators[environment], played=played)
                answer = (
                    codec.encode_failure(result)
                    if isinstance(result, CollectFailure)
                    else codec.encode_episodes(result, request)
                )
        except SimulatorError as error:
            answer = codec.encode_failure(error.failure())
        except WireError as error:
            answer = codec.encode_failure(CollectFailure("garbled", summary(error)))
        except Exception as error:
            message = f"the collector raised {summary(error)}"
            failure = CollectFailure("simulator", message, traceback=traceback_of(error))
            answer = codec.encode_failure(failure)
        write_frame(answers, answer)


def _die_with(lifeline: int) -> None:
    """End this process, and what its simulator has started, when the other end of the pipe closes:
    the parent is gone, whatever the simulator is doing."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    if sys.platform == "linux":
        # A simulator may hold the interpreter for long, so the kernel kills without that thread.
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
