"""One session: a service, the weights that it acts on, and the tasks in flight."""

import contextlib
import json
import re
import time
from concurrent.futures import Future, InvalidStateError
from dataclasses import asdict

import numpy as np
import pyarrow
from flamepy.core import cache, client
from flamepy.core.types import Event, FlameError, short_name
from flamepy.runner.types import SessionContext

from flame_rl.actor.remote import ABOUT, Collector
from flame_rl.backends.deadlines import Deadlines
from flame_rl.backends.flame import compat
from flame_rl.backends.flame.cleanup import Janitor
from flame_rl.backends.flame.cluster import Capacity
from flame_rl.backends.flame.executors import Answers
from flame_rl.backends.flame.package import Application
from flame_rl.system.signals import call_with_timeout
from flame_rl.wire import codec, packing

# Weights have `CALL_SECONDS`, and the time that they take at this many bytes a second, or this many
# times what the last ones took.
SLOWEST = 125_000.0
TIMES_THE_LAST = 10.0


class Session:
    """One session of the application. `id`: Flame's name of it. `failures`: the number of tasks
    that failed on the way, not in a simulator."""

    def __init__(
        self, application: Application, capacity: Capacity, janitor: Janitor, answers: Answers
    ) -> None:
        self._answers = answers
        self._application = application.name
        self._janitor = janitor
        # Remembered before it is opened: where that fails, an object of its name stays.
        self.id = short_name(application.name)
        janitor.remember("session", self.id)
        # flamepy finds the session's name in the class that executors make an object of.
        named = type("Collector", (Collector,), {"_session_context": SessionContext(self.id)})
        # A service that does not scale has exactly as many executors as are warmed up.
        number = capacity.requested or 0
        options = {"autoscale": not number, "warmup": number, "resreq": capacity.claim}
        self._service = call_with_timeout(
            compat.CALL_SECONDS, lambda: application.runner.service(named, **options)
        )
        self._weights: cache.ObjectRef | None = None
        self._seconds_a_byte = 1 / SLOWEST
        self._in_flight: set[Future] = set()
        self.failures = 0

    def publish(self, encoded: bytes) -> None:
        """Put encoded weights into the object cache, in place of the last ones. Raises TimeoutError
        if that takes much longer than it should; the next call has twice the time."""
        # The first are put among the objects of this session, which are deleted with it: the
        # application may be other runs', too.
        first = self._weights is None
        put = cache.put_object if first else cache.update_object
        where = f"{self._application}/{self.id}" if first else self._weights
        array = np.frombuffer(encoded, np.uint8)
        began = time.monotonic()
        limit = compat.CALL_SECONDS + len(encoded) * self._seconds_a_byte
        try:
            self._weights = call_with_timeout(limit, lambda: put(where, array))
        except TimeoutError as error:
            self._seconds_a_byte = 2 * limit / max(1, len(encoded))
            raise TimeoutError(
                f"{len(encoded) / 1e6:.1f} MB of weights did not reach the object cache within "
                f"{limit:.0f} s: the network to it is slow, or it hangs"
            ) from error
        if encoded:
            taken = time.monotonic() - began
            self._seconds_a_byte = TIMES_THE_LAST * taken / len(encoded)
        if first:
            self._janitor.remember("weights", json.dumps(asdict(self._weights)))
            self._janitor.remember("cache", self._weights.endpoint)

    def collect(self, request: bytes, episodes: int, deadlines: Deadlines) -> Future[memoryview]:
        """Send an encoded request for that number of episodes: the future of its encoded answer."""
        began = time.monotonic()
        limits = deadlines.limits(episodes)
        snapshot_ref = json.dumps(asdict(self._weights))
        outer: Future[memoryview] = Future()
        try:
            # Flame calls `Collector.collect` with these in an executor.
            task = self._service.collect(self._weights, request, tuple(limits), snapshot_ref)
        except Exception as error:
            self.failures += 1
            outer.set_exception(error)
            return outer
        self._in_flight.add(outer)

        def fetch(_: Future) -> None:
            try:
                ref = task.ref()
                self._janitor.remember("cache", ref.endpoint)
                data, about = _bytes_of(cache.get_object(ref))
                # Before anybody can read the answer.
                self._answers.hear(about)
                with contextlib.suppress(packing.WireError):  # whoever waits for it refuses it
                    kind, now = codec.failure_kind(data), time.monotonic()
                    deadlines.note(limits, now - began, kind)
                    if kind is None:
                        self._answers.last_result = now
                try:
                    outer.set_result(data)
                except InvalidStateError:
                    self._answers.dropped += 1
                # Every result stays in Flame's cache, and in this client's, until deleted; the
                # learner need not wait for that.
                with contextlib.suppress(Exception):
                    compat.delete_objects(ref.endpoint, ref.key)
            except Exception as error:
                self.failures += 1
                _fail(outer, error)
            finally:
                self._in_flight.discard(outer)

        compat.future_of(task).add_done_callback(fetch)
        return outer

    def abandon(self) -> None:
        """Leave the session: its futures fail, and executors end its tasks."""
        for future in list(self._in_flight):
            _fail(future, ConnectionError("the session was left"))
        if self._weights is not None:
            with contextlib.suppress(Exception):
                self.publish(b"")
        self.close()

    def close(self) -> bool:
        """Close the session; returns False if Flame refuses, as it does while tasks run."""
        return compat.close_session(self.id)

    def events(self) -> list[Event]:
        """What Flame reports about the session. Raises FlameError."""
        return client.get_session(self.id).events

    def report(self) -> str:
        """The events, as text for the user."""
        try:
            events = self.events()
        except FlameError as error:
            return f"Flame does not say why ({error})"
        # Messages of several executors and attempts differ only in ids: one of each is enough.
        texts = [str(event.message).rstrip(".") for event in events]
        reported = {re.sub(r"<[^>]*>", "<…>", text): text for text in texts}.values()
        return f"Flame reports: {'; '.join(reported) or 'nothing; see its executor manager, too'}"


def _fail(future: Future, error: Exception) -> None:
    with contextlib.suppress(InvalidStateError):  # answered or failed just before
        future.set_exception(error)


def _bytes_of(result: object) -> tuple[memoryview, bytes]:
    """The answer, and what its executor says of itself."""
    # Flame may return a large batch as a table of several batches.
    batch = isinstance(result, pyarrow.RecordBatch | pyarrow.Table) and result.num_columns == 1
    values = result.column(0).to_numpy() if batch else None
    if values is None or values.dtype != np.uint8:
        raise packing.WireError(f"result: {type(result).__name__} where bytes are expected")
    return memoryview(values), (result.schema.metadata or {}).get(ABOUT, b"")
