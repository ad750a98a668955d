"""Everything that depends on flamepy 0.6.0 beyond its documented interface, and every way around a
fault of Flame 0.6.0. Each item ends with what upstream would have to offer so that it can go.
`__init__.py` adds one: gRPC's fork handlers stay off. Until gRPC's handlers are safe in a fork
beside threads. The executors' side, which cannot import this, is actor/remote.py."""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import grpc
import pyarrow
from flamepy.core import cache, client
from flamepy.core.types import ResourceRequirement
from flamepy.proto import types_pb2 as pb
from flamepy.proto.frontend_pb2 import GetSessionRequest
from flamepy.runner.runner import ObjectFuture
from pyarrow import flight

CALL_SECONDS = 5.0  # flamepy itself waits for ever for a server that hangs
# More threads than this would use up the calls that Flame allows on one connection.
MOST_WATCHED = 128
# The code of a session's event: no further executor will be started. Goes with a name for it.
GAVE_UP = 1002
_FAILED_ON = re.compile(
    r"on node <(?P<node>[^>]*)> failed to bind session with return_code <\d+>: (?P<reason>.*)", re.S
)


# The connection, which all trainers of a process share


class _Deadline(grpc.UnaryUnaryClientInterceptor):
    def intercept_unary_unary(self, continuation, details, request):
        return continuation(details._replace(timeout=CALL_SECONDS), request)


def limit_calls() -> None:
    """Give calls to the session manager a deadline. Goes with a timeout of flamepy's own."""
    connection = client.ConnectionInstance.instance()
    channel = grpc.intercept_channel(connection._channel, _Deadline())
    connection._frontend = type(connection._frontend)(channel)
    connection.process = os.getpid()


def forked() -> bool:
    """Whether the connection is that of the process from which this one was forked."""
    connection = client.ConnectionInstance._connection
    return getattr(connection, "process", os.getpid()) != os.getpid()


def watch_tasks(tasks: int) -> None:
    """Watch this number of tasks at once: flamepy watches ten, and ten long ones would hide that
    others are done. Goes with one stream for all tasks of a session."""
    connection = client.ConnectionInstance.instance()
    threads = min(tasks, MOST_WATCHED)
    if connection._executor._max_workers < threads:
        connection._executor.shutdown(wait=False)
        connection._executor = ThreadPoolExecutor(threads, "watch")


def disconnect() -> None:
    """End the threads that watch tasks, and keep this process alive. Goes with such a `close`."""
    client.ConnectionInstance.instance()._channel.close()


# Objects in a cache that need not be the configured one. Both go with an endpoint as an argument.


def _flight_client(endpoint: str) -> flight.FlightClient:
    return cache._get_flight_client(endpoint, cache._get_cache_tls_config())


def has_object(endpoint: str, key: str) -> bool:
    """Whether the cache has it. Raises FlightUnavailableError if nothing answers there."""
    try:
        _flight_client(endpoint).do_get(flight.Ticket(f"{key}:0".encode())).read_chunk()
    except flight.FlightUnavailableError:
        raise
    except (pyarrow.ArrowException, StopIteration):
        return False
    return True


def delete_objects(endpoint: str, path: str) -> None:
    """Delete the object of this key, or all with this prefix."""
    list(_flight_client(endpoint).do_action(flight.Action("DELETE", path.encode())))
    cache._cache_remove_matching(cache.ObjectKey.from_path(path))


# Sessions and tasks


def future_of(task: ObjectFuture) -> Future[bytes]:
    """The future of a task. Goes with callbacks of the task."""
    return task._future


def close_session(session: str) -> bool:
    """Close a session by its id; returns whether it is closed or unknown to Flame, and not refused
    because tasks run. Goes with an error that says which."""
    try:
        client.close_session(session)
    except Exception:
        with contextlib.suppress(Exception):
            return session not in {each.id for each in client.list_sessions()}
        return False
    return True


def claim_of(session: str) -> pb.ResourceRequirement:
    """What each executor of the session claims. Raises RpcError. Goes with `Session.resreq`."""
    frontend = client.ConnectionInstance.instance()._frontend
    return frontend.GetSession(GetSessionRequest(session_id=session)).spec.resreq


def failed_nodes(events: Iterable[object]) -> dict[str, str]:
    """Why executors could not be bound to a session, by node. Goes with such an event's field."""
    found = (_FAILED_ON.search(str(event.message)) for event in events)
    return {each["node"]: each["reason"].rstrip(".") for each in found if each}


# Executors past nodes that are away. Goes with a scheduler that places none there.


def is_ready(node: pb.Node) -> bool:
    """Whether the node is connected to the session manager."""
    return node.status.state == pb.NodeState.Ready


def batch_past(
    nodes: Iterable[pb.Node], executors: Iterable[pb.Executor], claim: pb.ResourceRequirement
) -> int:
    """The size of the batches in which a session beside the run's gets Flame to create executors
    past nodes that are away; 0 if none is in the way, or the others have no room.

    Flame places executors on nodes that are away, too. They stay void, and in each cycle it
    reserves one of them for a session instead of creating another, first for the run's session,
    which has more executors. It reserves and creates whole batches: one that is larger than what
    is left away has an executor elsewhere, and the run's session is the first to be given that."""
    used: Counter[tuple[str, str]] = Counter()
    for executor in executors:
        node, resources = executor.spec.node, executor.spec.resreq
        used[node, "cpu"] += resources.cpu
        used[node, "memory"] += resources.memory
        used[node, "void"] += executor.status.state == pb.ExecutorVoid
    near = away = 0
    for node in nodes:
        name, room = node.metadata.name, node.status.allocatable
        free = max(0, (room.memory - used[name, "memory"]) // max(1, claim.memory))
        if claim.cpu:
            free = min(free, max(0, (room.cpu - used[name, "cpu"]) // claim.cpu))
        if is_ready(node):
            near += free
        else:
            away += free + used[name, "void"]
    if not near or not away:
        return 0
    # One more than the others can hold is never complete, but needs two away to be possible.
    return max(near, away) + (min(near, away) > 1)


class Bypass:
    """The session beside the run's, past nodes that are away: see `batch_past`. It has no task; the
    run's gets what Flame creates for it. `remember`: as of the janitor."""

    def __init__(self, application: str, remember: Callable[[str, str], None]) -> None:
        self._application = application
        self._remember = remember
        self._batch, self._session = 0, "none"

    def follow(self, nodes: list[pb.Node], executors: list[pb.Executor], session: str) -> None:
        """Have the session that is needed now, or none. Raises FlameError or grpc.RpcError."""
        claim = claim_of(session)
        batch = batch_past(nodes, executors, claim)
        bound = any(executor.status.session_id == self._session for executor in executors)
        if batch == self._batch and not bound:
            return
        self.close()
        if batch:
            resources = ResourceRequirement(claim.cpu, claim.memory, claim.gpu)
            opened = client.create_session(
                self._application, min_instances=batch, batch_size=batch, resreq=resources
            )
            self._remember("session", opened.id)
            self._batch, self._session = batch, opened.id

    def close(self) -> None:
        if self._batch:
            close_session(self._session)
            self._batch, self._session = 0, "none"
