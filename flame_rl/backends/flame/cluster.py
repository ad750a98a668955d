"""Reaching the cluster, and shipping the application to it."""

from __future__ import annotations

import contextlib
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlparse

import flamepy.core.cache
import flamepy.core.client
import grpc
import numpy as np
import pyarrow
from flamepy.core.types import FlameContext, FlameError
from flamepy.runner import Runner
from pyarrow import flight

from flame_rl.backends.flame.cleanup import CALL_SECONDS, Janitor
from flame_rl.backends.flame.room import Room, Wish, room_among
from flame_rl.backends.package import stage_package
from flame_rl.system.errors import Interrupted, RunError, UsageError
from flame_rl.system.signals import call_with_timeout, unless_stopped
from flame_rl.wire.messages import Environment

CONNECT_SECONDS = 8.0
PROBE_SECONDS = 3.0
DEPLOY_SECONDS = 60.0
# Attempts to ship the package, of which the last is under a name of its own.
DEPLOYMENTS = 3
# flamepy learns that a task has finished through a thread that watches it, and has ten of them. Far
# more than this number would use up all calls that Flame allows on one connection.
MOST_WATCHED = 128


def connect(stop: threading.Event, wish: Wish) -> tuple[FlameContext, Room]:
    """Read the configuration, reach the cluster, and see how many executors it has room for.

    Args:
        stop: set when the user asks to stop.
        wish: which executors the run would have.

    Raises:
        UsageError: within `CONNECT_SECONDS`, if any of that fails or memory is too small.
        Interrupted: `stop` was set.
    """
    try:
        context = FlameContext()
    except Exception as error:
        raise UsageError(
            f"~/.flame/flame.yaml cannot be used: {error}. Correct it, or collect on this machine "
            "with --local"
        ) from error

    def ask() -> Room:
        check_reachable(context)
        _limit_calls()
        room = room_among(flamepy.core.client.list_nodes(), wish)
        watch_at_once(room.in_flight)
        return room

    try:
        return context, unless_stopped(stop, lambda: call_with_timeout(CONNECT_SECONDS, ask))
    except (UsageError, Interrupted):
        raise
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


def check_answers(context: FlameContext, put: Callable[[np.ndarray], object]) -> None:
    """Raises UsageError if the session manager or the object cache accepts calls but hangs; `put`
    puts an array into the cache."""
    check_reachable(context)
    for name, endpoint, ask in (
        ("session manager", context.endpoint, flamepy.core.client.list_sessions),
        ("object cache", context.cache.endpoint, lambda: put(np.empty(0, np.uint8))),
    ):
        try:
            call_with_timeout(PROBE_SECONDS, ask)
        except Exception as error:
            raise _unreachable(name, endpoint, str(error)) from error


def _unreachable(name: str, endpoint: str | None, reason: str) -> UsageError:
    return UsageError(
        f"Flame is configured, but its {name} at {endpoint} does not answer: {reason}. "
        "Start the cluster, correct FLAME_ENDPOINT, FLAME_CACHE_ENDPOINT or ~/.flame/flame.yaml, "
        "or collect on this machine with --local"
    )


def _limit_calls() -> None:
    """Give flamepy's calls to the session manager a deadline; they have none of their own."""
    connection = flamepy.core.client.ConnectionInstance.instance()
    channel = grpc.intercept_channel(connection._channel, _Deadline())
    connection._frontend = type(connection._frontend)(channel)


class _Deadline(grpc.UnaryUnaryClientInterceptor):
    def intercept_unary_unary(self, continuation, details, request):
        return continuation(details._replace(timeout=CALL_SECONDS), request)


def watch_at_once(tasks: int) -> None:
    """Let flamepy watch more than ten tasks: ten long ones would hide that others are done."""
    connection = flamepy.core.client.ConnectionInstance.instance()
    threads = min(tasks, MOST_WATCHED)
    # All trainers of a process share one connection.
    if connection._executor._max_workers < threads:
        connection._executor.shutdown(wait=False)
        connection._executor = ThreadPoolExecutor(threads, "watch")


def deploy(
    environment: Environment, janitor: Janitor, install: bool, shared: bool
) -> tuple[Runner, list[str]]:
    """Ship the package as an application, or find it there; returns its runner and the package's
    dependencies.

    Nodes install a package once for each name of an application. The name holds a digest of the
    content, so that all runs of equal content share an install, and what runs is what was shipped.

    Args:
        environment: its modules are shipped.
        janitor: told of the application.
        install: whether executors install what it depends on.
        shared: whether the name says nothing else; otherwise it is this run's alone.

    Raises:
        RunError: Flame does not take it.
        UsageError: see `stage_package`, or the object cache is out of reach.
    """
    with tempfile.TemporaryDirectory(prefix="flame-rl-") as folder:
        package = stage_package(Path(folder), environment, install)
        name = f"flame-rl-{package.digest}"
        # Runner packs the current directory and offers no other way.
        with contextlib.chdir(folder):
            for attempt in range(DEPLOYMENTS):
                # Another run may register or remove the shared one meanwhile, or have lost it.
                if not shared or attempt == DEPLOYMENTS - 1:
                    name = f"flame-rl-{package.digest}-{secrets.token_hex(4)}"
                janitor.remember("application", name)
                try:
                    return _register(name), package.dependencies
                except _UnusableError as error:
                    reason = error
    raise RunError(f"Flame did not accept the application {name}: {reason}")


class _UnusableError(Exception):
    """An application of this name is there, but not as it must be; another attempt may succeed."""


def _register(name: str) -> Runner:
    """The runner of the application, which is registered unless it is there.

    Raises:
        _UnusableError, RunError: Flame does not take it.
        UsageError: see `_is_complete`.
    """
    try:
        runner = call_with_timeout(DEPLOY_SECONDS, lambda: Runner(name))
        if _is_complete(name):
            return runner
    except UsageError:
        raise
    except Exception as error:
        if "already exists" in str(error):
            raise _UnusableError(error) from error
        raise RunError(f"Flame did not accept the application {name}: {error}") from error
    with contextlib.suppress(FlameError):  # refused where others use it
        flamepy.core.client.unregister_application(name)
    raise _UnusableError("its package is not in the object cache")


def _is_complete(application: str) -> bool:
    """Whether the application's package is where its executors will look for it. Raises UsageError
    if that object cache cannot be reached from here."""
    found = flamepy.core.client.get_application(application)
    if found is None:  # removed just now
        return False
    url = urlparse(found.url)
    endpoint, key = f"{url.scheme}://{url.netloc}", url.path.lstrip("/")
    tls = flamepy.core.cache._get_cache_tls_config()

    def read() -> None:
        client = flamepy.core.cache._get_flight_client(endpoint, tls)
        client.do_get(flight.Ticket(f"{key}:0".encode())).read_chunk()

    try:
        call_with_timeout(CALL_SECONDS, read)
    except (TimeoutError, flight.FlightUnavailableError) as error:
        raise UsageError(
            f"Flame's object cache calls itself {endpoint}, which does not answer here: {error}. "
            "The learner must be in a network in which that address leads there, or use --local"
        ) from error
    except (pyarrow.ArrowException, StopIteration):
        return False
    return True
