"""What Flame says of its executors, and for how long none of them has worked."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import flamepy.core.client
from flamepy.core.types import FlameError
from flamepy.proto import types_pb2 as pb

from flame_rl.backends import Listener
from flame_rl.backends.flame.room import is_ready

# An executor installs the package's dependencies before its first task; with a cold cache of
# packages this takes as long as downloading MuJoCo does.
STARTUP_SECONDS = 300.0
# How often Flame is asked while episodes are awaited.
ASK_SECONDS = 5.0
# A silence of this length is told.
QUIET_SECONDS = 10.0
HINT = "docs/cluster.md says how to see which of its servers run, and what helps"
TAKEN_HINT = (
    "Other runs have those that work: this one has some when one of them ends or is stopped"
)

_WORDS = {
    pb.ExecutorVoid: "starting",
    pb.ExecutorBinding: "starting",
    pb.ExecutorIdle: "idle",
    pb.ExecutorBound: "bound to other sessions",
    pb.ExecutorUnbinding: "unbinding",
    pb.ExecutorReleasing: "ending",
    pb.ExecutorReleased: "ending",
}


@dataclass(frozen=True)
class Executors:
    """The executors of a cluster, as seen by one run.

    Attributes:
        wanted: how many the run can have.
        working: the ids of those that are bound to its session.
        starting: the number of those that are being bound to it.
        others: the number of other executors in each state, by its name.
        gone: the ids of executors that are unbinding, as one whose process died stays for ever, and
            of those on nodes without a connection to the session manager.
        nodes_away: the names of those nodes.
    """

    wanted: int
    working: frozenset[str]
    starting: int
    others: Counter[str]
    gone: frozenset[str]
    nodes_away: tuple[str, ...]

    @property
    def taken(self) -> bool:
        """Whether other runs have executors, and this one none."""
        return not self.alive and self.others[_WORDS[pb.ExecutorBound]] > 0

    @property
    def share(self) -> str:
        """How many the run has where other runs keep it from having more; "": none do."""
        theirs = self.others[_WORDS[pb.ExecutorBound]]
        if not theirs or len(self.working) >= self.wanted:
            return ""
        return (
            f"This run has {len(self.working)} of {self.wanted} executors, and other runs have "
            f"{theirs}: docs/cluster.md says how runs share a cluster"
        )

    @property
    def alive(self) -> int:
        """How many are bound to the run's session or being bound to it."""
        return len(self.working) + self.starting

    def __str__(self) -> str:
        details = [f"{count} {what}" for what, count in sorted(self.others.items())]
        details += [f"no sign of node {name}" for name in self.nodes_away]
        text = f"{len(self.working)} of {self.wanted} executors are working"
        return f"{text} ({', '.join(details)})" if details else text


def count(
    executors: Iterable[pb.Executor], nodes: Iterable[pb.Node], session: str, wanted: int
) -> Executors:
    """Count the executors of a cluster for the run that has this session."""
    nodes_away = sorted(n.metadata.name for n in nodes if not is_ready(n))
    executors = list(executors)
    near = [e for e in executors if e.spec.node not in nodes_away]
    ours = [e for e in near if e.status.session_id == session]
    bound = frozenset(e.metadata.id for e in ours if e.status.state == pb.ExecutorBound)
    others = Counter(_WORDS.get(e.status.state, "in an unknown state") for e in near)
    others[_WORDS[pb.ExecutorBound]] -= len(bound)
    return Executors(
        wanted=wanted,
        working=bound,
        starting=sum(e.status.state == pb.ExecutorBinding for e in ours),
        others=+others,
        gone=frozenset(
            e.metadata.id
            for e in executors
            if e.spec.node in nodes_away or e.status.state == pb.ExecutorUnbinding
        ),
        nodes_away=tuple(nodes_away),
    )


def _hint(seen: Executors) -> str:
    if seen.taken:
        return TAKEN_HINT
    if seen.nodes_away and not seen.alive:
        return (
            f"Start Flame's executor manager on {', '.join(seen.nodes_away)} again, under the same "
            "host name"
        )
    return HINT


class Watch:
    """Asks Flame for its executors while episodes are awaited, and tells a listener what is amiss.

    Attributes:
        listener: is told; None: nobody is, until there is one.
        wanted: the number of executors that the run can have; whoever knows it sets it.
        words: what Flame said last, for a person.
        hint: what that person may do about it.
        answers: whether it did answer.
        alive: the number of executors that were bound to the session then, or being bound.
        nodes, executors: all of the cluster, as Flame named them last.
        lost: the number of the session's executors on nodes that are away since the answer before.
    """

    def __init__(self, wanted: int) -> None:
        self._listener: Listener | None = None
        self._unsaid: list[str] = []
        self.wanted = wanted
        self.words = f"none of {wanted} executors has been seen"
        self.hint = HINT
        self.answers = True
        self.alive = 0
        self.nodes: list[pb.Node] = []
        self.executors: list[pb.Executor] = []
        self.lost = 0
        self._asked_at = self._told_at = self._alive_at = 0.0
        self._taken_at = -math.inf
        # As seen last, and as said last.
        self._share = self._said_share = ""
        self._nodes_away: frozenset[str] = frozenset()
        # The ids of executors that have worked for the run and were not lost.
        self._ours: frozenset[str] = frozenset()
        # When those that are gone were seen first.
        self._gone_at: dict[str, float] = {}
        self._telling = False

    @property
    def listener(self) -> Listener | None:
        return self._listener

    @listener.setter
    def listener(self, listener: Listener | None) -> None:
        self._listener = listener
        unsaid, self._unsaid = self._unsaid, []
        for text in unsaid:
            self.say(text)

    def ask(self, session: str, pause: float = ASK_SECONDS) -> bool:
        """Ask what the executors do, unless that was asked less than `pause` seconds ago; returns
        whether Flame has answered just now.

        Takes at most twice `CALL_SECONDS`.
        """
        now = time.monotonic()
        if now - self._asked_at < pause:
            return False
        self._asked_at = now
        try:
            self.nodes = flamepy.core.client.list_nodes()
            self.executors = flamepy.core.client.list_executors()
        except FlameError:
            self.answers = False
            self.words, self.hint = "its session manager does not answer", HINT
            return False
        self.answers = True
        seen = count(self.executors, self.nodes, session, self.wanted)
        self.words, self.hint = str(seen), _hint(seen)
        self.alive = seen.alive
        if seen.alive:
            self._alive_at = now
        if seen.taken:
            self._taken_at = now
        self._notice_nodes(frozenset(seen.nodes_away), session)
        self._notice_losses(seen, now)
        self._notice_share(seen)
        return True

    def _notice_nodes(self, away: frozenset[str], session: str) -> None:
        nodes = away - self._nodes_away
        self._nodes_away = away
        self.lost = sum(
            e.spec.node in nodes and e.status.session_id == session for e in self.executors
        )
        if nodes:
            what = "Node" if len(nodes) == 1 else "Nodes"
            self.say(
                f"{what} {', '.join(sorted(nodes))}: no connection to the cluster. The run goes on "
                "without"
            )

    def _notice_losses(self, seen: Executors, now: float) -> None:
        """Say which executors that worked for the run do so no more."""
        known = {executor.metadata.id for executor in self.executors}
        self._ours = (self._ours | seen.working) & known
        # A healthy one, or its node, is back soon.
        self._gone_at = {each: self._gone_at.get(each, now) for each in seen.gone & self._ours}
        lost = {each for each, since in self._gone_at.items() if now - since >= ASK_SECONDS}
        if lost:
            left = len(self._ours - self._gone_at.keys())
            what = "An executor was lost" if len(lost) == 1 else f"{len(lost)} executors were lost"
            self.say(
                f"{what}: {left} of {left + len(lost)} left. "
                "docs/cluster.md says how to get one back"
            )
        self._ours -= lost

    def _notice_share(self, seen: Executors) -> None:
        """Say how many executors the run has beside others, once that is the same twice."""
        settled = seen.share == self._share and seen.working and not seen.starting
        self._share = seen.share
        if settled and self._share != self._said_share:
            self._said_share = self._share
            self.say(self._share or f"This run has {len(seen.working)} of {seen.wanted} executors")

    def silence(self, last_result: float) -> float:
        """Seconds without a result and without an executor that works for the run.

        Args:
            last_result: when the last result came, or the wait began, in monotonic seconds.
        """
        return time.monotonic() - max(last_result, self._alive_at)

    def limit(self, patience: float) -> float:
        """After how many seconds of silence the cluster is lost: `patience`, but as many as at the
        start of a run while other runs have the executors, and for `patience` after that, in which
        one of them may start for this run."""
        taken = time.monotonic() - self._taken_at < max(patience, 2 * ASK_SECONDS)
        return max(STARTUP_SECONDS, patience) if taken else patience

    def tell(self, seconds: float, limit: float, words: str = "") -> None:
        """Tell the listener once a second how long the silence is, and when it is over.

        Args:
            seconds: how long it is.
            limit: after how many the run ends.
            words: why; by default what Flame said last of its executors.
        """
        now = time.monotonic()
        if seconds < QUIET_SECONDS:
            if self._telling:
                self.say("The cluster works again.")
                self.over()
        elif now - self._told_at >= 1.0:
            self._told_at = now
            self._telling = True
            self._waiting(
                f"Waiting for the cluster for {seconds:.0f} s: {words or self.words}; giving up in "
                f"{max(0.0, limit - seconds):.0f} s. {self.hint}"
            )

    def over(self) -> None:
        """Nothing is waited for any more."""
        if self._telling:
            self._telling = False
            self._waiting("")

    # A listener that fails ends no run.

    def say(self, text: str) -> None:
        if self._listener is None:
            self._unsaid = [text]  # the last, for whoever listens later
        else:
            with contextlib.suppress(Exception):
                self._listener.say(text)

    def _waiting(self, text: str) -> None:
        if self._listener is not None:
            with contextlib.suppress(Exception):
                self._listener.waiting(text)
