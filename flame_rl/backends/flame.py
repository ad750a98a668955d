"""Collect on the executors of a Flame cluster, through Flame Runner.

The learner's only file that imports flamepy. One Runner, one service, one object that holds the
weights; the simulator itself runs in a child process of each executor's worker
(`flame_rl.actor.worker`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from dataclasses import asdict, replace
from pathlib import Path
from urllib.parse import urlparse

import flamepy.core.cache
import flamepy.core.client
import grpc
import numpy as np
from flamepy.core.types import FlameContext, FlameError
from flamepy.runner import Runner
from flamepy.runner.runner import ObjectFuture

from flame_rl import wire
from flame_rl.actor.remote import Collector, versions
from flame_rl.actor.worker import Worker
from flame_rl.backends.dispatch import (
    STOP_POLL_SECONDS,
    Collected,
    gather,
    read_description,
)
from flame_rl.backends.package import needs, stage_package
from flame_rl.backends.patience import Patience
from flame_rl.errors import Interrupted, RunError, UsageError
from flame_rl.messages import CollectFailure, CollectRequest, EnvironmentSpec, PolicySnapshot

CONNECT_SECONDS = 8.0
PROBE_SECONDS = 3.0
# An executor installs the package's dependencies before its first task; with a cold cache of
# packages this takes as long as downloading MuJoCo does.
STARTUP_SECONDS = 300.0
DRAIN_SECONDS = 3.5
JANITOR_SECONDS = 600.0
CHECK_SECONDS = 2.0
# An executor whose process died fails every task at once; one failure may be anything.
FAILURES_OF_A_SESSION = 3
# "Session retry limit reached": Flame will not try to start another executor.
GAVE_UP_EVENT = 1002
TASKS_PER_EXECUTOR = 4


class FlameBackend:
    """One application on the cluster, from construction to `close`, and one session at a time.

    A session whose tasks fail on the way (its executor's process died, the session manager was
    restarted) is left for a new one, and what is missing is asked for again.
    """

    def __init__(
        self, env_id: str, patience: Patience, silence: float, stop: threading.Event
    ) -> None:
        """Connect, ship the package and open a session.

        Args:
            env_id: its module is shipped.
            patience: how long a task may take.
            silence: seconds without a result after which a failing cluster is given up.
            stop: set when the user asks to stop.

        Raises:
            UsageError: no cluster answers, or the environment's module cannot be shipped.
        """
        self._patience = patience
        self._silence = silence
        self._stop = stop
        self._checked_at = 0.0
        logging.getLogger("flamepy").addHandler(logging.NullHandler())
        self._context, self._executors = _connect()
        self._open(env_id)

    def describe(self, env_id: str, max_episode_steps: int | None) -> EnvironmentSpec:
        """Read the spaces in a process on this machine, where an error shows soonest."""
        worker = Worker()
        try:
            limits = self._patience.limits()
            answer = worker.describe(env_id, max_episode_steps, limits.deadline, self._stop.is_set)
            spec = read_description(answer, self._stop)
        finally:
            worker.close()
        if needs(env_id) != self._needs:
            # A name in model.py's table stood for an environment that asks for more.
            self.close()
            self._open(env_id)
        return spec

    def _open(self, env_id: str) -> None:
        self._needs = needs(env_id)
        self._left: list[_Session] = []
        self._janitor = Janitor()
        self._runner, self._dependencies = _deploy(env_id, self._janitor)
        try:
            self._session = _Session(self._runner, self._janitor)
            # Asked at once, so that executors start while the learner imports torch.
            self._their_versions: Future[bytes] | None = self._session.versions()
        except Exception as error:
            self._runner.close()
            raise RunError(f"Flame did not open a session: {error}") from error
        self._closed = False

    def collect(self, snapshot: PolicySnapshot, request: CollectRequest) -> Collected:
        if self._their_versions is not None:
            self._compare_versions(self._their_versions)
            self._their_versions = None
        self._encoded = wire.encode_snapshot(snapshot)
        self._began = time.monotonic()
        try:
            self._session.publish(self._encoded)
        except Exception as error:
            self._reopen(f"the weights could not be published: {error}")
        collected = gather(
            snapshot,
            request,
            lambda data: self._session.collect(data, self._patience),
            task_size=max(1, len(request.indices) // (TASKS_PER_EXECUTOR * self._executors)),
            in_flight=2 * self._executors,
            stop=self._stop,
            check=self._check,
            transport_failed=self._transport_failed,
        )
        dropped = sum(session.take_dropped() for session in (*self._left, self._session))
        return replace(
            collected, bytes_out=collected.bytes_out + len(self._encoded), dropped=dropped
        )

    def close(self) -> None:
        """Close the sessions, unregister the application and delete its objects."""
        if self._closed:
            return
        self._closed = True
        clean = self._janitor.clean_up(DRAIN_SECONDS)
        if clean:
            self._runner.close()
            self._janitor.dismiss()
            return
        # Or the threads that watch its tasks would keep this process alive.
        flamepy.core.client.ConnectionInstance.instance()._channel.close()
        print(
            f"Flame still runs tasks of application {self._runner._name}, or does not answer; a "
            f"process in the background goes on trying for {JANITOR_SECONDS:.0f} s to remove it",
            file=sys.stderr,
        )

    def _compare_versions(self, future: Future[bytes]) -> None:
        """Wait for an executor's versions: different ones give different bits, or nonsense."""
        began = time.monotonic()
        while not future.done():
            wait([future], timeout=STOP_POLL_SECONDS)
            if self._stop.is_set():
                raise Interrupted
            self._check_executors_can_start()
            if time.monotonic() - began > STARTUP_SECONDS:
                raise RunError(
                    f"no executor of the cluster became ready within {STARTUP_SECONDS:.0f} s. "
                    f"{self._session.events()}"
                )
        try:
            theirs = json.loads(future.result())
        except Exception as error:
            raise RunError(
                f"the first task on the cluster failed: {error}. {self._session.events()}"
            ) from error
        ours = versions()
        if theirs == ours:
            return
        different = [
            f"{name} {ours.get(name)} here, {version} there"
            for name, version in theirs.items()
            if version != ours.get(name)
        ]
        remedy = f"start with `uv run --python {theirs.get('python')} main.py …`, or use --local"
        raise UsageError(
            f"the executors run other versions than this machine: {'; '.join(different)}. "
            f"The same seed would not give the same result; {remedy}"
        )

    def _check(self) -> None:
        """Called while waiting: tidies up, and gives up when there is nothing to wait for."""
        now = time.monotonic()
        if now - self._checked_at < CHECK_SECONDS:
            return
        self._checked_at = now
        self._left = [s for s in self._left if not (s.closes() and s.settled())]
        # Every task has a deadline where it runs, so that silence beyond it is the cluster's.
        self._give_up_after(
            self._silence + self._patience.limits().deadline, "tasks are sent and none comes back"
        )
        self._check_executors_can_start()

    def _check_executors_can_start(self) -> None:
        """Raises RunError once Flame has given up starting executors."""
        with contextlib.suppress(FlameError):
            if GAVE_UP_EVENT in self._session.event_codes():
                raise RunError(
                    f"the cluster's executors cannot start. {self._session.events()}. The package "
                    f"asks for {', '.join(self._dependencies)}: those versions must be available "
                    f"to the executors, and exist for their Python; here it is "
                    f"{versions()['python']}"
                )

    def _transport_failed(self, failure: CollectFailure) -> None:
        if failure.kind == "transport" and self._session.failures >= FAILURES_OF_A_SESSION:
            self._reopen(failure.message)
        else:
            self._give_up_after(self._silence, failure.message)
            self._stop.wait(STOP_POLL_SECONDS)

    def _reopen(self, reason: str) -> None:
        """Leave the session for a new one; keep trying while the cluster may come back."""
        while True:
            self._session.abandon()
            self._left.append(self._session)
            self._give_up_after(self._silence, reason)
            if self._stop.wait(STOP_POLL_SECONDS):
                raise Interrupted
            try:
                self._session = _Session(self._runner, self._janitor)
                self._session.publish(self._encoded)
                return
            except Exception as error:
                reason = str(error)
                self._stop.wait(1.0)

    def _give_up_after(self, seconds: float, reason: str) -> None:
        last = max(self._began, *(s.last_result for s in (*self._left, self._session)))
        if time.monotonic() - last < seconds:
            return
        try:
            check_reachable(self._context)
        except UsageError as error:
            raise RunError(f"the cluster is lost: {error}. Go on with --resume") from error
        raise RunError(
            f"the cluster has given no result for {seconds:.0f} s, though it answers: {reason}. "
            f"{self._session.events()}. Its executor manager may be stuck: see the README on how "
            "to restart it, then go on with --resume"
        )


class _Session:
    """One session of the application: its service, its weights, and the tasks on their way.

    Attributes:
        failures: tasks that failed on the way, by no doing of the simulator.
        last_result: when the last episodes came, monotonic seconds.
    """

    def __init__(self, runner: Runner, janitor: Janitor) -> None:
        self._runner = runner
        self._janitor = janitor
        self._service = runner.service(Collector)
        self._id = self._service._session.id
        janitor.remember_session(self._id)
        self._weights: flamepy.core.cache.ObjectRef | None = None
        self._on_their_way: set[Future] = set()
        self._dropped = 0
        self.failures = 0
        self.last_result = 0.0

    def publish(self, encoded: bytes) -> None:
        """Put the weights where executors find them; an update replaces them in place."""
        array = np.frombuffer(encoded, np.uint8)
        if self._weights is None:
            self._weights = self._runner.put_object(array)
            self._janitor.remember_weights(json.dumps(asdict(self._weights)))
        else:
            self._weights = flamepy.core.cache.update_object(self._weights, array)

    def versions(self) -> Future[bytes]:
        """An executor's versions, as JSON."""
        return self._track(self._service.versions())

    def collect(self, request: bytes, patience: Patience) -> Future[bytes]:
        """Send one encoded request."""
        began = time.monotonic()
        weights = json.dumps(asdict(self._weights))
        try:
            task = self._service.collect(self._weights, request, tuple(patience.limits()), weights)
        except Exception as error:
            self.failures += 1
            failed: Future[bytes] = Future()
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
        return _closes(self._id)

    def settled(self) -> bool:
        return not self._on_their_way

    def take_dropped(self) -> int:
        """How many answers came too late since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

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
    ) -> Future[bytes]:
        """A future of the task's bytes, with the result already fetched and deleted."""
        outer: Future[bytes] = Future()
        self._on_their_way.add(outer)

        def fetch(_: Future) -> None:
            try:
                data = _fetch(task)
                if wire.is_message(data) and wire.message_type(data) == "episodes":
                    self.last_result = time.monotonic()
                    succeeded()
                outer.set_result(data)
            except InvalidStateError:
                self._dropped += 1
            except Exception as error:
                self.failures += 1
                with contextlib.suppress(InvalidStateError):
                    outer.set_exception(error)
            finally:
                self._on_their_way.discard(outer)

        task._future.add_done_callback(fetch)
        return outer


def _fetch(task: ObjectFuture) -> bytes:
    ref = task.ref()
    data = flamepy.core.cache.get_object(ref)
    # Every result stays in Flame's cache, and in this client's, until deleted.
    flamepy.core.cache.delete_objects(ref.key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8:
        raise wire.WireError(f"result: {type(data).__name__} where bytes are expected")
    return data.tobytes()


class Janitor:
    """Knows what is on the cluster, and a process that removes it if this one dies.

    The process (`flame_rl.backends.janitor`) is told through its standard input, and acts when that
    closes before it is dismissed: after SIGKILL, say, or a second Ctrl-C.
    """

    def __init__(self) -> None:
        self._application: str | None = None
        self._sessions: list[str] = []
        self._weights: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flame_rl.backends.janitor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
            text=True,
        )

    def remember_application(self, name: str) -> None:
        self._application = name
        self._tell(f"application {name}")

    def remember_session(self, name: str) -> None:
        self._sessions.append(name)
        self._tell(f"session {name}")

    def remember_weights(self, reference: str) -> None:
        self._weights.append(reference)
        self._tell(f"weights {reference}")

    def clean_up(self, seconds: float) -> bool:
        """Remove it all now; whether that was done."""
        return clean_up(self._application, self._sessions, self._weights, seconds)

    def dismiss(self) -> None:
        """There is nothing left to remove."""
        self._tell("dismissed")
        self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # it is a safety net, not a condition
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def clean_up(
    application: str | None, sessions: list[str], weights: list[str], seconds: float
) -> bool:
    """Close the sessions, unregister the application and delete its objects.

    Closing a session cancels the tasks that have not begun. Flame refuses while others run; their
    executors notice within about a second that the weights are gone, and end them.

    Args:
        application, sessions: their names.
        weights: JSON of references to them.
        seconds: how long to try.

    Returns:
        Whether nothing is left.
    """
    if application is None:
        return True
    limit = time.monotonic() + seconds
    if not all([_closes(session) for session in sessions]):
        for reference in weights:
            with contextlib.suppress(Exception):
                ref = flamepy.core.cache.ObjectRef(**json.loads(reference))
                flamepy.core.cache.update_object(ref, np.empty(0, np.uint8))
        while not all([_closes(session) for session in sessions]):
            if time.monotonic() > limit:
                return False
            time.sleep(0.2)
    try:
        flamepy.core.client.unregister_application(application)
        everything = flamepy.core.cache.ObjectKey.for_all_sessions(application).to_prefix()
        flamepy.core.cache.delete_objects(everything)
    except Exception:
        return False
    return True


def _closes(session: str) -> bool:
    try:
        flamepy.core.client.close_session(session)
    except FlameError as error:
        return "not found" in str(error).lower()
    return True


def _connect() -> tuple[FlameContext, int]:
    """Read the configuration, reach the cluster, and count the executors it has room for.

    Raises:
        UsageError: within `CONNECT_SECONDS`, if any of that fails.
    """
    try:
        context = FlameContext()
    except Exception as error:
        raise UsageError(
            f"~/.flame/flame.yaml cannot be used: {error}. Correct it, or collect on this machine "
            "with --local"
        ) from error
    answered: Future[int] = Future()

    def ask() -> None:
        try:
            check_reachable(context)
            answered.set_result(_count_executors())
        except Exception as error:
            answered.set_exception(error)

    # Neither names nor flamepy's calls can be given a time limit: a thread can be left behind.
    threading.Thread(target=ask, daemon=True).start()
    try:
        return context, answered.result(CONNECT_SECONDS)
    except UsageError:
        raise
    except TimeoutError as error:
        reason = f"no answer within {CONNECT_SECONDS:.0f} s"
        raise _unreachable("session manager", context.endpoint, reason) from error
    except Exception as error:
        raise _unreachable("session manager", context.endpoint, str(error)) from error


def check_reachable(context: FlameContext) -> None:
    """Raises UsageError if the session manager or the object cache does not answer."""
    for name, endpoint, schemes, port in (
        ("session manager", context.endpoint, ("http", "https"), 8080),
        ("object cache", context.cache.endpoint, ("grpc", "grpcs"), 9090),
    ):
        try:
            parsed = urlparse(endpoint or "")
            address = (parsed.hostname or "", parsed.port or port)
            if parsed.scheme not in schemes or not parsed.hostname:
                raise ValueError(f"it must begin with {schemes[0]}:// or {schemes[1]}://")
            socket.create_connection(address, PROBE_SECONDS).close()
        except (OSError, ValueError) as error:
            raise _unreachable(name, endpoint, str(error)) from error
        # Something listens; is it Flame? TLS would need certificates to ask.
        if parsed.scheme == schemes[1]:
            continue
        with grpc.insecure_channel("{}:{}".format(*address)) as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=PROBE_SECONDS)
            except grpc.FutureTimeoutError as error:
                raise _unreachable(name, endpoint, "what listens does not speak gRPC") from error


def _unreachable(name: str, endpoint: str | None, reason: str) -> UsageError:
    return UsageError(
        f"Flame is configured, but its {name} at {endpoint} does not answer: {reason}. "
        "Start the cluster, correct FLAME_ENDPOINT, FLAME_CACHE_ENDPOINT or ~/.flame/flame.yaml, "
        "or collect on this machine with --local"
    )


def _count_executors() -> int:
    """How many executors the cluster's nodes have room for, one core each, as is the default."""
    nodes = flamepy.core.client.list_nodes()
    return max(1, sum(node.status.allocatable.cpu for node in nodes))


def _deploy(env_id: str, janitor: Janitor) -> tuple[Runner, list[str]]:
    """Ship the package under a name of its own; also returns what it depends on.

    Flame finds a package by its application's name alone, so the name carries the content and the
    run: what runs is what was shipped, and two users never meet.
    """
    with tempfile.TemporaryDirectory(prefix="flame-rl-") as folder:
        package = stage_package(Path(folder), env_id)
        name = f"flame-rl-{package.digest}-{secrets.token_hex(4)}"
        janitor.remember_application(name)
        # Runner packs the current directory and offers no other way.
        with contextlib.chdir(folder):
            try:
                runner = Runner(name, fail_if_exists=True, dependencies=package.dependencies)
            except Exception as error:
                raise RunError(f"Flame did not accept the application {name}: {error}") from error
    return runner, package.dependencies
