"""A module of this package in a process of its own, and the frames that the two exchange: a fixed
head, then a message of `flame_rl.wire`. Run itself, it is a worker, see `SupervisedWorker`, which
reads frames and answers requests until no more can come, then closes its environments."""

import contextlib
import faulthandler
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import BinaryIO

from flame_rl.actor.simulators.forked import peak_bytes
from flame_rl.wire import codec, packing
from flame_rl.wire.messages import CollectFailure, Environment, PolicySnapshot
from flame_rl.wire.packing import Buffer, WireError

# Not by PYTHONPATH: a folder whose path has a colon cannot be named there.
# What the process starts in its turn inherits no pipe.
_RUN = (
    "import json, os, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "name = sys.argv.pop(1); [os.set_inheritable(int(number), False) for number in sys.argv[1:]]; "
    "runpy.run_module(name, run_name='__main__', alter_sys=True)"
)
# More than one BLAS thread would change bits, and the process has one core to itself.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
CLOSE_SECONDS = 5.0  # the time that a process has to close its environments
# The size of the message and the peak memory of its sender, both in bytes.
_HEAD = struct.Struct("<QQ")
# A child's frame while it plays a task: the numbers of ended episodes and of env steps.
PROGRESS = struct.Struct("<QQ")
_MAX_FRAME_BYTES = 1 << 34  # far above any real answer
# A frame is read in pieces, so that no memory is taken for bytes that never come.
_PIECE_BYTES = 1 << 26

# Waits until a pipe can be read (POLLIN) or written (POLLOUT), or raises.
Wait = Callable[[BinaryIO, int], None]


class ChildProcess(subprocess.Popen[bytes]):
    """Runs a module as `python -m` does; it finds modules where this process does. The two talk
    over `questions`, which this process writes, and `answers`, which it reads: unbuffered pipes,
    whose other ends are the first two numbers in the module's `sys.argv`. What is printed goes to
    standard error. Ctrl-C in the terminal does not reach the process."""

    def __init__(self, module: str, descriptors: Sequence[int] = (), silent: bool = False) -> None:
        """Start the module of this full name. The numbers of `descriptors`, open files that it
        inherits, follow in its `sys.argv`; `silent`: what it prints is lost. Raises OSError."""
        # What the import system reads of it.
        path = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]  # noqa: PTH109
        # PYTHONPATH is for programs that a simulator starts in its turn.
        named = os.pathsep.join(entry for entry in path if os.pathsep not in entry)
        # Another file may have its number where standard error was closed before Python began.
        prints = subprocess.DEVNULL if silent or sys.__stderr__ is None else 2
        (theirs, questions), (answers, other) = os.pipe(), os.pipe()
        self.questions: BinaryIO = os.fdopen(questions, "wb", buffering=0)
        self.answers: BinaryIO = os.fdopen(answers, "rb", buffering=0)
        descriptors = [theirs, other, *descriptors]
        # -P: modules are found where the parent finds them, and nowhere else.
        command = [sys.executable, "-P", "-c", _RUN, json.dumps(path), module]
        try:
            super().__init__(
                command + [str(number) for number in descriptors],
                stdin=subprocess.DEVNULL,
                stdout=prints,
                stderr=prints,
                env=os.environ | _ONE_THREAD | {"PYTHONPATH": named},
                pass_fds=descriptors,
                start_new_session=True,
            )
        except BaseException:
            self.questions.close()
            self.answers.close()
            raise
        finally:
            os.close(theirs)
            os.close(other)

    def end(self, seconds: float = 0.0) -> bool:
        """Close the pipes, upon which the process may end within `seconds`, and kill it and
        whatever it has started. Returns whether it has ended by itself. May be called twice."""
        if self.questions.closed:
            return True  # its number may be another process's by now
        self.questions.close()
        self.answers.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(seconds)
        in_time = self.returncode is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        return in_time


def write_frame(pipe: BinaryIO, frame: Buffer | list[Buffer], wait: Wait | None = None) -> None:
    """Send a frame, given whole or in parts. `wait` is called where the pipe takes no more for now;
    a pipe that blocks needs none. Raises what `wait` does, and OSError if nobody reads."""
    parts = frame if isinstance(frame, list) else [frame]
    for part in (_HEAD.pack(sum(map(len, parts)), peak_bytes()), *parts):
        view = memoryview(part)
        while view:
            written = pipe.write(view)
            if written is None:
                wait(pipe, select.POLLOUT)
            view = view[written or 0 :]


def read_frame(pipe: BinaryIO, wait: Wait | None = None) -> tuple[bytearray, int]:
    """A message and its sender's peak memory in bytes. `wait` is called where nothing can be read
    for now. Raises what `wait` does, and OSError at the pipe's end, or of a message too long."""
    size, memory = _HEAD.unpack(_read_exactly(pipe, _HEAD.size, wait))
    if size > _MAX_FRAME_BYTES:
        raise OSError(f"a frame of {size} bytes is announced")
    return _read_exactly(pipe, size, wait), memory


def _read_exactly(pipe: BinaryIO, size: int, wait: Wait | None) -> bytearray:
    pieces: list[bytearray] = []
    for begin in range(0, size, _PIECE_BYTES):
        piece = bytearray(min(size - begin, _PIECE_BYTES))
        view = memoryview(piece)
        while view:
            count = pipe.readinto(view)
            if count == 0:
                raise BrokenPipeError("the other side is gone")
            if count is None:
                wait(pipe, select.POLLIN)
            view = view[count or 0 :]
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else bytearray().join(pieces)


def main(questions_fd: int, answers_fd: int, last_words_fd: int, lifeline: int) -> None:
    """Answer requests until the questions end; for the descriptors see `supervisor._Child`."""
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
    interruption = select.poll()
    interruption.register(questions, select.POLLIN)

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
            snapshot, request, simulators[environment], lambda: bool(interruption.poll(0)), played
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
                message, cause = f"the collector raised {summary(error)}", traceback_of(error)
                answer = codec.encode_failure(CollectFailure("simulator", message, traceback=cause))
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

    threading.Thread(target=watch, daemon=True).start()
    if sys.platform != "linux":
        return lambda yes: None
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgid(0))
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    return lambda yes: fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC if yes else flags)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
