"""Reaching the cluster, and shipping the application to it."""

from __future__ import annotations

import contextlib
import secrets
import socket
import tempfile
import threading
from pathlib import Path
from urllib.parse import urlparse

import flamepy.core.client
import grpc
import numpy as np
from flamepy.core.types import FlameContext
from flamepy.runner import Runner

from flame_rl.backends.flame.cleanup import Janitor
from flame_rl.backends.flame.within import CALL_SECONDS, within
from flame_rl.backends.package import stage_package
from flame_rl.errors import Interrupted, RunError, UsageError
from flame_rl.interrupt import unless_stopped

CONNECT_SECONDS = 8.0
PROBE_SECONDS = 3.0
DEPLOY_SECONDS = 60.0


def connect(stop: threading.Event) -> tuple[FlameContext, int]:
    """Read the configuration, reach the cluster, and count the executors it has room for.

    Raises:
        UsageError: within `CONNECT_SECONDS`, if any of that fails.
        Interrupted: `stop` was set.
    """
    try:
        context = FlameContext()
    except Exception as error:
        raise UsageError(
            f"~/.flame/flame.yaml cannot be used: {error}. Correct it, or collect on this machine "
            "with --local"
        ) from error

    def ask() -> int:
        check_reachable(context)
        _limit_calls()
        return _count_executors()

    try:
        return context, unless_stopped(stop, lambda: within(CONNECT_SECONDS, ask))
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


def check_answers(context: FlameContext, runner: Runner) -> None:
    """Raises UsageError if the session manager or the object cache accepts calls but hangs."""
    check_reachable(context)
    for name, endpoint, ask in (
        ("session manager", context.endpoint, flamepy.core.client.list_sessions),
        ("object cache", context.cache.endpoint, lambda: runner.put_object(np.empty(0, np.uint8))),
    ):
        try:
            within(PROBE_SECONDS, ask)
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


def _count_executors() -> int:
    """How many executors the cluster's nodes have room for, one core each, as is the default."""
    nodes = flamepy.core.client.list_nodes()
    return max(1, sum(node.status.allocatable.cpu for node in nodes))


def deploy(env_id: str, janitor: Janitor) -> tuple[Runner, list[str]]:
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
                runner = within(
                    DEPLOY_SECONDS,
                    lambda: Runner(name, fail_if_exists=True, dependencies=package.dependencies),
                )
            except Exception as error:
                raise RunError(f"Flame did not accept the application {name}: {error}") from error
    return runner, package.dependencies
