"""How many executors of which size the nodes of a cluster have room for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flamepy.core.types import ResourceRequirement
from flamepy.proto import types_pb2 as pb

from flame_rl.system.errors import UsageError

# The least memory of an executor: it takes about 110 MB without its simulators.
LEAST_BYTES = 256 << 20
# The part of its share of the memory that each of a wished number of executors claims: the rest is
# for other runs. With much less, Flame would place all of them on one node, which it fills first.
CLAIMED = 0.5


@dataclass(frozen=True)
class Wish:
    """Which executors a run would have.

    Attributes:
        executors: their number, with memory instead of cores; None: as many as there are cores for.
        workers: the number of processes in each; such an executor has as many cores.
    """

    executors: int | None = None
    workers: int = 1


@dataclass(frozen=True)
class Room:
    """How many executors the cluster has for a run.

    Attributes:
        executors: their number.
        claim: the resources that each of them claims from Flame; None: the cluster's default.
        wished: how many Flame is to start; None: as many as it has resources for.
    """

    executors: int
    claim: ResourceRequirement | None = None
    wished: int | None = None

    @property
    def in_flight(self) -> int:
        """The most tasks to have on their way: one that runs and one that waits per executor. Where
        a number is wished none waits: Flame v0.6.0 gives a session with waiting tasks idle
        executors of others past its number, and there may be only so many robots."""
        return 2 * self.executors if self.wished is None else self.executors


def is_ready(node: pb.Node) -> bool:
    """Whether the node is connected to the session manager."""
    return node.status.state == pb.NodeState.Ready


def room_among(
    nodes: Iterable[pb.Node], wish: Wish, claim: ResourceRequirement | None = None
) -> Room:
    """The room that the nodes that are ready have now.

    Args:
        nodes: of the cluster.
        wish: what the run asks for.
        claim: what each of a wished number claims, once that is chosen; it stays for the run.

    Raises:
        UsageError: so many executors would have too little memory each, or no node is large enough.
    """
    ready = [node.status.allocatable for node in nodes if is_ready(node)]
    if wish.executors is None:
        return _room_of_cores(ready, wish.workers)
    if claim is None:
        claim = _claim([node.memory for node in ready], wish.executors)
    fitting = sum(node.memory // claim.memory for node in ready)
    return Room(max(1, min(wish.executors, fitting)), claim, wish.executors)


def _room_of_cores(ready: Sequence[pb.ResourceRequirement], workers: int) -> Room:
    # Nodes may yet join a cluster without one.
    fitting = max(1, sum(node.cpu // workers for node in ready))
    if workers == 1:
        return Room(fitting)  # which Flame gives one core each by default
    most = max((node.cpu for node in ready), default=workers)
    if most < workers:
        raise UsageError(
            f"--workers-per-executor: no node has {workers} cores; at most {most}. With "
            "--executors N, executors claim memory and no core, for simulators that wait"
        )
    return Room(fitting, ResourceRequirement(cpu=workers, memory=workers * LEAST_BYTES))


def _claim(memory: Sequence[int], executors: int) -> ResourceRequirement:
    """Executors that claim no core may outnumber the cores."""
    if not memory:
        raise UsageError(
            "--executors: no node of the cluster is ready, so that nothing is known of its memory; "
            "start its executor managers first"
        )
    share = memory_share(memory, executors)
    if share < LEAST_BYTES:
        most = sum(each // LEAST_BYTES for each in memory)
        raise UsageError(
            f"--executors: {executors} would have {share >> 20} MB of the cluster's memory each, "
            f"which is too little for a simulator; at most {most}"
        )
    return ResourceRequirement(cpu=0, memory=max(LEAST_BYTES, int(share * CLAIMED)))


def memory_share(nodes: Sequence[int], executors: int) -> int:
    """The most memory in bytes that each executor can have; 0 if they do not fit.

    Args:
        nodes: the memory of each node in bytes.
        executors: their number; each runs on a single node.
    """
    low, high = 0, max(nodes, default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(node // middle for node in nodes) >= executors:
            low = middle
        else:
            high = middle - 1
    return low


def batch_past(
    nodes: Iterable[pb.Node], executors: Iterable[pb.Executor], claim: pb.ResourceRequirement
) -> int:
    """The size of the batches in which a session beside the run's gets Flame to create executors
    past nodes that are away; 0 if none is in the way, or the others have no room.

    Flame v0.6.0 places executors on nodes that are away, too. They stay void, and in each cycle it
    reserves one of them for a session instead of creating another, first for the run's session,
    which has more executors. It reserves and creates whole batches: one that is larger than what
    is left away has an executor elsewhere, and the run's session is the first to be given that.
    """
    used_cpu: Counter[str] = Counter()
    used_memory: Counter[str] = Counter()
    void: Counter[str] = Counter()
    for executor in executors:
        used_cpu[executor.spec.node] += executor.spec.resreq.cpu
        used_memory[executor.spec.node] += executor.spec.resreq.memory
        void[executor.spec.node] += executor.status.state == pb.ExecutorVoid
    near = away = 0
    for node in nodes:
        name, room = node.metadata.name, node.status.allocatable
        free = max(0, (room.memory - used_memory[name]) // max(1, claim.memory))
        if claim.cpu:
            free = min(free, max(0, (room.cpu - used_cpu[name]) // claim.cpu))
        if is_ready(node):
            near += free
        else:
            away += free + void[name]
    if not near or not away:
        return 0
    # One more than the others can hold is never complete, but needs two away to be possible.
    return max(near, away) + (min(near, away) > 1)
