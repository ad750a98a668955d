"""What Flame says of its executors, for how long none of them has worked, and what they run."""

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from flamepy.core import client
from flamepy.core.types import FlameError
from flamepy.proto import types_pb2 as pb

from flame_rl.actor.remote import processor, versions
from flame_rl.backends.dispatch import Listener, tell
from flame_rl.backends.flame.compat import is_ready
from flame_rl.system.errors import UsageError
from flame_rl.wire.fields import WireError, value_from_data

# An executor installs the package's dependencies before its first task; with a cold cache of
# packages this takes as long as downloading MuJoCo does.
STARTUP_SECONDS = 300.0
# How often Flame is asked while episodes are awaited.
ASK_SECONDS = 5.0
# A silence of this length is told.
QUIET_SECONDS = 10.0
# An executor unbinds in a few seconds if its process lives, and otherwise for ever.
STUCK_SECONDS = 10.0
# Far above what an executor says of itself.
MOST_BYTES = 4096
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


@dataclass(frozen=True)
class Executors:
    """The executors of a cluster, as seen by one run that can have `wanted` of them.

    Attributes:
        working, starting: the numbers of those that are bound to its session, and being bound.
        others: the number of other executors in each state, by its name.
        nodes_away: the names of nodes without a connection to the session manager.
        nodes_stuck: the names of all nodes, where each has executors and all of them unbind.
        answers: whether Flame answers; where it does not, the rest is what it said last.
    """

    wanted: int
    working: int = 0
    starting: int = 0
    others: Counter[str] = field(default_factory=Counter)
    nodes_away: tuple[str, ...] = ()
    nodes_stuck: tuple[str, ...] = ()
    answers: bool = True

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
        if self.answers and self.taken:
            return "This run has some when one of the others ends or is stopped"
        if self.answers and self.nodes_away and not self.alive:
            names = ", ".join(self.nodes_away)
            return f"Start Flame's executor manager on {names} again, under the same host name"
        if self.answers and self.nodes_stuck:
            return (
                "Processes of executors were killed: stop Flame's executor manager on "
                f"{', '.join(self.nodes_stuck)}, and start it again after 30 seconds"
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
    nodes_away = sorted(n.metadata.name for n in nodes if not is_ready(n))
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
    """Asks Flame for its executors while episodes are awaited, and tells a listener what is amiss.

    Attributes:
        listener: is told.
        wanted: the number of executors that the run can have; whoever knows it sets it.
        seen: what is known of them.
        nodes, executors: all of the cluster, as Flame named them last.
    """

    def __init__(self, wanted: int) -> None:
        self.listener = Listener()
        self.wanted = wanted
        self.seen = Executors(wanted)
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
        before, seen = self.seen, count(self.executors, self.nodes, session, self.wanted)
        self.seen = seen
        if seen.alive:
            self._alive_at = now
        if seen.taken:
            self._taken_at = now
        if not (before.nodes_stuck and seen.nodes_stuck):
            self._moved_at = now
        # What keeps executors from the run is said once it is the same twice, as a healthy one is
        # back soon, and when nothing does any more.
        settled = seen.troubles == before.troubles and seen.working and not seen.starting
        known = seen.troubles or seen.working >= seen.wanted
        if settled and known and seen.troubles != self._said:
            self.say(f"{seen}. docs/cluster.md says what helps" if seen.troubles else f"{seen}.")
            self._said = seen.troubles
        return True

    def silence(self, last_result: float) -> float:
        """Seconds without an executor that works for the run, and without a result: the last came,
        or the wait began, at `last_result` in monotonic seconds."""
        return time.monotonic() - max(last_result, self._alive_at)

    @property
    def stuck(self) -> bool:
        """Whether no node can start an executor before somebody restarts its executor manager."""
        return bool(self.seen.nodes_stuck) and time.monotonic() - self._moved_at >= STUCK_SECONDS

    def limit(self, patience: float) -> float:
        """The seconds of silence after which the cluster is lost: `patience`, but as many as at the
        start of a run while other runs have the executors, and for `patience` after that, in which
        one of them may start for this run."""
        taken = time.monotonic() - self._taken_at < max(patience, 2 * ASK_SECONDS)
        return max(STARTUP_SECONDS, patience) if taken else patience

    def tell(self, seconds: float, limit: float) -> None:
        """Tell the listener once a second how long the silence is, which ends the run after `limit`
        seconds, and when it is over."""
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
        """Nothing is waited for any more."""
        if self._telling:
            self._telling = False
            tell(self.listener.waiting, "")

    def say(self, text: str) -> None:
        tell(self.listener.say, text)


class Answers:
    """What is known of all answers of a run, and what their executors run, as they say with each,
    beside what this machine runs. Heard by the threads that fetch answers, asked by the one that
    collects. `last_result`: when the last episodes came, in monotonic seconds. `dropped`: the
    number of answers that came when nobody waited for them any more."""

    def __init__(self) -> None:
        self.last_result, self.dropped = 0.0, 0
        self._versions, self._processor = versions(), processor()
        self._heard: dict[bytes, dict[str, str]] = {}
        self._told: set[str] = set()

    def hear(self, about: bytes) -> None:
        """Note what an executor says of itself, JSON. Raises WireError if it is not readable."""
        if about in self._heard:
            return
        try:
            theirs = json.loads(about[:MOST_BYTES])
            theirs = value_from_data(dict[str, str], {"node": None} | theirs, "about")
        except (ValueError, TypeError) as error:
            raise WireError(f"about: what an executor says of itself: {error}") from error
        self._heard[about] = theirs

    def _others(self, ours: dict[str, str]) -> dict[str, set[str]]:
        """The nodes whose executors differ from this machine, by how."""
        found = defaultdict(set)
        for theirs in list(self._heard.values()):
            differing = [name for name in ours if theirs.get(name) != ours[name]]
            if differing:
                texts = (f"{n} {ours[n]} here, {theirs.get(n, 'unknown')} there" for n in differing)
                found["; ".join(texts)].add(theirs["node"])
        return found

    def refuse_others(self) -> None:
        """Raise UsageError if executors run other versions."""
        for difference, nodes in self._others(self._versions).items():
            raise UsageError(
                f"Other versions than on this machine run on {_named(nodes)}: {difference}. The "
                "same seed would not give the same result; start with `uv run --python X.Y "
                "main.py …`, take the node out of the cluster, or use --local"
            )

    def tell(self, say: Callable[[str], None]) -> None:
        """Say which nodes round in another way, once for each node."""
        for difference, nodes in self._others(self._processor).items():
            if new := nodes - self._told:
                self._told |= new
                say(
                    f"Another processor than on this machine is on {_named(new)}: {difference}. "
                    "The same seed may give another result than on this machine alone"
                )


def _named(nodes: set[str]) -> str:
    return f"node{'s' * (len(nodes) > 1)} {', '.join(sorted(nodes))}"
