"""Signals as a request to stop, not as an exception in the middle of an update."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SHOW_CURSOR = "\x1b[?25h"
# `uv run` passes on a signal that the terminal has already sent to everyone: that is still one.
_ONE_SIGNAL_SECONDS = 0.3


class StopSignal(threading.Event):
    """Set once the user asks to stop.

    Attributes:
        exit_code: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, 0 before.
    """

    exit_code = 0


@contextmanager
def stop_on_signals() -> Iterator[StopSignal]:
    """Within the block, the first signal sets the event; a second one ends the process at once.

    Workers notice on their own that this process is gone.
    """
    stop = StopSignal()
    received_at = 0.0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received_at
        now = time.monotonic()
        if not stop.is_set():
            received_at = now
        elif now - received_at > _ONE_SIGNAL_SECONDS:
            if sys.stdout.isatty():
                os.write(1, _SHOW_CURSOR.encode())
            os._exit(128 + number)
        stop.exit_code = 128 + number
        stop.set()

    previous = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
