"""Collect in supervised worker processes on this machine."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from flame_rl.actor.worker.supervisor import Worker
from flame_rl.backends.dispatch import Collected, Transport, describe_by, gather
from flame_rl.backends.patience import Patience
from flame_rl.backends.shares import Shares
from flame_rl.system.errors import UsageError
from flame_rl.system.output import warn
from flame_rl.wire import codec
from flame_rl.wire.messages import CollectRequest, Environment, EnvironmentSpec, PolicySnapshot
from flame_rl.wire.packing import Buffer


class ProcessBackend:
    """See `Backend`.

    Attributes:
        shares: decides how many episodes each task has.
    """

    def __init__(self, workers: int, patience: Patience, stop: threading.Event) -> None:
        """Start `workers` processes at once; they import while the learner does."""
        self.listener = None
        self._patience = patience
        self._stop = stop
        self._workers = [Worker(warn) for _ in range(workers)]
        self.shares = Shares(workers)
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        try:
            for worker in self._workers:
                worker.start()
                self._idle.put(worker)
        except OSError as error:
            self._close_workers()
            raise UsageError(
                f"--workers: {workers} processes cannot be started: {error}"
            ) from error
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="worker")

    def describe(self, environment: Environment) -> EnvironmentSpec:
        deadline = self._patience.limits().deadline
        return describe_by(self._workers[0], environment, deadline, self._stop)

    def collect(self, snapshot: PolicySnapshot, request: CollectRequest) -> Collected:
        encoded = codec.encode_snapshot(snapshot)
        over = threading.Event()

        def run(data: bytes, episodes: int) -> Buffer:
            worker = self._idle.get()
            try:
                began = time.monotonic()
                limits = self._patience.limits(episodes)
                answer = worker.collect(encoded, data, limits, over.is_set)
                self._patience.learn(limits, time.monotonic() - began, answer)
                return answer
            finally:
                self._idle.put(worker)

        def submit(data: bytes, episodes: int) -> Future[Buffer]:
            return self._threads.submit(run, data, episodes)

        workers = len(self._workers)
        transport = Transport(
            submit,
            in_flight=workers + 1,
            played=self._played,
            unusable="It was made once before: where only one can exist, --workers 1 --slots 1 "
            "makes no other",
        )
        try:
            collected = gather(snapshot, request, transport, self.shares, self._stop, self.listener)
        finally:
            over.set()  # nobody waits for what was asked for twice
        # Each worker is sent the weights once.
        return replace(collected, bytes_out=collected.bytes_out + workers * len(encoded))

    def _played(self) -> tuple[int, int]:
        counts = [worker.played() for worker in self._workers]
        return sum(episodes for episodes, _ in counts), sum(steps for _, steps in counts)

    def close(self) -> None:
        self._close_workers()
        self._threads.shutdown(cancel_futures=True)

    def _close_workers(self) -> None:
        # Side by side: each may take as long as its environments do.
        with ThreadPoolExecutor(len(self._workers)) as threads:
            list(threads.map(Worker.close, self._workers))
