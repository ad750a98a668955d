"""Ctrl-C and SIGTERM as a request to stop, not as an exception in the middle of an update."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SHOW_CURSOR = "\x1b[?25h"


class StopSignal(threading.Event):
    """Set once the user asks to stop.

    Attributes:
        exit_code: 130 after Ctrl-C, 143 after SIGTERM, 0 before.
    """

    exit_code = 0


@contextmanager
def stop_on_signals() -> Iterator[StopSignal]:
    """Within the block, the first signal sets the event; a second one ends the process at once.

    Workers notice on their own that this process is gone.
    """
    stop = StopSignal()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            if sys.stdout.isatty():
                os.write(1, _SHOW_CURSOR.encode())
            os._exit(128 + number)
        stop.exit_code = 128 + number
        stop.set()

    previous = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
