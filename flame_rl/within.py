"""Calls that may take too long: a time limit, and an ear for the user's wish to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from flame_rl.errors import Interrupted

# flamepy's calls wait for ever for a server that hangs.
CALL_SECONDS = 5.0
_POLL_SECONDS = 0.05

Result = TypeVar("Result")


def within(
    seconds: float, function: Callable[[], Result], stop: threading.Event | None = None
) -> Result:
    """Call the function, in a thread that is left behind if it takes longer or `stop` is set.

    Raises:
        TimeoutError: it took longer.
        Interrupted: `stop` was set.
        Exception: whatever the function raised.
    """
    future: Future[Result] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    limit = time.monotonic() + seconds
    threading.Thread(target=call, daemon=True).start()
    # Waiting and reading apart: the function may itself raise TimeoutError.
    while not wait([future], _POLL_SECONDS).done:
        if stop is not None and stop.is_set():
            raise Interrupted
        if time.monotonic() >= limit:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
    return future.result()
