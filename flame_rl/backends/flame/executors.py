"""What Flame says of its executors, for how long none of them has worked, and what they run."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flamepy.core import client
from flamepy.core.types import FlameError
from flamepy.proto import types_pb2 as pb

from flame_rl.actor.remote import processor, versions
from flame_rl.backends import Listener
from flame_rl.backends.flame.compat import is_ready
from flame_rl.system.errors import UsageError
from flame_rl.wire.packing import WireError

# An executor installs the package's dependencies before its first task; with a cold cache of
# packages this takes as long as downloading MuJoCo does.
STARTUP_SECONDS = 300.0
# How often Flame is asked while episodes are awaited.
ASK_SECONDS = 5.0
# A silence of this length is told.
QUIET_SECONDS = 10.0
# Far above what an executor says of itself.
MOST_BYTES = 4096
HINT = "docs/cluster.md says how to see which of its servers run, and what helps"
TAKEN_HINT = (
    "Other runs have those that work: this one has some when one of them ends or is stopped"
)
_TAKEN = "bound to other sessions"
_STATES = {
    pb.ExecutorVoid: "starting",
    pb.ExecutorBinding: "starting",
    pb.ExecutorIdle: "idle",
    pb.ExecutorBound: _TAKEN,
    pb.ExecutorUnbinding: "unbinding",
    pb.ExecutorReleasing: "ending",
    pb.ExecutorReleased: "ending",
}


@dataclass(frozen=True)
class Executors:
    """The executors of a cluster, as seen by one run that can have `wanted` of them.

    Attributes:
        working: the ids of those that are bound to its session.
        starting: the number of those that are being bound to it.
        others: the number of other executors in each state, by its name.
        gone: the ids of executors that are unbinding, as one whose process died stays for ever, and
            of those on nodes without a connection to the session manager.
        nodes_away: the names of those nodes.
    """

    wanted: int
    working: frozenset[str] = frozenset()
    starting: int = 0
    others: Counter[str] = field(default_factory=Counter)
    gone: frozenset[str] = frozenset()
    nodes_away: tuple[str, ...] = ()

    @property
    def alive(self) -> int:
        """The number of those bound to the run's session or being bound to it."""
        return len(self.working) + self.starting

    @property
    def taken(self) -> bool:
        """Whether other runs have executors, and this one none."""
        return not self.alive and self.others[_TAKEN] > 0

    @property
    def share(self) -> str:
        """How many the run has where other runs keep it from having more; "": none do."""
        theirs = self.others[_TAKEN]
        if not theirs or len(self.working) >= self.wanted:
            return ""
        return (
            f"This run has {len(self.working)} of {self.wanted} executors, and other runs have "
            f"{theirs}: docs/cluster.md says how runs share a cluster"
        )

    @property
    def hint(self) -> str:
        """What a person may do about it."""
        if self.taken:
            return TAKEN_HINT
        if self.nodes_away and not self.alive:
            names = ", ".join(self.nodes_away)
            return f"Start Flame's executor manager on {names} again, under the same host name"
        return HINT

    def __str__(self) -> str:
        details = [f"{count} {what}" for what, count in sorted(self.others.items())]
        details += [f"no sign of node {name}" for name in self.nodes_away]
        text = f"{len(self.working)} of {self.wanted} executors are working"
        return f"{text} ({', '.join(details)})" if details else text


def count(
    executors: Sequence[pb.Executor], nodes: Sequence[pb.Node], session: str, wanted: int
) -> Executors:
    """Count the executors of a cluster for the run that has this session."""
    nodes_away = sorted(n.metadata.name for n in nodes if not is_ready(n))
    far = {e.metadata.id: e for e in executors if e.spec.node in nodes_away}
    near = {e.metadata.id: e for e in executors if e.spec.node not in nodes_away}
    states = {name: e.status.state for name, e in near.items()}
    ours = [name for name, e in near.items() if e.status.session_id == session]
    working = frozenset(name for name in ours if states[name] == pb.ExecutorBound)
    others = Counter(_STATES.get(state, "in an unknown state") for state in states.values())
    others[_TAKEN] -= len(working)
    unbinding = {name for name, state in states.items() if state == pb.ExecutorUnbinding}
    return Executors(
        wanted=wanted,
        working=working,
        starting=sum(states[name] == pb.ExecutorBinding for name in ours),
        others=+others,
        gone=frozenset(far.keys() | unbinding),
        nodes_away=tuple(nodes_away),
    )


class ExecutorMonitor:
    """Asks Flame for its executors while episodes are awaited, and tells a listener what is amiss.

    Attributes:
        wanted: the number of executors that the run can have; whoever knows it sets it.
        seen: what Flame said last.
        answers: whether it did answer.
        nodes, executors: all of the cluster, as Flame named them last.
        lost: the number of the session's executors on nodes that are away since the answer before.
    """

    def __init__(self, wanted: int) -> None:
        self._listener: Listener | None = None
        self._unsaid = ""
        self.wanted = wanted
        self.seen = Executors(wanted)
        self.answers = True
        self.nodes: list[pb.Node] = []
        self.executors: list[pb.Executor] = []
        self.lost = 0
        self._asked_at = self._told_at = self._alive_at = 0.0
        self._taken_at = -math.inf
        self._said_share = ""
        # The ids of executors that have worked for the run and were not lost.
        self._ours: frozenset[str] = frozenset()
        # When those that are gone were seen first.
        self._gone_at: dict[str, float] = {}
        self._telling = False

    @property
    def listener(self) -> Listener | None:
        """Is told; None: nobody is, until there is one."""
        return self._listener

    @listener.setter
    def listener(self, listener: Listener | None) -> None:
        self._listener = listener
        if unsaid := self._unsaid:
            self._unsaid = ""
            self.say(unsaid)

    @property
    def alive(self) -> int:
        """The number of executors that were bound to the session, or being bound, as seen last."""
        return self.seen.alive

    @property
    def words(self) -> str:
        """What Flame said last, for a person."""
        return str(self.seen) if self.answers else "its session manager does not answer"

    @property
    def hint(self) -> str:
        return self.seen.hint if self.answers else HINT

    def ask(self, session: str, pause: float = ASK_SECONDS) -> bool:
        """Ask what the executors do, unless that was asked less than `pause` seconds ago; returns
        whether Flame has answered just now. Takes at most twice `CALL_SECONDS`."""
        now = time.monotonic()
        if now - self._asked_at < pause:
            return False
        self._asked_at = now
        try:
            self.nodes = client.list_nodes()
            self.executors = client.list_executors()
        except FlameError:
            self.answers = False
            return False
        self.answers = True
        before, self.seen = self.seen, count(self.executors, self.nodes, session, self.wanted)
        if self.seen.alive:
            self._alive_at = now
        if self.seen.taken:
            self._taken_at = now
        self._notice_nodes(set(self.seen.nodes_away) - set(before.nodes_away), session)
        self._notice_losses(now)
        self._notice_share(before.share)
        return True

    def _notice_nodes(self, nodes: set[str], session: str) -> None:
        """Say which nodes have gone away."""
        ours = [e for e in self.executors if e.status.session_id == session]
        self.lost = sum(executor.spec.node in nodes for executor in ours)
        if nodes:
            what = "Node" if len(nodes) == 1 else "Nodes"
            names = ", ".join(sorted(nodes))
            self.say(f"{what} {names}: no connection to the cluster. The run goes on without")

    def _notice_losses(self, now: float) -> None:
        """Say which executors that worked for the run do so no more."""
        known = {executor.metadata.id for executor in self.executors}
        self._ours = (self._ours | self.seen.working) & known
        # A healthy one, or its node, is back soon.
        gone = self.seen.gone & self._ours
        self._gone_at = {each: self._gone_at.get(each, now) for each in gone}
        lost = {each for each, since in self._gone_at.items() if now - since >= ASK_SECONDS}
        if lost:
            left = len(self._ours - self._gone_at.keys())
            what = "An executor was lost" if len(lost) == 1 else f"{len(lost)} executors were lost"
            self.say(
                f"{what}: {left} of {left + len(lost)} left. "
                "docs/cluster.md says how to get one back"
            )
        self._ours -= lost

    def _notice_share(self, before: str) -> None:
        """Say how many executors the run has beside others, once that is the same twice."""
        seen = self.seen
        settled = seen.share == before and seen.working and not seen.starting
        if settled and seen.share != self._said_share:
            self._said_share = seen.share
            self.say(seen.share or f"This run has {len(seen.working)} of {seen.wanted} executors")

    def silence(self, last_result: float) -> float:
        """Seconds without an executor that works for the run, and without a result: the last came,
        or the wait began, at `last_result` in monotonic seconds."""
        return time.monotonic() - max(last_result, self._alive_at)

    def limit(self, patience: float) -> float:
        """The seconds of silence after which the cluster is lost: `patience`, but as many as at the
        start of a run while other runs have the executors, and for `patience` after that, in which
        one of them may start for this run."""
        taken = time.monotonic() - self._taken_at < max(patience, 2 * ASK_SECONDS)
        return max(STARTUP_SECONDS, patience) if taken else patience

    def tell(self, seconds: float, limit: float, words: str = "") -> None:
        """Tell the listener once a second how long the silence is, which ends the run after `limit`
        seconds, and when it is over; `words` say why, by default what Flame said last."""
        now = time.monotonic()
        if seconds < QUIET_SECONDS:
            if self._telling:
                self.say("The cluster works again.")
                self.over()
        elif now - self._told_at >= 1.0:
            self._told_at = now
            self._telling = True
            self._wait(
                f"Waiting for the cluster for {seconds:.0f} s: {words or self.words}; giving up in "
                f"{max(0.0, limit - seconds):.0f} s. {self.hint}"
            )

    def over(self) -> None:
        """Nothing is waited for any more."""
        if self._telling:
            self._telling = False
            self._wait("")

    # A listener that fails ends no run.

    def say(self, text: str) -> None:
        if self._listener is None:
            self._unsaid = text  # the last, for whoever listens later
        else:
            with contextlib.suppress(Exception):
                self._listener.say(text)

    def _wait(self, text: str) -> None:
        if self._listener is not None:
            with contextlib.suppress(Exception):
                self._listener.waiting(text)


class Hosts:
    """What each executor runs, as it says with every answer, beside what this machine runs. Heard
    by the threads that fetch answers, asked by the one that collects."""

    def __init__(self) -> None:
        self._versions, self._processor = versions(), processor()
        self._heard: set[bytes] = set()
        # By their difference, the nodes of which nobody has been told yet.
        self._refused: dict[str, set[str]] = {}
        self._unequal: dict[str, set[str]] = {}
        self._python = ""

    def hear(self, about: bytes) -> None:
        """Note what an executor says of itself, JSON. Raises WireError if it is not readable."""
        if about in self._heard:
            return
        try:
            theirs = json.loads(about[:MOST_BYTES])
            node = theirs["node"]
            if not all(isinstance(value, str) for value in theirs.values()):
                raise TypeError("not text")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise WireError(f"about: what an executor says of itself: {error}") from error
        self._heard.add(about)
        if difference := _difference(self._versions, theirs):
            self._python = theirs.get("python", "X.Y")
            self._refused.setdefault(difference, set()).add(node)
        elif difference := _difference(self._processor, theirs):
            self._unequal.setdefault(difference, set()).add(node)

    def refuse_others(self) -> None:
        """Raise UsageError if executors run other versions."""
        for difference, nodes in list(self._refused.items()):
            raise UsageError(
                f"{_named(nodes, 'runs', 'run')} other versions than this machine: {difference}. "
                "The same seed would not give the same result; start with `uv run --python "
                f"{self._python} main.py …` if all nodes run that Python, take the node out of the "
                "cluster, or use --local"
            )

    def tell(self, say: Callable[[str], None]) -> None:
        """Say which nodes round in another way, once for each node."""
        unequal, self._unequal = self._unequal, {}
        for difference, nodes in unequal.items():
            say(
                f"{_named(nodes, 'has', 'have')} another processor than this machine: "
                f"{difference}. The same seed may give another result than on this machine alone"
            )


def _difference(ours: dict[str, str], theirs: dict[str, str]) -> str:
    return "; ".join(
        f"{name} {ours[name]} here, {theirs.get(name, 'unknown')} there"
        for name in ours
        if theirs.get(name) != ours[name]
    )


def _named(nodes: set[str], one: str, several: str) -> str:
    names = ", ".join(sorted(nodes))
    return f"Node {names} {one}" if len(nodes) == 1 else f"Nodes {names} {several}"
