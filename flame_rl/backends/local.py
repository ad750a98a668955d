"""Collect on this machine: in this process, where breakpoints work, or in supervised workers."""

import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.environments.making import start_clock
from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.randomness import seed_of
from flame_rl.actor.simulators.choose import describe
from flame_rl.actor.simulators.forked import end_if_forked
from flame_rl.actor.simulators.simulator import Simulator
from flame_rl.actor.worker.process import CLOSE_SECONDS
from flame_rl.actor.worker.supervisor import SupervisedWorker
from flame_rl.backends import dispatch
from flame_rl.backends.tasks import Deadlines, TaskSizes
from flame_rl.system.errors import UsageError, warn
from flame_rl.system.machine import ONE_BLAS_THREAD
from flame_rl.system.signals import close_within
from flame_rl.wire import codec
from flame_rl.wire.messages import CollectRequest, Environment, EnvironmentSpec, PolicySnapshot
from flame_rl.wire.packing import Buffer


class InlineBackend:
    """Plays all episodes in this process, with one simulator."""

    def __init__(self, stop: threading.Event) -> None:
        self.listener = dispatch.Listener()
        self._stop = stop
        self._simulator: Simulator | None = None

    def describe(self, environment: Environment) -> EnvironmentSpec:
        process = os.getpid()
        try:
            self._simulator, spec = describe(environment)
            return spec
        except SimulatorError as error:
            raise UsageError(str(error.failure(environment.env_id))) from error
        finally:
            end_if_forked(process)

    def collect(self, snapshot: PolicySnapshot, request: CollectRequest) -> dispatch.Collected:
        def submit(data: bytes, episodes: int) -> Future[bytes]:
            task = codec.decode_request(data)
            played = partial(dispatch.tell, self.listener.collecting, task)
            result = collect_episodes(snapshot, task, self._simulator, self._stop.is_set, played)
            future: Future[bytes] = Future()
            future.set_result(b"".join(codec.encode_result(result, task)))
            return future

        with ONE_BLAS_THREAD:
            # One task fills all slots, and no other worker waits for its end.
            transport = dispatch.Transport(submit, in_flight=1)
            return dispatch.gather(request, transport, TaskSizes(1), self._stop, self.listener)

    def close(self) -> None:
        if self._simulator is not None:
            simulator, self._simulator = self._simulator, None
            close_within(CLOSE_SECONDS, simulator.close)
        start_clock()


class ProcessBackend:
    """Plays episodes in worker processes."""

    def __init__(self, workers: int, deadlines: Deadlines, stop: threading.Event) -> None:
        """Start `workers` processes at once; they import while the learner does."""
        self.listener = dispatch.Listener()
        self.deadlines = deadlines
        self.sizes = TaskSizes(workers)
        self._stop = stop
        self._workers = [SupervisedWorker(warn) for _ in range(workers)]
        # No more threads than workers, so that whoever looks for an idle one finds one.
        self._idle: list[SupervisedWorker] = []
        self._choosing = threading.Lock()
        # Those that have played an episode's last fragment, by its reset seed.
        self._last_workers: dict[int, SupervisedWorker] = {}
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="worker")
        try:
            for worker in self._workers:
                worker.start()
                self._idle.append(worker)
        except OSError as error:
            self.close()
            raise UsageError(f"--workers: {workers} processes cannot start: {error}") from error

    def describe(self, environment: Environment) -> EnvironmentSpec:
        deadline = self.deadlines.limits().deadline
        return dispatch.describe_by(self._workers[0], environment, deadline, self._stop)

    def collect(self, snapshot: PolicySnapshot, request: CollectRequest) -> dispatch.Collected:
        encoded = codec.encode_snapshot(snapshot)
        over, going_on = threading.Event(), {start.seed for start in request.starts.values()}
        self._last_workers = {s: w for s, w in self._last_workers.items() if s in going_on}

        def run(data: bytes, episodes: int) -> Buffer:
            seeds = []
            if request.fragment_steps is not None:
                seeds = [seed_of(request, index) for index in codec.decode_request(data).indices]
            with self._choosing:
                last = [self._last_workers.get(seed) for seed in seeds]
                worker = next((each for each in last if each in self._idle), self._idle[0])
                self._idle.remove(worker)
                self._last_workers |= dict.fromkeys(seeds, worker)
            try:
                began = time.monotonic()
                limits = self.deadlines.limits(episodes)
                answer = worker.collect(encoded, data, limits, over.is_set)
                seconds = time.monotonic() - began
                self.deadlines.note(limits, seconds, codec.failure_kind(answer))
                return answer
            finally:
                self._idle.append(worker)

        workers = len(self._workers)
        transport = dispatch.Transport(
            partial(self._threads.submit, run),
            in_flight=workers + 1,
            played=lambda: tuple(map(sum, zip(*(w.played for w in self._workers), strict=True))),
            unusable="It was made once before; --workers 1 --slots 1 makes no other",
        )
        try:
            collected = dispatch.gather(request, transport, self.sizes, self._stop, self.listener)
        finally:
            over.set()  # nobody waits for what was asked for twice
        # Each worker is sent the weights once.
        return replace(collected, bytes_out=collected.bytes_out + workers * len(encoded))

    def close(self) -> None:
        # In parallel: each may take as long as its environments do.
        with ThreadPoolExecutor(len(self._workers)) as threads:
            list(threads.map(SupervisedWorker.close, self._workers))
        self._threads.shutdown(cancel_futures=True)
