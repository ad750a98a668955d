"""The cluster: reaching it, how many executors it has room for, what they do, its silences."""

import bisect
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlparse

from flamepy.core import client
from flamepy.core.types import FlameContext, FlameError, ResourceRequirement
from flamepy.proto import types_pb2 as pb

from flame_rl.backends.dispatch import Listener, tell
from flame_rl.backends.flame import compat
from flame_rl.settings.config import Execution
from flame_rl.system.errors import UsageError
from flame_rl.system.signals import call_with_timeout, unless_stopped

# The least memory of an executor: it takes about 110 MB without its simulators.
LEAST_BYTES = 256 << 20
# The part of its share of the memory that each of a requested number of executors claims; the rest
# is for other runs. With much less, Flame would place all on one node, which it fills first.
CLAIMED = 0.5

# An executor installs dependencies before its first task, and may have to download MuJoCo.
STARTUP_SECONDS = 300.0
ASK_SECONDS = 5.0  # how often Flame is asked while episodes are awaited
QUIET_SECONDS = 10.0  # a silence of this length is told
# An executor unbinds in a few seconds if its process lives, and otherwise for ever.
STUCK_SECONDS = 10.0
_TAKEN, _UNBINDING = "bound to other sessions", "unbinding"
_STATES = {
    pb.ExecutorVoid: "starting",
    pb.ExecutorBinding: "starting",
    pb.ExecutorIdle: "idle",
    pb.ExecutorBound: _TAKEN,
    pb.ExecutorUnbinding: _UNBINDING,
    pb.ExecutorReleasing: "ending",
    pb.ExecutorReleased: "ending",
}


def connect(stop: threading.Event) -> FlameContext:
    """Read the configuration and reach the cluster. Raises UsageError, Interrupted by `stop`."""
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
    """Raise UsageError, within seconds, if the session manager or the object cache is silent."""
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
    """The number of executors that the cluster has room for."""

    executors: int
    # The resources that each of them claims from Flame; None: the cluster's default.
    claim: ResourceRequirement | None = None
    # The number that Flame is to start; None: as many as it has resources for.
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


@dataclass(frozen=True)
class Executors:
    """The executors of a cluster, as seen by one run that can have `wanted` of them."""

    wanted: int
    # Those that are bound to its session, those being bound, and others by the name of their state.
    working: int = 0
    starting: int = 0
    others: Counter[str] = field(default_factory=Counter)
    # The names of nodes without a connection to the session manager.
    nodes_away: tuple[str, ...] = ()
    # The names of all nodes, where each has executors and all of them unbind.
    nodes_stuck: tuple[str, ...] = ()
    answers: bool = True  # whether Flame answers; where it does not, the rest is what it said last

    @property
    def alive(self) -> int:
        """The number of those bound to the run's session or being bound to it."""
        return self.working + self.starting

    @property
    def taken(self) -> bool:
        """Whether other runs have executors, and this one none."""
        return not self.alive and self.others[_TAKEN] > 0

    @property
    def hint(self) -> str:
        """What a person may do about it."""
        away, stuck = ", ".join(self.nodes_away), ", ".join(self.nodes_stuck)
        if self.answers and self.taken:
            return "This run has some when one of the others ends or is stopped"
        if self.answers and away and not self.alive:
            return f"Start Flame's executor manager on {away} again, under the same host name"
        if self.answers and stuck:
            return (
                "Processes of executors were killed: stop Flame's executor manager on "
                f"{stuck}, and start it again after 30 seconds"
            )
        return "docs/cluster.md says how to see which of its servers run, and what helps"

    @property
    def troubles(self) -> str:
        """What does not end by itself: nodes that are away, and what keeps executors from the run:
        other runs, and processes that died, whose executors unbind for ever."""
        return self._details({_TAKEN, _UNBINDING} if self.working < self.wanted else set())

    def _details(self, states: Collection[str]) -> str:
        others = [f"{n} {state}" for state, n in sorted(self.others.items()) if state in states]
        return ", ".join(others + [f"no sign of node {name}" for name in self.nodes_away])

    def __str__(self) -> str:
        if not self.answers:
            return "its session manager does not answer"
        details = self._details(self.others)
        text = f"{self.working} of {self.wanted} executors are working"
        return f"{text} ({details})" if details else text


def count(
    executors: Sequence[pb.Executor], nodes: Sequence[pb.Node], session: str, wanted: int
) -> Executors:
    """Count the executors of a cluster for the run that has this session."""
    nodes_away = sorted(n.metadata.name for n in nodes if not compat.is_ready(n))
    unbinding = {e.spec.node for e in executors if e.status.state == pb.ExecutorUnbinding}
    others = {e.spec.node for e in executors if e.status.state != pb.ExecutorUnbinding}
    ready = {node.metadata.name for node in nodes} - set(nodes_away)
    stuck = sorted(ready) if ready <= unbinding - others else []
    near = [e.status for e in executors if e.spec.node not in nodes_away]
    ours = Counter(status.state for status in near if status.session_id == session)
    states = Counter(_STATES.get(status.state, "in an unknown state") for status in near)
    states[_TAKEN] -= ours[pb.ExecutorBound]
    counts = ours[pb.ExecutorBound], ours[pb.ExecutorBinding]
    return Executors(wanted, *counts, +states, tuple(nodes_away), tuple(stuck))


class ExecutorMonitor:
    """Asks Flame for its executors while episodes are awaited, and tells a listener what is
    amiss. Whoever knows how many executors the run can have sets `wanted`."""

    def __init__(self, wanted: int) -> None:
        self.listener = Listener()
        self.wanted = wanted
        self.seen = Executors(wanted)
        # All of the cluster, as Flame named them last.
        self.nodes: list[pb.Node] = []
        self.executors: list[pb.Executor] = []
        self._asked_at = self._told_at = self._alive_at = self._moved_at = 0.0
        self._taken_at = -math.inf
        self._said = ""
        self._telling = False

    def ask(self, session: str) -> bool:
        """Ask what the executors do, unless that was asked less than `ASK_SECONDS` ago; returns
        whether Flame has answered just now. Takes at most twice `CALL_SECONDS`."""
        now = time.monotonic()
        if now - self._asked_at < ASK_SECONDS:
            return False
        self._asked_at = now
        try:
            self.nodes = client.list_nodes()
            self.executors = client.list_executors()
        except FlameError:
            self.seen = replace(self.seen, answers=False)
            return False
        before = self.seen
        self.seen = seen = count(self.executors, self.nodes, session, self.wanted)
        if seen.alive:
            self._alive_at = now
        if seen.taken:
            self._taken_at = now
        if not (before.nodes_stuck and seen.nodes_stuck):
            self._moved_at = now
        # Troubles are said once they are the same twice, as a healthy executor is back soon.
        settled = seen.troubles == before.troubles and seen.working and not seen.starting
        known = seen.troubles or seen.working >= seen.wanted
        if settled and known and seen.troubles != self._said:
            self.say(f"{seen}. docs/cluster.md says what helps" if seen.troubles else f"{seen}.")
            self._said = seen.troubles
        return True

    def silence(self, last_result: float) -> float:
        """Seconds without an executor that works for the run, and without a result."""
        return time.monotonic() - max(last_result, self._alive_at)

    @property
    def stuck(self) -> bool:
        """Whether no node can start an executor before somebody restarts its executor manager."""
        return bool(self.seen.nodes_stuck) and time.monotonic() - self._moved_at >= STUCK_SECONDS

    def limit(self, patience: float) -> float:
        """The seconds of silence after which the cluster is lost: `patience`, but as many as at the
        start of a run while other runs have the executors, and for `patience` after that."""
        taken = time.monotonic() - self._taken_at < max(patience, 2 * ASK_SECONDS)
        return max(STARTUP_SECONDS, patience) if taken else patience

    def tell(self, seconds: float, limit: float) -> None:
        """Tell once a second of a silence, which ends the run after `limit`, and of its end."""
        now = time.monotonic()
        if seconds < QUIET_SECONDS:
            if self._telling:
                self.say("The cluster works.")
                self.over()
        elif now - self._told_at >= 1.0:
            self._told_at = now
            self._telling = True
            text = (
                f"Waiting for the cluster for {seconds:.0f} s: {self.seen}; giving up in "
                f"{max(0.0, limit - seconds):.0f} s. {self.seen.hint}"
            )
            tell(self.listener.waiting, text)

    def over(self) -> None:
        if self._telling:
            self._telling = False
            tell(self.listener.waiting, "")

    def say(self, text: str) -> None:
        tell(self.listener.say, text)
