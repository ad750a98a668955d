"""What Flame says of its executors, and for how long none of them has worked."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import flamepy.core.client
from flamepy.core.types import FlameError
from flamepy.proto import types_pb2 as pb

from flame_rl.backends import Listener

# How often Flame is asked while episodes are awaited.
ASK_SECONDS = 5.0
# A silence of this length is told.
QUIET_SECONDS = 10.0
HINT = "`docker compose ps -a` shows which of its servers run"
TAKEN_HINT = "Another run has all of them: this one begins when that one ends or is stopped"

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
        working: how many are bound to its session.
        alive: whether one is bound to its session or being bound to it.
        others: the number of other executors in each state, by its name.
        gone: the ids of executors that are unbinding, as one whose process died stays for ever, and
            of those on nodes without a connection to the session manager.
        nodes_away: the names of those nodes.
    """

    wanted: int
    working: int
    alive: bool
    others: Counter[str]
    gone: frozenset[str]
    nodes_away: tuple[str, ...]

    @property
    def taken(self) -> bool:
        """Whether other runs have all executors."""
        return self.working == 0 and set(self.others) == {_WORDS[pb.ExecutorBound]}

    def __str__(self) -> str:
        details = [f"{count} {what}" for what, count in sorted(self.others.items())]
        details += [f"no sign of node {name}" for name in self.nodes_away]
        text = f"{self.working} of {self.wanted} executors are working"
        return f"{text} ({', '.join(details)})" if details else text


def count(
    executors: Iterable[pb.Executor], nodes: Iterable[pb.Node], session: str, wanted: int
) -> Executors:
    """Count the executors of a cluster for the run that has this session."""
    nodes_away = sorted(n.metadata.name for n in nodes if n.status.state != pb.NodeState.Ready)
    executors = list(executors)
    near = [e for e in executors if e.spec.node not in nodes_away]
    ours = [e.status.state for e in near if e.status.session_id == session]
    bound = ours.count(pb.ExecutorBound)
    others = Counter(_WORDS.get(e.status.state, "in an unknown state") for e in near)
    others[_WORDS[pb.ExecutorBound]] -= bound
    return Executors(
        wanted=wanted,
        working=bound,
        alive=bound > 0 or pb.ExecutorBinding in ours,
        others=+others,
        gone=frozenset(
            e.metadata.id
            for e in executors
            if e.spec.node in nodes_away or e.status.state == pb.ExecutorUnbinding
        ),
        nodes_away=tuple(nodes_away),
    )


class Watch:
    """Asks Flame for its executors while episodes are awaited, and tells a listener what is amiss.

    Attributes:
        listener: is told; None: nobody is.
        words: what Flame said last, for a person.
        hint: what that person may do about it.
        answers: whether it did answer.
        working: the number of executors that worked for the session then.
    """

    def __init__(self, wanted: int) -> None:
        """`wanted` is the number of executors that the run can have."""
        self.listener: Listener | None = None
        self.words = f"none of {wanted} executors has been seen"
        self.hint = HINT
        self.answers = True
        self.working = 0
        self._wanted = wanted
        self._asked_at = self._told_at = self._alive_at = 0.0
        self._gone: frozenset[str] = frozenset()
        self._lost: frozenset[str] = frozenset()
        self._telling = False

    def ask(self, session: str) -> None:
        """Ask what the executors do, unless that was asked less than `ASK_SECONDS` ago.

        Takes at most twice `CALL_SECONDS`.
        """
        now = time.monotonic()
        if now - self._asked_at < ASK_SECONDS:
            return
        self._asked_at = now
        try:
            nodes = flamepy.core.client.list_nodes()
            executors = flamepy.core.client.list_executors()
        except FlameError:
            self.answers = False
            self.words, self.hint = "its session manager does not answer", HINT
            return
        self.answers = True
        seen = count(executors, nodes, session, self._wanted)
        self.words, self.hint = str(seen), TAKEN_HINT if seen.taken else HINT
        self.working = seen.working
        if seen.alive:
            self._alive_at = now
        # A healthy one, or its node, is back the next time.
        lost = seen.gone & self._gone
        self._gone = seen.gone
        if new := len(lost - self._lost):
            left = max(0, self._wanted - len(lost))
            what = "An executor was lost" if new == 1 else f"{new} executors were lost"
            self.say(
                f"{what}: {left} of {self._wanted} left. docs/cluster.md says how to get one back"
            )
        self._lost |= lost

    def silence(self, last_result: float) -> float:
        """Seconds without a result and without an executor that works for the run.

        Args:
            last_result: when the last result came, or the wait began, in monotonic seconds.
        """
        return time.monotonic() - max(last_result, self._alive_at)

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
        if self.listener is not None:
            with contextlib.suppress(Exception):
                self.listener.say(text)

    def _waiting(self, text: str) -> None:
        if self.listener is not None:
            with contextlib.suppress(Exception):
                self.listener.waiting(text)
