"""Collect in this process: slow, and a breakpoint in a simulator or the collector works."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial

from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.environments.making import start_clock
from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.simulators.choose import describe
from flame_rl.actor.simulators.simulator import Simulator
from flame_rl.actor.worker.process import CLOSE_SECONDS
from flame_rl.backends.dispatch import Collected, Listener, Transport, gather, tell
from flame_rl.backends.tasks import TaskSizes
from flame_rl.system.errors import UsageError
from flame_rl.system.machine import ONE_BLAS_THREAD
from flame_rl.system.signals import close_within
from flame_rl.wire import codec
from flame_rl.wire.messages import CollectRequest, Environment, EnvironmentSpec, PolicySnapshot


class InlineBackend:
    """Plays all episodes in this process, with one simulator."""

    def __init__(self, stop: threading.Event) -> None:
        self.listener = Listener()
        self._stop = stop
        self._simulator: Simulator | None = None

    def describe(self, environment: Environment) -> EnvironmentSpec:
        try:
            self._simulator, spec = describe(environment)
            return spec
        except SimulatorError as error:
            raise UsageError(str(error.failure(environment.env_id))) from error

    def collect(self, snapshot: PolicySnapshot, request: CollectRequest) -> Collected:
        def submit(data: bytes, episodes: int) -> Future[bytes]:
            task = codec.decode_request(data)
            played = partial(tell, self.listener.collecting, task)
            result = collect_episodes(snapshot, task, self._simulator, self._stop.is_set, played)
            future: Future[bytes] = Future()
            future.set_result(b"".join(codec.encode_result(result, task)))
            return future

        with ONE_BLAS_THREAD:
            # One task fills all slots, and no other worker waits for its end.
            transport = Transport(submit, in_flight=1)
            return gather(request, transport, TaskSizes(1), self._stop, self.listener)

    def close(self) -> None:
        if self._simulator is not None:
            simulator, self._simulator = self._simulator, None
            close_within(CLOSE_SECONDS, simulator.close)
        start_clock()
