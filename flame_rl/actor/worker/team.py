"""Several workers that share each task."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from flame_rl.actor.failure import summary
from flame_rl.actor.worker.supervisor import Limits, Withdrawn, Worker
from flame_rl.wire import codec
from flame_rl.wire.messages import CollectFailure, Episodes, concatenate
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

    def close(self) -> None:
        """End all children for good."""
        with ThreadPoolExecutor(len(self._workers)) as threads:
            list(threads.map(Worker.close, self._workers))

    def collect(
        self, snapshot: bytes, request: bytes, limits: Limits, withdrawn: Withdrawn
    ) -> Buffer:
        """See `Worker.collect`. The first failure ends the task: it causes the others."""
        while len(self._workers) < limits.workers:
            self._workers.append(Worker(self._warn))
        workers = self._workers[: min(limits.workers, limits.episodes)]
        if len(workers) == 1:
            return workers[0].collect(snapshot, request, limits, withdrawn)
        asked, ends = codec.decode_request(request), time.monotonic() + limits.deadline
        left, taking = asked.indices, threading.Lock()
        done: list[Episodes] = []
        failures: list[CollectFailure] = []

        def play(worker: Worker) -> None:
            nonlocal left
            while not failures:
                with taking:
                    count = max(1, len(left) // (2 * limits.workers))
                    taken, left = left[:count], left[count:]
                if not taken:
                    return
                part = replace(asked, indices=taken)
                seconds = max(0.0, ends - time.monotonic())
                data = worker.collect(
                    snapshot,
                    codec.encode_request(part),
                    limits._replace(episodes=len(taken), deadline=seconds),
                    lambda: bool(failures) or withdrawn(),
                )
                try:
                    answer = codec.decode_result(data, part)
                except Exception as error:
                    answer = CollectFailure("garbled", summary(error))
                (failures if isinstance(answer, CollectFailure) else done).append(answer)

        with ThreadPoolExecutor(len(workers)) as threads:
            list(threads.map(play, workers))
        if failures:
            return codec.encode_failure(failures[0])
        done.sort(key=lambda episodes: episodes.index[0])
        return b"".join(codec.encode_episodes(concatenate(done), asked))
