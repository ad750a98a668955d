"""Collect the next iteration's episodes while the learner updates."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait

from flame_rl.backends import Backend, Listener
from flame_rl.backends.dispatch import Collected
from flame_rl.wire.messages import CollectRequest, Environment, EnvironmentSpec, PolicySnapshot


class PrefetchingBackend:
    """A backend around another one, which can begin to collect before it is asked to; `begun` is
    the request that was begun last and not yet fetched."""

    def __init__(self, backend: Backend, stop: threading.Event) -> None:
        """`stop` ends the backend's `collect`; it is set by `close`."""
        self._backend, self._stop = backend, stop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self.begun: CollectRequest | None = None
        self._future: Future[Collected] | None = None

    def begin(self, snapshot: PolicySnapshot, request: CollectRequest) -> None:
        """Begin to collect; `collect` with the same request waits for it."""
        self.begun = request
        self._future = self._thread.submit(self._backend.collect, snapshot, request)

    def collect(self, snapshot: PolicySnapshot, request: CollectRequest) -> Collected:
        """See `Backend.collect`. Another request waits until what was begun is collected."""
        if self._future is not None and request == self.begun:
            future, self._future, self.begun = self._future, None, None
            return future.result()
        if self._future is not None:
            wait([self._future])
        return self._backend.collect(snapshot, request)

    @property
    def listener(self) -> Listener | None:
        return self._backend.listener

    @listener.setter
    def listener(self, listener: Listener | None) -> None:
        self._backend.listener = listener

    def describe(self, environment: Environment) -> EnvironmentSpec:
        return self._backend.describe(environment)

    def close(self) -> None:
        """End what was begun, and the backend."""
        self._stop.set()
        self._thread.shutdown(wait=True)
        self._backend.close()


class EitherEvent(threading.Event):
    """An event that is also set when another one is."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        return super().is_set() or self._other.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self._other.wait(timeout) or self.is_set()
