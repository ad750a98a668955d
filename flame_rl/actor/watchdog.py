"""An executor's own process does not outlive the executor: nobody else ends it where Flame has
given up a node, or where Flame's executor manager dies."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

# How often to look whether Flame's executor manager is there.
LOOK_SECONDS = 1.0
# How long an executor neither begins nor ends a task before it asks Flame, and the pause between
# such questions, which is longer in a cluster of many executors.
ASK_SECONDS = 10.0
SECONDS_PER_EXECUTOR = 0.05
CALL_SECONDS = 5.0


class Watchdog:
    """Watches the executor that this process belongs to, in a thread of its own."""

    def __init__(self, gone: Callable[[], None]) -> None:
        """`gone` is called once, in that thread, when Flame's executor manager has ended or Flame
        has given up the executor."""
        self._gone = gone
        self._busy_at = -math.inf
        # Flame names the socket of an executor's process after the executor.
        self._id = Path(os.environ.get("FLAME_INSTANCE_ENDPOINT", "")).stem
        if self._id:
            threading.Thread(target=self._watch, daemon=True).start()

    def busy(self) -> None:
        """A task has just begun or ended, so that Flame has the executor."""
        self._busy_at = time.monotonic()

    def _watch(self) -> None:
        manager, was_known, asked_at, pause = _manager(), False, -math.inf, ASK_SECONDS
        while _manager() == manager:
            if time.monotonic() - max(asked_at, self._busy_at) >= pause:
                with contextlib.suppress(Exception):  # Flame does not answer now, or there is none
                    executors = _executors()
                    known = self._id in executors
                    # Before it was known, it may be that Flame names it in another way.
                    if was_known and not known:
                        break
                    was_known = known
                    pause = max(ASK_SECONDS, SECONDS_PER_EXECUTOR * len(executors))
                asked_at = time.monotonic()
            time.sleep(LOOK_SECONDS)
        self._gone()


def _executors() -> set[str]:
    """The ids of all executors that Flame knows."""
    # Imported here: every executor has Flame's client; workers without a cluster need not.
    from flamepy.core.client import ConnectionInstance
    from flamepy.proto.frontend_pb2 import ListExecutorRequest

    frontend = ConnectionInstance.instance()._frontend
    answer = frontend.ListExecutor(ListExecutorRequest(), timeout=CALL_SECONDS)
    return {executor.metadata.id for executor in answer.executors}


def _manager() -> int | None:
    """The process id of Flame's executor manager, the parent of the leader of this group; None
    where the system does not say."""
    try:
        text = Path(f"/proc/{os.getpgrp()}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[1])
