"""The child process of a worker: reads frames and answers requests until no more can come, then
closes its environments."""

import contextlib
import faulthandler
import fcntl
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from flame_rl.actor.worker.process import CLOSE_SECONDS, PROGRESS, read_frame, write_frame
from flame_rl.wire import codec, packing
from flame_rl.wire.messages import CollectFailure, Environment, PolicySnapshot
from flame_rl.wire.packing import Buffer, WireError


def main(questions_fd: int, answers_fd: int, last_words_fd: int, lifeline: int) -> None:
    """Answer requests until the questions end; for the descriptors see `supervisor._Player`."""
    faulthandler.enable(os.fdopen(last_words_fd, "w"))
    questions = os.fdopen(questions_fd, "rb", buffering=0)
    answers = os.fdopen(answers_fd, "wb", buffering=0)
    kill_at_once = _die_with(lifeline)

    # Imported only now, when their hangs are supervised.
    from flame_rl.actor.collect import collect_episodes
    from flame_rl.actor.failure import SimulatorError, summary, traceback_of
    from flame_rl.actor.simulators.choose import choose_simulator, describe
    from flame_rl.actor.simulators.forked import end_if_forked
    from flame_rl.actor.simulators.simulator import Simulator

    process = os.getpid()
    snapshot: PolicySnapshot | WireError = WireError("no weights have come yet")
    simulators: dict[Environment, Simulator] = {}
    # While a request is answered, no other one comes: it can be withdrawn, or the pipe closes.
    closing = select.poll()
    closing.register(questions, select.POLLIN)

    def played(episodes: int, env_steps: int) -> None:
        write_frame(answers, PROGRESS.pack(episodes, env_steps))

    def answer_to(frame: Buffer, kind: str) -> Buffer | list[Buffer]:
        if kind == "describe":
            environment = codec.decode_describe(frame)
            simulator, spec = describe(environment)
            # As requests will name it.
            simulators[replace(environment, slots=spec.slots)] = simulator
            return codec.encode_description(spec)
        request = codec.decode_request(frame)
        environment = request.environment
        if isinstance(snapshot, WireError):
            raise snapshot
        if environment not in simulators:
            simulators[environment], _ = choose_simulator(environment)
        played(0, 0)
        result = collect_episodes(
            snapshot, request, simulators[environment], lambda: bool(closing.poll(0)), played
        )
        return codec.encode_result(result, request)

    with contextlib.suppress(OSError):
        while True:
            frame, _ = read_frame(questions)
            if not frame:  # what it withdraws is answered already
                continue
            kill_at_once(True)
            try:
                kind = packing.message_type(frame)
                if kind == "snapshot":
                    # A snapshot gets no answer; an error in it is the answer to the next request.
                    try:
                        snapshot = codec.decode_snapshot(frame)
                    except WireError as error:
                        snapshot = error
                    continue
                answer = answer_to(frame, kind)
            except SimulatorError as error:
                answer = codec.encode_failure(error.failure())
            except WireError as error:
                answer = codec.encode_failure(CollectFailure("garbled", summary(error)))
            except Exception as error:
                message = f"the collector raised {summary(error)}"
                failure = CollectFailure("simulator", message, traceback=traceback_of(error))
                answer = codec.encode_failure(failure)
            end_if_forked(process)  # where describing the environment has
            kill_at_once(False)
            write_frame(answers, answer)
    for simulator in simulators.values():
        try:
            simulator.close()
        except SimulatorError as error:
            print(error, file=sys.stderr)
    sys.stdout.flush()
    os.killpg(0, signal.SIGKILL)  # and what the simulators have started


def _die_with(lifeline: int) -> Callable[[bool], None]:
    """End this process, and what its simulator has started, `CLOSE_SECONDS` after the other end of
    the pipe closes: the parent is gone. Returns a function that is told whether a simulator is at
    work, which may hold the interpreter for long: then the kernel of Linux kills at once."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            os.read(lifeline, 1)
        time.sleep(CLOSE_SECONDS)
        os.killpg(0, signal.SIGKILL)

    def kill_at_once(yes: bool) -> None:
        if sys.platform == "linux":
            fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC if yes else flags)

    threading.Thread(target=watch, daemon=True).start()
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    return kill_at_once


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
