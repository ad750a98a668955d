"""The cluster: reaching it, and the executors that it has room for."""

import bisect
import socket
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlparse

from flamepy.core import client
from flamepy.core.types import FlameContext, ResourceRequirement
from flamepy.proto import types_pb2 as pb

from flame_rl.backends.flame import compat
from flame_rl.settings.config import Execution
from flame_rl.system.errors import UsageError
from flame_rl.system.signals import call_with_timeout, unless_stopped

# The least memory of an executor: it takes about 110 MB without its simulators.
LEAST_BYTES = 256 << 20
# The part of its share of the memory that each of a requested number of executors claims; the rest
# is for other runs. With much less, Flame would place all on one node, which it fills first.
CLAIMED = 0.5


def connect(stop: threading.Event) -> FlameContext:
    """Read the configuration and reach the cluster. Raises UsageError if that fails, Interrupted if
    `stop` was set."""
    if compat.forked():
        raise UsageError(
            "this process was forked from one that had reached the cluster, and that connection "
            'ends in a fork; start it anew, as multiprocessing.get_context("spawn") does, or '
            "collect on this machine with --local"
        )
    try:
        context = FlameContext()
    except Exception as error:
        raise UsageError(
            f"~/.flame/flame.yaml cannot be used: {error}. Correct it, or use --local"
        ) from error
    unless_stopped(stop, lambda: check_servers(context))
    compat.limit_calls()
    return context


def check_servers(context: FlameContext) -> None:
    """Raises UsageError within seconds if the session manager or the object cache does not answer,
    or accepts calls but hangs."""
    cache = context.cache.endpoint
    for name, endpoint, schemes, ask in (
        ("session manager", context.endpoint, ("http", "https"), client.list_nodes),
        ("object cache", cache, ("grpc", "grpcs"), lambda: compat.has_object(cache, "a/b/c")),
    ):
        try:
            parsed = urlparse(endpoint or "")
            if parsed.scheme not in schemes or not parsed.hostname:
                raise ValueError(f"it must begin with {schemes[0]}:// or {schemes[1]}://")
            port = parsed.port or {"http": 8080, "grpc": 9090}[schemes[0]]
            socket.create_connection((parsed.hostname, port), compat.CALL_SECONDS).close()
            call_with_timeout(compat.CALL_SECONDS, ask)
        except Exception as error:
            raise UsageError(
                f"Flame is configured, but its {name} at {endpoint} does not answer: {error}. "
                "Start the cluster (its object cache ends where its disk is full), correct "
                "FLAME_ENDPOINT, FLAME_CACHE_ENDPOINT or ~/.flame/flame.yaml, or collect on this "
                "machine with --local"
            ) from error


@dataclass(frozen=True)
class Capacity:
    """The executors that the cluster has room for.

    Attributes:
        executors: their number.
        claim: the resources that each of them claims from Flame; None: the cluster's default.
        requested: the number that Flame is to start; None: as many as it has resources for.
    """

    executors: int
    claim: ResourceRequirement | None = None
    requested: int | None = None

    @property
    def in_flight(self) -> int:
        """The most tasks in flight: one that runs and one that waits per executor. Where a number
        is requested none waits: Flame v0.6.0 gives a session with waiting tasks idle executors of
        others past its number, and there may be only so many robots."""
        return 2 * self.executors if self.requested is None else self.executors


def capacity_of(
    nodes: Iterable[pb.Node], settings: Execution, claim: ResourceRequirement | None = None
) -> Capacity:
    """What the nodes that are ready have room for now; `claim` is what each of a requested number
    claims, once that is chosen: it stays for the run. Raises UsageError if each of these executors
    would have too little memory, or no node is large enough."""
    ready = [node.status.allocatable for node in nodes if compat.is_ready(node)]
    if settings.executors is not None:
        claim = claim or _claim([node.memory for node in ready], settings.executors)
        fitting = sum(node.memory // claim.memory for node in ready)
        return Capacity(max(1, min(settings.executors, fitting)), claim, settings.executors)
    workers = settings.workers_per_executor
    # Nodes may yet join a cluster without one.
    fitting = max(1, sum(node.cpu // workers for node in ready))
    if workers == 1:
        return Capacity(fitting)  # which Flame gives one core each by default
    most = max((node.cpu for node in ready), default=workers)
    if most < workers:
        raise UsageError(
            f"--workers-per-executor: no node has {workers} cores; at most {most}. With "
            "--executors N, executors claim memory and no core, for simulators that wait"
        )
    return Capacity(fitting, ResourceRequirement(cpu=workers, memory=workers * LEAST_BYTES))


def _claim(memory: Sequence[int], executors: int) -> ResourceRequirement:
    """Executors that claim no core may outnumber the cores; `memory` has the bytes of each node."""
    # The most that each of them, on a single node, can have.
    share = bisect.bisect_left(
        range(1, max(memory, default=0) + 1),
        True,
        key=lambda share: sum(each // share for each in memory) < executors,
    )
    if share < LEAST_BYTES:
        most = sum(each // LEAST_BYTES for each in memory)
        raise UsageError(
            f"--executors: {executors} would have {share >> 20} MB of the memory of "
            f"{len(memory)} ready nodes each, which is too little for a simulator; at most {most}"
        )
    return ResourceRequirement(cpu=0, memory=max(LEAST_BYTES, int(share * CLAIMED)))
