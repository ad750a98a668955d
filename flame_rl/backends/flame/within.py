"""A time limit for calls that have none: flamepy's wait for ever for a server that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

CALL_SECONDS = 5.0

Result = TypeVar("Result")


def within(seconds: float, function: Callable[[], Result]) -> Result:
    """Call the function, in a thread that is left behind if it takes longer.

    Raises:
        TimeoutError: it took longer.
        Exception: whatever the function raised.
    """
    future: Future[Result] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError as error:
        if future.done():  # the function's own
            raise
        raise TimeoutError(f"no answer within {seconds:.0f} s") from error
