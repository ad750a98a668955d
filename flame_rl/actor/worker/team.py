"""Several workers that share each task."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from flame_rl.actor.worker.supervisor import Limits, Worker
from flame_rl.wire import codec
from flame_rl.wire.messages import CollectFailure, CollectRequest, Episodes, concatenate
from flame_rl.wire.packing import Buffer


class Team:
    """Plays tasks as one `Worker` does, with as many as `Limits.workers` says: whoever has nothing
    to do takes some of the episodes that are left, first more of them, then fewer."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        """`warn`: see `Worker`."""
        self._warn = warn
        self._workers = [Worker(warn)]

    def start(self) -> None:
        """Let the first child import early. Raises as `Worker.start` does."""
        self._workers[0].start()

    def collect(
        self, snapshot: bytes, request: bytes, limits: Limits, withdrawn: Callable[[], bool]
    ) -> Buffer:
        """See `Worker.collect`. A failure of one ends the task."""
        while len(self._workers) < limits.workers:
            self._workers.append(Worker(self._warn))
        workers = self._workers[: min(limits.workers, limits.episodes)]
        if len(workers) == 1:
            return workers[0].collect(snapshot, request, limits, withdrawn)
        work = _Work(codec.decode_request(request), snapshot, limits, withdrawn)
        with ThreadPoolExecutor(len(workers)) as threads:
            list(threads.map(work.share, workers))
        return work.answer()

    def close(self) -> None:
        """End all children for good."""
        with ThreadPoolExecutor(len(self._workers)) as threads:
            list(threads.map(Worker.close, self._workers))


class _Work:
    """One task, while several workers play it."""

    def __init__(
        self,
        request: CollectRequest,
        snapshot: bytes,
        limits: Limits,
        withdrawn: Callable[[], bool],
    ) -> None:
        self._request, self._snapshot = request, snapshot
        self._limits, self._withdrawn = limits, withdrawn
        self._ends = time.monotonic() + limits.deadline
        self._left = request.indices
        self._taking = threading.Lock()
        self._done: list[Episodes] = []
        self._failures: list[CollectFailure] = []

    def share(self, worker: Worker) -> None:
        """Let a worker play until nothing is left or something has failed."""
        while not self._failures and (part := self._take()) is not None:
            seconds = max(0.0, self._ends - time.monotonic())
            limits = self._limits._replace(episodes=len(part.indices), deadline=seconds)
            data = worker.collect(
                self._snapshot,
                codec.encode_request(part),
                limits,
                lambda: bool(self._failures) or self._withdrawn(),
            )
            try:
                answer = codec.decode_result(data, part)
            except Exception as error:
                answer = CollectFailure("garbled", f"{type(error).__name__}: {error}")
            (self._failures if isinstance(answer, CollectFailure) else self._done).append(answer)

    def answer(self) -> bytes:
        """The task's encoded answer. The first failure is the cause of the others."""
        if self._failures:
            return codec.encode_failure(self._failures[0])
        self._done.sort(key=lambda episodes: episodes.index[0])
        return b"".join(codec.encode_episodes(concatenate(self._done), self._request))

    def _take(self) -> CollectRequest | None:
        with self._taking:
            count = max(1, len(self._left) // (2 * self._limits.workers))
            taken, self._left = self._left[:count], self._left[count:]
        return replace(self._request, indices=taken) if taken else None
