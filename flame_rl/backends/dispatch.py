"""Split a request into tasks, keep workers busy, check the answers, ask again for what failed.

Shared by all backends: each supplies only `submit`, a way to send one encoded request and get a
future of an encoded answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace

from flame_rl import wire
from flame_rl.errors import Interrupted, RunError, UsageError
from flame_rl.messages import (
    CollectFailure,
    CollectRequest,
    EnvironmentSpec,
    Episode,
    PolicySnapshot,
)

MAX_ATTEMPTS = 3
STOP_POLL_SECONDS = 0.1

# The environment's own doing, as opposed to the machinery's.
_ENVIRONMENT_KINDS = ("environment", "invalid", "simulator")


@dataclass(frozen=True)
class Collected:
    """The episodes of one iteration and what it took to get them.

    Attributes:
        episodes: sorted by index.
        bytes_out, bytes_in: what went to the workers and came back.
        waiting_seconds: how long the learner's process had nothing to do but wait for episodes.
        retries: how many tasks had to be sent again.
    """

    episodes: list[Episode]
    bytes_out: int
    bytes_in: int
    waiting_seconds: float
    retries: int


@dataclass(frozen=True)
class _Task:
    request: CollectRequest
    attempt: int


def gather(
    snapshot: PolicySnapshot,
    request: CollectRequest,
    submit: Callable[[bytes], Future[bytes]],
    *,
    task_size: int,
    in_flight: int,
    stop: threading.Event,
    check: Callable[[], None] = lambda: None,
) -> Collected:
    """Collect all of `request`, at most `in_flight` tasks of `task_size` episodes at a time.

    How it is split changes no result: every episode is a function of its index, and a failed task
    is sent again with the same indices, at most `MAX_ATTEMPTS` times. `check` is called while
    nothing arrives, and may raise.

    Raises:
        UsageError, RunError, Interrupted: see `Backend.collect`. Tasks may then still be in flight.
    """
    indices = request.indices
    pending = [
        _Task(replace(request, indices=indices[start : start + task_size]), attempt=1)
        for start in range(0, len(indices), task_size)
    ]
    pending.reverse()
    running: dict[Future[bytes], _Task] = {}
    episodes: list[Episode] = []
    bytes_out = bytes_in = retries = 0
    waiting = 0.0
    while pending or running:
        while pending and len(running) < in_flight:
            task = pending.pop()
            data = wire.encode_request(task.request)
            bytes_out += len(data)
            running[submit(data)] = task
        began = time.perf_counter()
        done, _ = wait(running, timeout=STOP_POLL_SECONDS, return_when=FIRST_COMPLETED)
        waiting += time.perf_counter() - began
        if stop.is_set():
            raise Interrupted
        if not done:
            check()
        for future in done:
            task = running.pop(future)
            answer, size = _read_answer(future, snapshot, task.request)
            bytes_in += size
            if not isinstance(answer, CollectFailure):
                episodes += answer
                continue
            if answer.kind == "environment" or task.attempt >= MAX_ATTEMPTS:
                raise _final_error(answer, task)
            retries += 1
            pending.append(replace(task, attempt=task.attempt + 1))
    episodes.sort(key=lambda episode: episode.index)
    return Collected(episodes, bytes_out, bytes_in, waiting, retries)


def read_description(data: bytes) -> EnvironmentSpec:
    """The environment's description. Raises UsageError if the answer is a failure."""
    answer = wire.decode_description(data)
    if isinstance(answer, CollectFailure):
        raise UsageError(explain(answer))
    return answer


def explain(failure: CollectFailure) -> str:
    """A failure for the person who runs the program."""
    if failure.kind == "environment":
        # Its message names the environment already.
        text = failure.message
        return f"{text}\n\n{failure.traceback.rstrip()}" if failure.traceback else text
    return str(failure)


def _read_answer(
    future: Future[bytes], snapshot: PolicySnapshot, request: CollectRequest
) -> tuple[list[Episode] | CollectFailure, int]:
    try:
        data = future.result()
        return wire.decode_result(data, snapshot, request), len(data)
    except Exception as error:
        # Whatever a transport raises is a failure of that task, to be tried again.
        return (
            CollectFailure(
                "transport",
                f"{type(error).__name__}: {error}",
                request.env_id,
                iteration=request.iteration,
            ),
            0,
        )


def _final_error(failure: CollectFailure, task: _Task) -> UsageError | RunError:
    if failure.kind in _ENVIRONMENT_KINDS:
        return UsageError(explain(failure))
    first, last = task.request.indices[0], task.request.indices[-1]
    return RunError(
        f"iteration {task.request.iteration}, episodes {first} to {last} could not be collected "
        f"in {task.attempt} attempts: {failure}"
    )
