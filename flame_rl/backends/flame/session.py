"""One session: a service, the weights it acts on, and the tasks on their way."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import asdict, dataclass, field

import flamepy.core.cache
import flamepy.core.client
import numpy as np
import pyarrow
from flamepy.core.types import FlameError, TaskState, short_name
from flamepy.proto.frontend_pb2 import GetSessionRequest
from flamepy.proto.types_pb2 import ResourceRequirement
from flamepy.runner import Runner
from flamepy.runner.runner import ObjectFuture, RunnerService
from flamepy.runner.types import SessionContext

from flame_rl.actor.remote import ABOUT, Collector
from flame_rl.backends.flame.cleanup import (
    CALL_SECONDS,
    Janitor,
    close_session,
    delete_objects,
)
from flame_rl.backends.flame.hosts import Hosts
from flame_rl.backends.flame.room import Room
from flame_rl.backends.patience import Patience
from flame_rl.system.signals import call_with_timeout
from flame_rl.wire import packing

# A lost node's tasks are given up when nothing has come for so long.
QUIET_SECONDS = 5.0
# In Flame's report of a session.
_FAILED_ON = re.compile(
    r"on node <(?P<node>[^>]*)> failed to bind session with return_code <\d+>: (?P<reason>.*)", re.S
)


@dataclass
class Tally:
    """Counts over all sessions of a run.

    Attributes:
        dropped: answers that came when nobody waited for them any more.
        last_result: when the last episodes came, in monotonic seconds.
        hosts: what the executors run that have answered.
        caches: the endpoints of object caches that have had weights or results.
    """

    dropped: int = 0
    last_result: float = 0.0
    hosts: Hosts = field(default_factory=Hosts)
    caches: set[str] = field(default_factory=set)


class Session:
    """One session of the application: its service, its weights, and the tasks on their way.

    Attributes:
        id: Flame's name of it.
        failures: the number of tasks that failed on the way, not in a simulator.
    """

    def __init__(self, runner: Runner, room: Room, janitor: Janitor, tally: Tally) -> None:
        self._tally = tally
        self._runner = runner
        self._janitor = janitor

        # Remembered before it is opened: where that fails, an object of its name stays.
        self.id = short_name(runner._name)
        janitor.remember("session", self.id)
        # flamepy takes the name from what executors make an object of.
        named = type("Collector", (Collector,), {"_session_context": SessionContext(self.id)})

        def open_service() -> RunnerService:
            # A service that does not scale has exactly as many executors as are warmed up.
            wished = room.wished or 0
            return runner.service(named, autoscale=not wished, warmup=wished, resreq=room.claim)

        self._service = call_with_timeout(CALL_SECONDS, open_service)
        self._weights: flamepy.core.cache.ObjectRef | None = None
        # The task of each future, by Flame's name of it.
        self._on_their_way: dict[Future, str] = {}
        self.failures = 0
        # Tasks that ran when executors were lost, the number of these, and when that was.
        self._perhaps_lost: set[str] = set()
        self._lost = 0
        self._lost_at = 0.0

    def put(self, array: np.ndarray) -> flamepy.core.cache.ObjectRef:
        """Put an array into the object cache, among the objects of this session, which are deleted
        with it: the application may be other runs', too."""
        return flamepy.core.cache.put_object(f"{self._runner._name}/{self.id}", array)

    def publish(self, encoded: bytes) -> None:
        """Put encoded weights into the object cache, in place of the last ones."""
        array = np.frombuffer(encoded, np.uint8)
        if self._weights is None:
            self._weights = call_with_timeout(CALL_SECONDS, lambda: self.put(array))
            self._janitor.remember("weights", json.dumps(asdict(self._weights)))
            self._remember_cache(self._weights.endpoint)
        else:
            update = flamepy.core.cache.update_object
            self._weights = call_with_timeout(CALL_SECONDS, lambda: update(self._weights, array))

    def _remember_cache(self, endpoint: str) -> None:
        if endpoint not in self._tally.caches:
            self._tally.caches.add(endpoint)
            self._janitor.remember("cache", endpoint)

    def about(self) -> Future[memoryview]:
        """Done once an executor has said what it runs."""
        return self._track(self._service.about())

    def collect(self, request: bytes, episodes: int, patience: Patience) -> Future[memoryview]:
        """Send an encoded request for that number of episodes; returns the future of the encoded
        answer."""
        began = time.monotonic()
        limits = patience.limits(episodes)
        weights = json.dumps(asdict(self._weights))
        try:
            task = self._service.collect(self._weights, request, tuple(limits), weights)
        except Exception as error:
            self.failures += 1
            failed: Future[memoryview] = Future()
            failed.set_exception(error)
            return failed

        def answered(data: memoryview) -> None:
            patience.learn(limits, time.monotonic() - began, data)

        return self._track(task, answered)

    def lose(self, executors: int) -> None:
        """So many executors are lost, and with them the tasks that they run. Flame does not say
        which these are, and would queue them again only after 30 s."""
        for task in self._on_their_way.values():
            with contextlib.suppress(FlameError):
                if self._service._session.get_task(task).state == TaskState.RUNNING:
                    self._perhaps_lost.add(task)
        self._lost += executors
        self._lost_at = time.monotonic()

    def give_up_lost(self) -> None:
        """Fail the futures of lost tasks, so that they are sent again: those that are left once the
        others that ran at the loss are answered, or once nothing comes any more."""
        left = [f for f, task in list(self._on_their_way.items()) if task in self._perhaps_lost]
        quiet = time.monotonic() - max(self._lost_at, self._tally.last_result) > QUIET_SECONDS
        if len(left) <= self._lost or quiet:
            for future in left:
                with contextlib.suppress(InvalidStateError):
                    future.set_exception(ConnectionError("the node that ran the task was lost"))
            self._perhaps_lost.clear()
            self._lost = 0

    def claim(self) -> ResourceRequirement:
        """What each executor of the session claims. Raises grpc.RpcError."""
        # flamepy's own session has everything but this.
        frontend = flamepy.core.client.ConnectionInstance.instance()._frontend
        return frontend.GetSession(GetSessionRequest(session_id=self.id)).spec.resreq

    def abandon(self) -> None:
        """Leave the session: its futures fail, and executors end its tasks."""
        for future in list(self._on_their_way):
            with contextlib.suppress(InvalidStateError):
                future.set_exception(ConnectionError("the session was left"))
        if self._weights is not None:
            with contextlib.suppress(Exception):
                self.publish(b"")
        self.close()

    def close(self) -> bool:
        """Close the session; returns False if Flame refuses, as it does while tasks run."""
        return close_session(self.id)

    def settled(self) -> bool:
        """Whether every task has been answered or has failed."""
        return not self._on_their_way

    def event_codes(self) -> set[int]:
        return {event.code for event in flamepy.core.client.get_session(self.id).events}

    def failed_nodes(self) -> dict[str, str]:
        """Why executors could not be bound to the session, by the name of their node."""
        events = flamepy.core.client.get_session(self.id).events
        found = (_FAILED_ON.search(str(event.message)) for event in events)
        return {each["node"]: each["reason"].rstrip(".") for each in found if each}

    def events(self) -> str:
        """What Flame reports about this session, as text for the user."""
        try:
            events = flamepy.core.client.get_session(self.id).events
        except FlameError as error:
            return f"Flame does not say why ({error})"
        # Messages of several executors and attempts differ only in ids: one of each is enough.
        messages = {re.sub(r"<[^>]*>", "<…>", str(event.message)): event for event in events}
        if not messages:
            return "Flame reports no event; see the logs of its executor manager"
        reported = "; ".join(str(event.message).rstrip(".") for event in messages.values())
        return f"Flame reports: {reported}"

    def _track(
        self, task: ObjectFuture, answered: Callable[[memoryview], None] = lambda data: None
    ) -> Future[memoryview]:
        """A future of the task's answer, fetched; `answered` is called with it if a message."""
        outer: Future[memoryview] = Future()
        self._on_their_way[outer] = task._future._task_id

        def fetch(_: Future) -> None:
            try:
                ref = task.ref()
                self._remember_cache(ref.endpoint)
                data, about = _bytes_of(flamepy.core.cache.get_object(ref))
                # Before anybody can read the answer.
                self._tally.hosts.hear(about)
                with contextlib.suppress(packing.WireError):  # whoever waits for it refuses it
                    if packing.is_message(data):
                        answered(data)
                        if packing.message_type(data) == "episodes":
                            self._tally.last_result = time.monotonic()
                try:
                    outer.set_result(data)
                except InvalidStateError:
                    self._tally.dropped += 1
                # Every result stays in Flame's cache, and in this client's, until deleted; the
                # learner need not wait for that.
                with contextlib.suppress(Exception):
                    delete_objects(ref.endpoint, ref.key)
            except Exception as error:
                self.failures += 1
                with contextlib.suppress(InvalidStateError):
                    outer.set_exception(error)
            finally:
                self._on_their_way.pop(outer, None)

        task._future.add_done_callback(fetch)
        return outer


def _bytes_of(result: object) -> tuple[memoryview, bytes]:
    """The answer, and what its executor says of itself."""
    # Flame may return a large batch as a table of several batches.
    batch = isinstance(result, pyarrow.RecordBatch | pyarrow.Table) and result.num_columns == 1
    values = result.column(0).to_numpy() if batch else None
    if values is None or values.dtype != np.uint8:
        raise packing.WireError(f"result: {type(result).__name__} where bytes are expected")
    return memoryview(values), (result.schema.metadata or {}).get(ABOUT, b"")
