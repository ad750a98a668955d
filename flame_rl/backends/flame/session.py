"""One session: a service, its weights, its tasks in flight; and what answers say of executors."""

import contextlib
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import asdict

import numpy as np
import pyarrow
from flamepy.core import cache, client
from flamepy.core.types import Event, FlameError, short_name
from flamepy.runner.types import SessionContext

from flame_rl.actor.remote import ABOUT, Collector, processor, versions
from flame_rl.backends.flame import compat
from flame_rl.backends.flame.cleanup import Janitor, withdraw
from flame_rl.backends.flame.cluster import Capacity
from flame_rl.backends.flame.package import Application
from flame_rl.backends.tasks import Deadlines
from flame_rl.system.errors import UsageError
from flame_rl.system.signals import call_with_timeout
from flame_rl.wire import codec
from flame_rl.wire.fields import WireError, value_from_data

# Weights have `CALL_SECONDS` and bytes / `SLOWEST`, or `TIMES_THE_LAST` what the last ones took.
SLOWEST = 125_000.0
TIMES_THE_LAST = 10.0
_MOST_BYTES = 4096  # far above what an executor says of itself


class Answers:
    """What is known of all answers of a run, and what their executors run, beside what this machine
    runs. Heard by the threads that fetch answers, asked by the one that collects. `last_result`:
    when the last episodes came, in monotonic seconds. `dropped`: how many came too late."""

    def __init__(self) -> None:
        self.last_result, self.dropped = 0.0, 0
        self._versions, self._processor = versions(), processor()
        self._heard: dict[bytes, dict[str, str]] = {}
        self._told: set[str] = set()

    def hear(self, about: bytes) -> None:
        """Note what an executor says of itself, JSON. Raises WireError."""
        if about in self._heard:
            return
        try:
            theirs = json.loads(about[:_MOST_BYTES])
            theirs = value_from_data(dict[str, str], {"node": None} | theirs, "about")
        except (ValueError, TypeError) as error:
            raise WireError(f"about: what an executor says of itself: {error}") from error
        self._heard[about] = theirs

    def _others(self, ours: dict[str, str]) -> dict[str, set[str]]:
        """The nodes whose executors differ from this machine, by how."""
        found = defaultdict(set)
        for theirs in list(self._heard.values()):
            differing = [name for name in ours if theirs.get(name) != ours[name]]
            if differing:
                texts = (f"{n} {ours[n]} here, {theirs.get(n, 'unknown')} there" for n in differing)
                found["; ".join(texts)].add(theirs["node"])
        return found

    def refuse_others(self) -> None:
        """Raise UsageError if executors run other versions."""
        for difference, nodes in self._others(self._versions).items():
            raise UsageError(
                f"Other versions than on this machine run on {_named(nodes)}: {difference}. The "
                "same seed would not give the same result; start with `uv run --python X.Y "
                "main.py …`, take the node out of the cluster, or use --local"
            )

    def tell(self, say: Callable[[str], None]) -> None:
        """Say which nodes round in another way, once for each node."""
        for difference, nodes in self._others(self._processor).items():
            if new := nodes - self._told:
                self._told |= new
                say(
                    f"Another processor than on this machine is on {_named(new)}: {difference}. "
                    "The same seed may give another result than on this machine alone"
                )


class Session:
    """One session of the application. `id`: Flame's name of it. `failures`: the number of tasks
    that failed on the way, not in a simulator. `left`: whether it was abandoned."""

    def __init__(
        self, application: Application, capacity: Capacity, janitor: Janitor, answers: Answers
    ) -> None:
        self._application, self._janitor, self._answers = application.name, janitor, answers
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
        self.failures, self.left = 0, False

    def publish(self, encoded: bytes) -> None:
        """Put encoded weights into the object cache, in place of the last ones. Raises TimeoutError
        if that takes much longer than it should; the next call has twice the time."""
        # The first are put among this session's objects: the application may be other runs', too.
        first = self._weights is None
        put = cache.put_object if first else cache.update_object
        where = f"{self._application}/{self.id}" if first else self._weights
        array = np.frombuffer(encoded, np.uint8)
        began = time.monotonic()
        limit = compat.CALL_SECONDS + len(encoded) * self._seconds_a_byte
        try:
            self._weights = call_with_timeout(limit, lambda: put(where, array))
        except TimeoutError as error:
            self._seconds_a_byte = 2 * limit / len(encoded)
            raise TimeoutError(
                f"{len(encoded) / 1e6:.1f} MB of weights did not reach the object cache within "
                f"{limit:.0f} s: the network to it is slow, or it hangs"
            ) from error
        self._seconds_a_byte = TIMES_THE_LAST * (time.monotonic() - began) / len(encoded)
        self._reference = json.dumps(asdict(self._weights))
        if first:
            self._janitor.remember("weights", self._reference)
            self._janitor.remember("cache", self._weights.endpoint)

    def collect(self, request: bytes, episodes: int, deadlines: Deadlines) -> Future[memoryview]:
        """Send an encoded request for that number of episodes: the future of its encoded answer."""
        began = time.monotonic()
        limits = deadlines.limits(episodes)
        outer: Future[memoryview] = Future()
        try:
            # Flame calls `Collector.collect` with these in an executor.
            task = self._service.collect(self._weights, request, tuple(limits), self._reference)
        except Exception as error:
            self.failures += 1
            _fail(outer, error)
            return outer
        self._in_flight.add(outer)
        outer.add_done_callback(self._in_flight.discard)

        def fetch(_: Future) -> None:
            try:
                ref = task.ref()
                self._janitor.remember("cache", ref.endpoint)
                data, about = _bytes_of(cache.get_object(ref))
                self._answers.hear(about)  # before anybody can read the answer
                with contextlib.suppress(WireError):  # whoever waits for it refuses it
                    kind, now = codec.failure_kind(data), time.monotonic()
                    deadlines.note(limits, now - began, kind)
                    if kind is None:
                        self._answers.last_result = now
                try:
                    outer.set_result(data)
                except InvalidStateError:
                    self._answers.dropped += 1
                # Every result stays in Flame's cache, and in this client's, until deleted.
                with contextlib.suppress(Exception):
                    compat.delete_objects(ref.endpoint, ref.key)
            except Exception as error:
                self.failures += 1
                _fail(outer, error)

        compat.future_of(task).add_done_callback(fetch)
        return outer

    def abandon(self) -> None:
        """Leave the session: its futures fail, and executors end its tasks."""
        self.left = True
        for future in list(self._in_flight):
            _fail(future, ConnectionError("the session was left"))
        if self._weights is not None:
            withdraw(self._reference)
        compat.close_session(self.id)  # which Flame may refuse while tasks run

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


def _named(nodes: set[str]) -> str:
    return f"node{'s' * (len(nodes) > 1)} {', '.join(sorted(nodes))}"


def _fail(future: Future, error: Exception) -> None:
    with contextlib.suppress(InvalidStateError):  # answered or failed just before
        future.set_exception(error)


def _bytes_of(result: object) -> tuple[memoryview, bytes]:
    """The answer, and what its executor says of itself."""
    # Flame may return a large batch as a table of several batches.
    batch = isinstance(result, pyarrow.RecordBatch | pyarrow.Table) and result.num_columns == 1
    values = result.column(0).to_numpy() if batch else None
    if values is None or values.dtype != np.uint8:
        raise WireError(f"result: {type(result).__name__} where bytes are expected")
    return memoryview(values), (result.schema.metadata or {}).get(ABOUT, b"")
