"""One session: a service, the weights it acts on, and the tasks on their way."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import asdict, dataclass

import flamepy.core.cache
import flamepy.core.client
import numpy as np
import pyarrow
from flamepy.core.types import FlameError
from flamepy.runner import Runner
from flamepy.runner.runner import ObjectFuture, RunnerService

from flame_rl.actor.remote import Collector
from flame_rl.backends.flame.cleanup import Janitor, closes
from flame_rl.backends.flame.cluster import Room
from flame_rl.backends.flame.within import CALL_SECONDS, within
from flame_rl.backends.patience import Patience
from flame_rl.wire import packing


@dataclass
class Tally:
    """What all sessions of a run count together.

    Attributes:
        dropped: answers that came when nobody waited for them any more.
        last_result: when the last episodes came, monotonic seconds.
    """

    dropped: int = 0
    last_result: float = 0.0


class Session:
    """One session of the application: its service, its weights, and the tasks on their way.

    Attributes:
        failures: tasks that failed on the way, by no doing of the simulator.
    """

    def __init__(self, runner: Runner, room: Room, janitor: Janitor, tally: Tally) -> None:
        self._tally = tally
        self._runner = runner
        self._janitor = janitor

        def open_service() -> RunnerService:
            service = runner.service(Collector, resreq=room.claim)
            janitor.remember_session(service._session.id)  # even if nobody waits any more
            return service

        self._service = within(CALL_SECONDS, open_service)
        self._id = self._service._session.id
        self._weights: flamepy.core.cache.ObjectRef | None = None
        self._on_their_way: set[Future] = set()
        self.failures = 0

    def publish(self, encoded: bytes) -> None:
        """Put the weights where executors find them; an update replaces them in place."""
        array = np.frombuffer(encoded, np.uint8)
        if self._weights is None:
            self._weights = within(CALL_SECONDS, lambda: self._runner.put_object(array))
            self._janitor.remember_weights(json.dumps(asdict(self._weights)))
        else:
            update = flamepy.core.cache.update_object
            self._weights = within(CALL_SECONDS, lambda: update(self._weights, array))

    def versions(self) -> Future[memoryview]:
        """An executor's versions, as JSON."""
        return self._track(self._service.versions())

    def collect(self, request: bytes, patience: Patience) -> Future[memoryview]:
        """Send one encoded request."""
        began = time.monotonic()
        weights = json.dumps(asdict(self._weights))
        try:
            task = self._service.collect(self._weights, request, tuple(patience.limits()), weights)
        except Exception as error:
            self.failures += 1
            failed: Future[memoryview] = Future()
            failed.set_exception(error)
            return failed
        return self._track(task, lambda: patience.took(time.monotonic() - began))

    def abandon(self) -> None:
        """Answer nobody any more: what is on its way fails here, and is withdrawn there."""
        for future in list(self._on_their_way):
            with contextlib.suppress(InvalidStateError):
                future.set_exception(ConnectionError("the session was left"))
        if self._weights is not None:
            with contextlib.suppress(Exception):
                self.publish(b"")
        self.closes()

    def closes(self) -> bool:
        """Whether Flame closes the session, which it refuses while tasks run."""
        return closes(self._id)

    def settled(self) -> bool:
        return not self._on_their_way

    def event_codes(self) -> set[int]:
        return {event.code for event in flamepy.core.client.get_session(self._id).events}

    def events(self) -> str:
        """What Flame reports of this session, for a person."""
        try:
            events = flamepy.core.client.get_session(self._id).events
        except FlameError as error:
            return f"Flame does not say why ({error})"
        # The same for every executor and attempt, but for their ids.
        messages = {re.sub(r"<[^>]*>", "<…>", str(event.message)): event for event in events}
        if not messages:
            return "Flame reports no event; see the logs of its executor manager"
        reported = "; ".join(str(event.message).rstrip(".") for event in messages.values())
        return f"Flame reports: {reported}"

    def _track(
        self, task: ObjectFuture, succeeded: Callable[[], None] = lambda: None
    ) -> Future[memoryview]:
        """A future of the task's bytes, with the result already fetched."""
        outer: Future[memoryview] = Future()
        self._on_their_way.add(outer)

        def fetch(_: Future) -> None:
            try:
                ref = task.ref()
                data = _bytes_of(flamepy.core.cache.get_object(ref))
                if packing.is_message(data) and packing.message_type(data) == "episodes":
                    self._tally.last_result = time.monotonic()
                    succeeded()
                try:
                    outer.set_result(data)
                except InvalidStateError:
                    self._tally.dropped += 1
                # Every result stays in Flame's cache, and in this client's, until deleted; the
                # learner need not wait for that.
                with contextlib.suppress(Exception):
                    flamepy.core.cache.delete_objects(ref.key)
            except Exception as error:
                self.failures += 1
                with contextlib.suppress(InvalidStateError):
                    outer.set_exception(error)
            finally:
                self._on_their_way.discard(outer)

        task._future.add_done_callback(fetch)
        return outer


def _bytes_of(result: object) -> memoryview:
    # A large batch may have become a table of several.
    batch = isinstance(result, pyarrow.RecordBatch | pyarrow.Table) and result.num_columns == 1
    values = result.column(0).to_numpy() if batch else None
    if values is None or values.dtype != np.uint8:
        raise packing.WireError(f"result: {type(result).__name__} where bytes are expected")
    return memoryview(values)
