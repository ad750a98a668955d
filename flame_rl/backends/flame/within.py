"""Ends for calls that have none of their own: flamepy's wait for ever for a server that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from flame_rl.errors import Interrupted

CALL_SECONDS = 5.0
STOP_SECONDS = 0.5
_POLL_SECONDS = 0.1

Result = TypeVar("Result")


def within(seconds: float, function: Callable[[], Result]) -> Result:
    """Call the function, in a thread that is left behind if it takes longer.

    Raises:
        TimeoutError: it took longer.
        Exception: whatever the function raised.
    """
    future = _started(function)
    try:
        return future.result(seconds)
    except TimeoutError as error:
        if future.done():  # the function's own
            raise
        raise TimeoutError(f"no answer within {seconds:.0f} s") from error


def unless_stopped(stop: threading.Event, function: Callable[[], Result]) -> Result:
    """Call the function, in a thread that is left behind if `stop` is set and it goes on for
    `STOP_SECONDS`.

    Raises:
        Interrupted: that happened.
        Exception: whatever the function raised.
    """
    future = _started(function)
    # Nothing that Python calls in C may block here, or no signal would be heard.
    while not future.done() and not stop.is_set():
        wait([future], timeout=_POLL_SECONDS)
    wait([future], timeout=STOP_SECONDS)
    if not future.done():
        raise Interrupted
    return future.result()


def _started(function: Callable[[], Result]) -> Future[Result]:
    future: Future[Result] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future
