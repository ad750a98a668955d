"""A time limit for calls of flamepy, which wait for ever for a server that hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flame_rl.system.signals import in_thread

CALL_SECONDS = 5.0

Result = TypeVar("Result")


def call_with_timeout(seconds: float, function: Callable[[], Result]) -> Result:
    """Call the function in a thread, which is left behind if it takes longer.

    Raises:
        TimeoutError: it took longer.
        Exception: whatever the function raised.
    """
    future = in_thread(function)
    try:
        return future.result(seconds)
    except TimeoutError as error:
        if future.done():  # raised by the function itself
            raise
        raise TimeoutError(f"no answer within {seconds:.0f} s") from error
