"""Signals as a request to stop, not as an exception in the middle of an update."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextvars import ContextVar
from types import FrameType
from typing import TypeVar

from flame_rl.system.errors import Interrupted, warn

# `uv run` forwards a signal that the terminal has sent to this process, too: both count as one.
_ONE_SIGNAL_SECONDS = 0.3
_GRACE_SECONDS = 0.5
_POLL_SECONDS = 0.1

Result = TypeVar("Result")

# A context variable, so that what computes for long need not pass the event on.
_STOP: ContextVar[threading.Event | None] = ContextVar("stop", default=None)


class StopSignal(threading.Event):
    """Set once the user asks to stop."""

    exit_code = 0  # 128 and the signal's number: 130 after Ctrl-C, 143 after SIGTERM


class EitherEvent(threading.Event):
    """An event that is also set when another one is."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        return super().is_set() or self._other.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self._other.wait(timeout) or self.is_set()


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopSignal]:
    """Within the block, the first signal sets the event; a second one ends the process at once.
    `Interrupted` ends the block and goes no further."""
    stop = StopSignal()
    received_at = 0.0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received_at
        now = time.monotonic()
        if not stop.is_set():
            received_at = now
        elif now - received_at > _ONE_SIGNAL_SECONDS:
            if sys.stdout is not None and sys.stdout.isatty():
                os.write(1, b"\x1b[?25h")  # show the cursor
            os._exit(128 + number)
        stop.exit_code = 128 + number
        stop.set()

    # The last two come from batch systems.
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    # What whoever started this process wants ignored (nohup) stays ignored.
    heard = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
    previous = {n: signal.signal(n, handle) for n in heard}
    try:
        with contextlib.suppress(Interrupted):
            yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stoppable(stop: threading.Event) -> Iterator[None]:
    """Within the block `end_if_stopped` heeds this event. Where Ctrl-C would raise an exception, it
    sets the event, and KeyboardInterrupt comes at the end, where no second one can disturb it."""
    token, held = _STOP.set(stop), []

    def hold(*_: object) -> None:
        held.append(True)
        stop.set()

    mine = threading.current_thread() is threading.main_thread()
    mine = mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if mine:
        signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        _STOP.reset(token)
        if mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if held:
            stop.clear()
            raise KeyboardInterrupt


def end_if_stopped() -> None:
    """Raise Interrupted within `stoppable` once the user asks to stop."""
    stop = _STOP.get()
    if stop is not None and stop.is_set():
        raise Interrupted


def unless_stopped(stop: threading.Event, function: Callable[[], Result]) -> Result:
    """Call the function in a thread. Raises Interrupted if `stop` was set before, or if the thread
    still runs half a second after `stop` was set: it is then left behind."""
    if stop.is_set():
        raise Interrupted
    future = in_thread(function)
    # Short waits, because a signal handler cannot run during a blocking call.
    while not future.done() and not stop.is_set():
        wait([future], timeout=_POLL_SECONDS)
    wait([future], timeout=_GRACE_SECONDS)
    if not future.done():
        raise Interrupted
    return future.result()


def in_thread(function: Callable[[], Result]) -> Future[Result]:
    """Call the function in a daemon thread; the future holds what it returns or raises."""
    future: Future[Result] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        # SystemExit, too: of a future that nobody sets, the result is waited for without end.
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future


def call_with_timeout(seconds: float, function: Callable[[], Result]) -> Result:
    """Call the function in a thread, which TimeoutError leaves behind if it takes longer."""
    future = in_thread(function)
    wait([future], timeout=seconds)
    if not future.done():
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return future.result()


def close_within(seconds: float, close: Callable[[], None]) -> None:
    """Close environments. If that takes longer, or raises an exception, it costs a line."""
    try:
        call_with_timeout(seconds, close)
    except TimeoutError:
        warn(f"the environments did not close within {seconds:.0f} s and are left open")
    except Exception as error:
        warn(str(error))
