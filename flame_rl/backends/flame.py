"""Collect on the executors of a Flame cluster, through Flame Runner.

The only file that imports flamepy. One Runner, one service, one object that holds the weights; the
simulator itself runs in a child process of each executor's worker (`flame_rl.actor.worker`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import secrets
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, wait
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
from flame_rl.backends.package import stage_package
from flame_rl.errors import Interrupted, RunError, UsageError
from flame_rl.messages import CollectRequest, EnvironmentSpec, PolicySnapshot

CONNECT_SECONDS = 3.0
# An executor installs the package's dependencies before its first task; with a cold cache of
# packages this takes as long as downloading MuJoCo does.
STARTUP_SECONDS = 300.0
DRAIN_SECONDS = 3.5
CHECK_SECONDS = 2.0
# "Session retry limit reached": Flame will not try to start another executor.
GAVE_UP_EVENT = 1002
TASKS_PER_EXECUTOR = 4


class FlameBackend:
    """One application with one session on the cluster, from construction to `close`."""

    def __init__(self, env_id: str, deadline: float, stop: threading.Event) -> None:
        """Connect, ship the package and open a session.

        Raises:
            UsageError: no cluster answers, or the environment's module cannot be shipped.
        """
        self._deadline = deadline
        self._stop = stop
        self._outstanding: set[Future] = set()
        self._weights: flamepy.core.cache.ObjectRef | None = None
        logging.getLogger("flamepy").addHandler(logging.NullHandler())
        context = FlameContext()
        check_reachable(context)
        try:
            self._executors = _count_executors()
        except Exception as error:
            raise _unreachable("session manager", context.endpoint, str(error)) from error
        self._checked_at = 0.0
        self._runner, self._service, self._dependencies = _deploy(env_id)
        # Asked at once, so that executors start while the learner imports torch.
        self._their_versions: Future[bytes] | None = self._track(self._service.versions())

    def describe(self, env_id: str, max_episode_steps: int | None) -> EnvironmentSpec:
        """Read the spaces in a process on this machine, where an error shows soonest."""
        worker = Worker()
        try:
            return read_description(worker.describe(env_id, max_episode_steps, self._deadline))
        finally:
            worker.close()

    def collect(self, snapshot: PolicySnapshot, request: CollectRequest) -> Collected:
        if self._their_versions is not None:
            self._compare_versions(self._their_versions)
            self._their_versions = None
        encoded = wire.encode_snapshot(snapshot)
        self._publish(encoded)
        weights = json.dumps(asdict(self._weights))

        def submit(data: bytes) -> Future[bytes]:
            return self._track(self._service.collect(self._weights, data, self._deadline, weights))

        collected = gather(
            snapshot,
            request,
            submit,
            task_size=max(1, len(request.indices) // (TASKS_PER_EXECUTOR * self._executors)),
            in_flight=2 * self._executors,
            stop=self._stop,
            check=self._check_session,
        )
        return replace(collected, bytes_out=collected.bytes_out + len(encoded))

    def close(self) -> None:
        """Close the session, unregister the application and delete its objects.

        Closing a session cancels the tasks that have not begun. Flame refuses while others run;
        their executors notice within about a second that the weights are gone, and end them.
        """
        if self._runner is None:
            return
        if self._weights is not None and self._outstanding:
            with contextlib.suppress(Exception):
                self._publish(b"")
        limit = time.monotonic() + DRAIN_SECONDS
        while not self._session_closes() and time.monotonic() < limit:
            time.sleep(0.2)
        session, application = self._service._session.id, self._runner._name
        left = not self._session_closes()
        self._runner.close()
        self._runner = None
        if left:
            # Or the threads that watch its tasks would keep this process alive.
            flamepy.core.client.ConnectionInstance.instance()._channel.close()
            print(
                f"Flame session {session} still runs tasks, so Flame refuses to close it. When "
                f"they have ended: flmctl close -s {session}; flmctl unregister -a {application}",
                file=sys.stderr,
            )

    def _session_closes(self) -> bool:
        try:
            self._service.close()
        except Exception:
            return False
        return True

    def _publish(self, encoded: bytes) -> None:
        """Put the weights where executors find them; an update replaces them in place."""
        array = np.frombuffer(encoded, np.uint8)
        if self._weights is None:
            self._weights = self._runner.put_object(array)
        else:
            self._weights = flamepy.core.cache.update_object(self._weights, array)

    def _track(self, task: ObjectFuture) -> Future[bytes]:
        """A future of the task's bytes, with the result already fetched and deleted."""
        inner = task._future
        outer: Future[bytes] = Future()
        self._outstanding.add(outer)

        def fetch(_: Future) -> None:
            try:
                ref = task.ref()
                data = flamepy.core.cache.get_object(ref)
                # Every result stays in Flame's cache, and in this client's, until deleted.
                flamepy.core.cache.delete_objects(ref.key)
                if not isinstance(data, np.ndarray) or data.dtype != np.uint8:
                    raise wire.WireError(f"result: {type(data).__name__} where bytes are expected")
                outer.set_result(data.tobytes())
            except Exception as error:
                outer.set_exception(error)
            finally:
                self._outstanding.discard(outer)

        inner.add_done_callback(fetch)
        return outer

    def _compare_versions(self, future: Future[bytes]) -> None:
        """Wait for an executor's versions: different ones give different bits, or nonsense."""
        began = time.monotonic()
        while not future.done():
            wait([future], timeout=STOP_POLL_SECONDS)
            if self._stop.is_set():
                raise Interrupted
            self._check_session()
            if time.monotonic() - began > STARTUP_SECONDS:
                raise RunError(
                    f"no executor of the cluster became ready within {STARTUP_SECONDS:.0f} s. "
                    f"{self._session_events()}"
                )
        try:
            theirs = json.loads(future.result())
        except Exception as error:
            raise RunError(
                f"the first task on the cluster failed: {error}. {self._session_events()}"
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

    def _check_session(self) -> None:
        """Raises RunError once Flame has given up starting executors; asks every other second."""
        now = time.monotonic()
        if now - self._checked_at < CHECK_SECONDS:
            return
        self._checked_at = now
        with contextlib.suppress(FlameError):
            events = flamepy.core.client.get_session(self._service._session.id).events
            if any(event.code == GAVE_UP_EVENT for event in events):
                raise RunError(
                    f"the cluster's executors cannot start. {self._session_events()}. The package "
                    f"asks for {', '.join(self._dependencies)}: those versions must be available "
                    f"to the executors, and exist for their Python; here it is "
                    f"{versions()['python']}"
                )

    def _session_events(self) -> str:
        try:
            events = flamepy.core.client.get_session(self._service._session.id).events
        except FlameError as error:
            return f"Flame does not say why ({error})."
        # The same for every executor and attempt, but for their ids.
        messages = {re.sub(r"<[^>]*>", "<…>", str(event.message)): event for event in events}
        if not messages:
            return "Flame reports no event; see the logs of its executor manager"
        reported = "; ".join(str(event.message).rstrip(".") for event in messages.values())
        return f"Flame reports: {reported}"


def check_reachable(context: FlameContext) -> None:
    """Raises UsageError, within seconds, if the session manager or the cache does not answer."""
    for name, endpoint, port in (
        ("session manager", context.endpoint, 8080),
        ("object cache", context.cache.endpoint, 9090),
    ):
        parsed = urlparse(endpoint or "")
        address = (parsed.hostname or "", parsed.port or port)
        try:
            socket.create_connection(address, CONNECT_SECONDS).close()
        except (OSError, ValueError) as error:
            raise _unreachable(name, endpoint, str(error)) from error
        # Something listens; is it Flame? Over TLS a wrong answer shows by itself at once.
        if parsed.scheme in ("https", "grpcs"):
            continue
        with grpc.insecure_channel("{}:{}".format(*address)) as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=CONNECT_SECONDS)
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


def _deploy(env_id: str):
    """Ship the package under a name of its own and open the service.

    Flame finds a package by its application's name alone, so the name carries the content and the
    run: what runs is what was shipped, and two users never meet.
    """
    with tempfile.TemporaryDirectory(prefix="flame-rl-") as folder:
        package = stage_package(Path(folder), env_id)
        name = f"flame-rl-{package.digest}-{secrets.token_hex(4)}"
        # Runner packs the current directory and offers no other way.
        with contextlib.chdir(folder):
            try:
                runner = Runner(name, fail_if_exists=True, dependencies=package.dependencies)
            except Exception as error:
                raise RunError(f"Flame did not accept the application {name}: {error}") from error
    try:
        return runner, runner.service(Collector), package.dependencies
    except Exception as error:
        runner.close()
        raise RunError(f"Flame did not open a session for {name}: {error}") from error
