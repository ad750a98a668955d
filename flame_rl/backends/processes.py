"""Collect in supervised worker processes on this machine."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from flame_rl.actor.worker.supervisor import Worker
from flame_rl.backends.deadlines import Deadlines
from flame_rl.backends.dispatch import Collected, Listener, Transport, describe_by, gather
from flame_rl.backends.tasks import TaskSizes
from flame_rl.system.errors import UsageError
from flame_rl.system.output import warn
from flame_rl.wire import codec
from flame_rl.wire.messages import CollectRequest, Environment, EnvironmentSpec, PolicySnapshot
from flame_rl.wire.packing import Buffer


class ProcessBackend:
    """Plays episodes in worker processes."""

    def __init__(self, workers: int, deadlines: Deadlines, stop: threading.Event) -> None:
        """Start `workers` processes at once; they import while the learner does."""
        self.listener = Listener()
        self.deadlines = deadlines
        self.sizes = TaskSizes(workers)
        self._stop = stop
        self._workers = [Worker(warn) for _ in range(workers)]
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="worker")
        try:
            for worker in self._workers:
                worker.start()
                self._idle.put(worker)
        except OSError as error:
            self.close()
            raise UsageError(
                f"--workers: {workers} processes cannot be started: {error}"
            ) from error

    def describe(self, environment: Environment) -> EnvironmentSpec:
        deadline = self.deadlines.limits().deadline
        return describe_by(self._workers[0], environment, deadline, self._stop)

    def collect(self, snapshot: PolicySnapshot, request: CollectRequest) -> Collected:
        encoded = codec.encode_snapshot(snapshot)
        over = threading.Event()

        def run(data: bytes, episodes: int) -> Buffer:
            worker = self._idle.get()
            try:
                began = time.monotonic()
                limits = self.deadlines.limits(episodes)
                answer = worker.collect(encoded, data, limits, over.is_set)
                seconds = time.monotonic() - began
                self.deadlines.learn(limits, seconds, codec.failure_kind(answer))
                return answer
            finally:
                self._idle.put(worker)

        workers = len(self._workers)
        transport = Transport(
            partial(self._threads.submit, run),
            in_flight=workers + 1,
            played=lambda: tuple(map(sum, zip(*(w.played() for w in self._workers), strict=True))),
            unusable="It was made once before; --workers 1 --slots 1 makes no other",
        )
        try:
            collected = gather(request, transport, self.sizes, self._stop, self.listener)
        finally:
            over.set()  # nobody waits for what was asked for twice
        # Each worker is sent the weights once.
        return replace(collected, bytes_out=collected.bytes_out + workers * len(encoded))

    def close(self) -> None:
        # In parallel: each may take as long as its environments do.
        with ThreadPoolExecutor(len(self._workers)) as threads:
            list(threads.map(Worker.close, self._workers))
        self._threads.shutdown(cancel_futures=True)
