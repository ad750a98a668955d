"""What a Flame executor runs: a `Collector`, with simulators in child processes. An exception would
arrive without its text, so failures are values. Answers are columns of bytes, which cross Flame's
object cache neither pickled nor copied."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.introspect import opt_func_info

from flame_rl.actor.worker.supervisor import Limits, Team
from flame_rl.wire import codec
from flame_rl.wire.messages import CollectFailure
from flame_rl.wire.packing import Buffer

# Every executor has it; workers without a cluster need not.
if TYPE_CHECKING:
    import pyarrow

LOOK_SECONDS = 1.0  # how often to look whether Flame's executor manager is there
# An executor asks Flame when it starts, then when it has neither begun nor ended a task for so
# long, with this pause between the questions, which is longer in a cluster of many executors.
ASK_SECONDS = 10.0
SECONDS_PER_EXECUTOR = 0.05
CALL_SECONDS = 5.0
ABOUT = b"flame_rl.about"  # where an answer says what its executor runs


def versions() -> dict[str, str]:
    """The versions that, together with weights and seeds, decide the bits of an episode."""
    packages = ("numpy", "gymnasium", "mujoco")
    python = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    return python | {name: importlib.metadata.version(name) for name in packages}


def processor() -> dict[str, str]:
    """What of this processor decides bits, too: the kernel that NumPy's OpenBLAS chose for it, and
    the instruction set of NumPy's own loops. "unknown" with another BLAS."""
    kernel = "unknown"
    for path in Path(np.__file__).parent.parent.glob("numpy.libs/lib*openblas*"):
        with contextlib.suppress(OSError, AttributeError):
            name = ctypes.CDLL(str(path)).scipy_openblas_get_corename64_
            name.restype = ctypes.c_char_p
            kernel = name().decode()
    loops = opt_func_info(func_name="^exp$", signature="float64")
    chosen = {loop["current"] for loop in loops.get("exp", {}).values()}
    return {"BLAS kernel": kernel, "NumPy's instruction set": " ".join(sorted(chosen))}


class Collector:
    """The service's execution object; Flame makes one in each executor and calls its methods."""

    def __init__(self) -> None:
        self._team = Team(partial(print, file=sys.stderr))
        # The child imports while the learner does. If it cannot start, the first request says so.
        with contextlib.suppress(OSError):
            self._team.start()
        self._about = json.dumps({"node": socket.gethostname()} | versions() | processor()).encode()
        # When a task has begun or ended last, so that Flame had the executor.
        self._busy_at = -math.inf
        # Flame names the socket of an executor's process after the executor.
        self._id = Path(os.environ.get("FLAME_INSTANCE_ENDPOINT", "")).stem
        if self._id:
            threading.Thread(target=self._watch, daemon=True).start()

    def collect(
        self,
        snapshot: np.ndarray,
        request: bytes,
        limits: tuple[int, float, int, int, int],
        snapshot_ref: str,
    ) -> pyarrow.RecordBatch:
        """Collect in this executor's children, within the task's `Limits`; returns encoded episodes
        or an encoded failure, in a `column`. `snapshot` is encoded, as uint8; Flame resolves it
        from the object cache, by the reference whose JSON is `snapshot_ref`. An empty one, or the
        next, withdraws the tasks of the one before."""
        self._busy_at = time.monotonic()
        try:
            if len(snapshot):
                withdrawn = _withdrawal(snapshot, snapshot_ref)
                answer = self._team.collect(snapshot.tobytes(), request, Limits(*limits), withdrawn)
            else:
                failure = CollectFailure("stale", "the learner has withdrawn this task")
                answer = codec.encode_failure(failure)
        except Exception as error:
            failure = CollectFailure("garbled", f"{type(error).__name__}: {error}")
            answer = codec.encode_failure(failure)
        self._busy_at = time.monotonic()
        return arrow_batch(answer, self._about)

    def _watch(self) -> None:
        """End this process once Flame has given up its executor, or Flame's executor manager has
        ended: nobody else does."""
        manager, was_known, asked_at, pause = _manager(), False, -math.inf, ASK_SECONDS
        while _manager() == manager:
            # The first answers are needed soon: what was never known cannot be missed.
            quiet_since = max(asked_at, self._busy_at) if was_known else asked_at
            if time.monotonic() - quiet_since >= pause:
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
        self._team.close()
        os._exit(0)


def _withdrawal(snapshot: np.ndarray, snapshot_ref: str) -> Callable[[], bool]:
    """Asks the cache, more and more rarely, whether its weights are others by now."""
    began = asked_at = time.monotonic()

    def withdrawn() -> bool:
        nonlocal asked_at
        now = time.monotonic()
        if now - asked_at < min(1.0, max(0.3, (now - began) / 10)):
            return False
        asked_at = now
        # Imported here: every executor has Flame's client; workers without a cluster need not.
        from flamepy.core import ObjectRef, get_object

        try:
            found = get_object(ObjectRef(**json.loads(snapshot_ref)))
            return not np.array_equal(found, snapshot)
        except Exception:
            return False  # the cache may be away for a moment; the deadline still holds

    return withdrawn


def arrow_batch(data: Buffer, about: bytes) -> pyarrow.RecordBatch:
    """An Arrow batch whose only column, uint8, is a view of the bytes; `about` is metadata of its
    schema: JSON of the node's name, `versions()` and `processor()`."""
    import pyarrow

    values = pyarrow.Array.from_buffers(pyarrow.uint8(), len(data), [None, pyarrow.py_buffer(data)])
    schema = pyarrow.schema([pyarrow.field("data", pyarrow.uint8())], {ABOUT: about})
    return pyarrow.record_batch([values], schema=schema)


def _executors() -> set[str]:
    """The ids of all executors that Flame knows."""
    from flamepy.core.client import ConnectionInstance
    from flamepy.proto.frontend_pb2 import ListExecutorRequest

    frontend = ConnectionInstance.instance()._frontend
    answer = frontend.ListExecutor(ListExecutorRequest(), timeout=CALL_SECONDS)
    return {executor.metadata.id for executor in answer.executors}


def _manager() -> int | None:
    """The process id of Flame's executor manager, the parent of this group's leader, or None."""
    try:
        text = Path(f"/proc/{os.getpgrp()}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[1])
