"""The backend: collects episodes, replaces a failing session, gives up on a lost cluster."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import replace

import flamepy.core.client
import grpc
from flamepy.core.types import FlameError

from flame_rl.actor.remote import versions
from flame_rl.actor.worker.supervisor import Worker
from flame_rl.backends import Listener
from flame_rl.backends.dispatch import (
    STOP_POLL_SECONDS,
    Collected,
    Transport,
    describe_by,
    gather,
)
from flame_rl.backends.flame.bypass import Bypass
from flame_rl.backends.flame.cleanup import JANITOR_SECONDS, Janitor
from flame_rl.backends.flame.cluster import check_answers, connect, deploy, watch_at_once
from flame_rl.backends.flame.executors import ASK_SECONDS, STARTUP_SECONDS, Watch
from flame_rl.backends.flame.room import Wish, is_ready, room_among
from flame_rl.backends.flame.session import Session, Tally
from flame_rl.backends.package import needs
from flame_rl.backends.patience import Patience
from flame_rl.backends.shares import Shares
from flame_rl.system.errors import Interrupted, RunError, UsageError
from flame_rl.system.output import warn
from flame_rl.system.signals import call_with_timeout, unless_stopped
from flame_rl.wire import codec
from flame_rl.wire.messages import (
    CollectFailure,
    CollectRequest,
    Environment,
    EnvironmentSpec,
    PolicySnapshot,
)

# How long `close` tries to remove everything before it leaves that to the janitor.
DRAIN_SECONDS = 3.5
# How often the cluster is checked while episodes are awaited.
CHECK_SECONDS = 2.0
# Failed tasks after which a session is replaced. An executor whose process died fails every task at
# once; one failure may have any cause.
FAILURES_OF_A_SESSION = 3
# "Session retry limit reached": Flame will not try to start another executor.
GAVE_UP_EVENT = 1002
# Sessions of a run's start that Flame may give up because of nodes that cannot start executors.
MOST_GIVEN_UP = 3


class FlameBackend:
    """One application on the cluster, from construction to `close`, and one session at a time.

    A session whose tasks fail on the way (its executor's process died, the session manager was
    restarted) is left for a new one, and its missing episodes are asked for again. Executors come
    and go with their nodes, from one iteration to the next.

    Attributes:
        shares: decides how many episodes each task has.
    """

    def __init__(
        self,
        environment: Environment,
        patience: Patience,
        silence: float,
        stop: threading.Event,
        wish: Wish,
        install: bool = True,
    ) -> None:
        """Connect, ship the package and open a session.

        Args:
            environment: its modules are shipped.
            patience: how long a task may take.
            silence: seconds without a sign of life after which the cluster is given up.
            stop: set when the user asks to stop.
            wish: how many of the cluster's executors to use, and of which size.
            install: whether their nodes install what the package depends on.

        Raises:
            UsageError: no cluster answers, or the environment's module cannot be shipped.
        """
        self._patience = patience
        self._wish = wish
        self._install = install
        self._silence = silence
        self._stop = stop
        self._checked_at = 0.0
        self._tally = Tally()
        logging.getLogger("flamepy").addHandler(logging.NullHandler())
        self._context, self._room = connect(stop, wish)
        self.shares = Shares(self._room.executors, wish.workers)
        self._watch = Watch(self._room.executors)
        # Nodes that cannot start executors.
        self._failing: frozenset[str] = frozenset()
        self._reopened_for = 0
        self._open(environment)

    @property
    def executors(self) -> int:
        """The number of executors that the run can have now."""
        return self._room.executors

    @property
    def listener(self) -> Listener | None:
        """See `Backend`."""
        return self._watch.listener

    @listener.setter
    def listener(self, listener: Listener | None) -> None:
        self._watch.listener = listener

    def describe(self, environment: Environment) -> EnvironmentSpec:
        """Read the spaces in a process on this machine, where an error shows soonest."""
        worker = Worker(warn)
        try:
            deadline = self._patience.limits().deadline
            spec = describe_by(worker, environment, deadline, self._stop)
        finally:
            worker.close()
        found = replace(environment, env_id=spec.env_id)
        if needs(found) != self._needs:
            # The constructor was given a short name, or one without the module that has it.
            self.close()
            self._open(found)
        return spec

    def _open(self, environment: Environment) -> None:
        self._environment, self._needs = environment, needs(environment)
        self._left_sessions: list[Session] = []
        self._janitor = Janitor()
        self._tally.caches.clear()  # of which this janitor has not been told
        self._deploy()
        try:
            self._session = self._open_session()
            # Asked at once, so that executors start while the learner imports torch.
            self._first_answer: Future[memoryview] | None = self._session.about()
        except Exception as error:
            self._janitor.clean_up(DRAIN_SECONDS)
            raise RunError(f"Flame did not open a session: {error}") from error
        self._closed = False
        self._look()

    def _deploy(self, shared: bool = True) -> None:
        self._shared = shared
        self._runner, self._dependencies = deploy(
            self._environment, self._janitor, self._install, shared
        )
        self._bypass = Bypass(self._runner._name, self._janitor)

    def _open_session(self) -> Session:
        try:
            return Session(self._runner, self._room, self._janitor, self._tally)
        except FlameError:
            if flamepy.core.client.get_application(self._runner._name) is not None:
                raise
        # Another run has removed it with its own end, while this one had no session of it.
        self._deploy(self._shared)
        return Session(self._runner, self._room, self._janitor, self._tally)

    def collect(self, snapshot: PolicySnapshot, request: CollectRequest) -> Collected:
        # `stop` ends the wait even while Flame does not answer.
        try:
            return unless_stopped(self._stop, lambda: self._collect(snapshot, request))
        finally:
            self._watch.over()

    def _collect(self, snapshot: PolicySnapshot, request: CollectRequest) -> Collected:
        try:
            return self._collect_with_executors(snapshot, request)
        finally:
            self._bypass.close()

    def _collect_with_executors(
        self, snapshot: PolicySnapshot, request: CollectRequest
    ) -> Collected:
        if self._first_answer is not None:
            self._await_executor(self._first_answer)
            self._first_answer = None
            self._watch.over()
        self._encoded = codec.encode_snapshot(snapshot)
        self._began = time.monotonic()
        self._follow_nodes()
        self._most_episodes = max(self.shares.of(len(request.indices)))
        try:
            self._session.publish(self._encoded)
        except Exception as error:
            self._reopen(f"the weights could not be published: {error}")
        transport = Transport(
            # The session of that moment, which changes.
            lambda data, episodes: self._session.collect(data, episodes, self._patience),
            self._room.in_flight,
            self._check,
            self._transport_failed,
            unusable="This happened on an executor, which has of your files only the module that "
            "--env names; docs/cluster.md says how to send more",
        )
        collected = gather(snapshot, request, transport, self.shares, self._stop, self.listener)
        self._tally.hosts.tell(self._watch.say)
        dropped, self._tally.dropped = self._tally.dropped, 0
        return replace(
            collected, bytes_out=collected.bytes_out + len(self._encoded), dropped=dropped
        )

    def close(self) -> None:
        """Close the sessions, delete their objects, and unregister the application if no other run
        uses it."""
        if self._closed:
            return
        self._closed = True
        clean = False
        with contextlib.suppress(TimeoutError):
            clean = call_with_timeout(DRAIN_SECONDS, lambda: self._janitor.clean_up(DRAIN_SECONDS))
        if clean:
            if self._stop.is_set():
                # `collect` was abandoned, and may have been sending weights.
                self._janitor.look_again()
            else:
                self._janitor.dismiss()
            return
        # Otherwise the threads that watch tasks would keep this process alive.
        flamepy.core.client.ConnectionInstance.instance()._channel.close()
        warn(
            f"Flame still runs tasks of application {self._runner._name}, or does not answer; a "
            f"process in the background goes on trying for {JANITOR_SECONDS:.0f} s to remove it"
        )

    def _look(self, pause: float = ASK_SECONDS) -> bool:
        """See what nodes and executors do, unless that was seen less than `pause` seconds ago, and
        react to it; returns whether it was seen now."""
        if self._bypass.open:
            pause = min(pause, CHECK_SECONDS)
        if not self._watch.ask(self._session.id, pause):
            return False
        if self._watch.lost:
            self._session.lose(self._watch.lost)
        if self._watch.alive >= self._watch.wanted:
            self._bypass.close()
        elif not all(map(is_ready, self._watch.nodes)):
            with contextlib.suppress(FlameError, grpc.RpcError):
                claim = self._session.claim()
                self._bypass.follow(self._watch.nodes, self._watch.executors, claim)
        return True

    def _follow_nodes(self) -> None:
        """Have as many executors as the nodes of now have room for."""
        if not self._look():
            return
        given_up = self._watch.alive < self._room.executors and self._gave_up()
        if given_up:
            self._notice_failing()
        nodes = [n for n in self._watch.nodes if n.metadata.name not in self._failing]
        room = room_among(nodes, self._wish, self._room.claim)
        if room != self._room:
            self._room = room
            self._watch.wanted = room.executors
            self.shares.among(room.executors)
            watch_at_once(room.in_flight)
        # Flame starts no executors for a session that it has given up; another may have them.
        if given_up and self._watch.alive < room.executors != self._reopened_for:
            self._reopened_for = room.executors
            self._reopen(self._session.events())

    def _await_executor(self, future: Future[memoryview]) -> None:
        """Wait until an executor has said what it runs: this machine's versions."""
        began, limit = time.monotonic(), max(STARTUP_SECONDS, self._silence)
        given_up = 0
        while not future.done():
            wait([future], timeout=STOP_POLL_SECONDS)
            if self._stop.is_set():
                raise Interrupted
            if self._is_time_to_check():
                self._look()
                if self._gave_up() and not self._others_start():
                    if self._shared:
                        # A node never again tries to install what it could not install once.
                        self._leave_session()
                        self._bypass.close()
                        self._deploy(shared=False)
                        self._failing = frozenset()
                    else:
                        given_up += 1
                        self._refuse_if_none_can_start(given_up)
                        self._leave_session()
                    self._session = self._open_session()
                    future = self._session.about()
            seconds = time.monotonic() - began
            self._watch.tell(seconds, limit)
            if seconds > limit:
                raise RunError(
                    f"no executor of the cluster became ready within {limit:.0f} s: "
                    f"{self._watch.words}. {self._session.events()}. {self._watch.hint}; "
                    "a greater --cluster-patience waits longer"
                )
        try:
            future.result()
        except Exception as error:
            raise RunError(
                f"the first task on the cluster failed: {error}. {self._session.events()}"
            ) from error
        self._tally.hosts.refuse_others()

    def _check(self) -> None:
        """Called while waiting, before answers are read: refuses executors of other versions,
        closes sessions that were left, gives up lost tasks, and a silent cluster."""
        self._tally.hosts.refuse_others()
        if self._is_time_to_check():
            self._look()
            # Each of these would wait for an answer, too.
            if self._watch.answers:
                self._left_sessions = [
                    s for s in self._left_sessions if not (s.close() and s.settled())
                ]
                # Executors that are bound already work on. Others could start before, so that it
                # is not the package that keeps them from starting now.
                if self._watch.alive == 0 and self._gave_up():
                    self._reopen(self._session.events())
        self._session.give_up_lost()
        self._give_up_if_lost("tasks are sent and none comes back")

    def _is_time_to_check(self) -> bool:
        """Whether `CHECK_SECONDS` have passed since this was last true."""
        now = time.monotonic()
        if now - self._checked_at < CHECK_SECONDS:
            return False
        self._checked_at = now
        return True

    def _others_start(self) -> bool:
        """Whether executors work or start though Flame has given up the session."""
        self._look(pause=0.0)
        self._notice_failing()
        return self._watch.alive > 0

    def _notice_failing(self) -> None:
        """Say which nodes cannot start executors, and why."""
        with contextlib.suppress(FlameError):
            reasons = self._session.failed_nodes()
            for node in sorted(reasons.keys() - self._failing):
                self._watch.say(f"Node {node} cannot start executors: {_first_line(reasons[node])}")
            self._failing |= reasons.keys()

    def _refuse_if_none_can_start(self, given_up: int) -> None:
        """Raises RunError if no node is left, or so many sessions were given up."""
        others = [
            n for n in self._watch.nodes if is_ready(n) and n.metadata.name not in self._failing
        ]
        if given_up >= MOST_GIVEN_UP or not others:
            if self._install:
                remedy = (
                    f"The package asks for {', '.join(self._dependencies)}: those versions must be "
                    "available to the executors, and exist for their Python; here it is "
                    f"{versions()['python']}"
                )
            else:
                remedy = (
                    "Their image must hold what --executor-packages install would install: see "
                    "docs/cluster.md"
                )
            raise RunError(
                f"the cluster's executors cannot start. {self._session.events()}. {remedy}"
            )

    def _gave_up(self) -> bool:
        """Whether Flame has given up starting further executors for the session."""
        with contextlib.suppress(FlameError):
            return GAVE_UP_EVENT in self._session.event_codes()
        return False

    def _transport_failed(self, failure: CollectFailure) -> None:
        if failure.kind == "transport" and self._session.failures >= FAILURES_OF_A_SESSION:
            self._reopen(failure.message)
        else:
            self._give_up_if_lost(failure.message)
            self._stop.wait(STOP_POLL_SECONDS)

    def _reopen(self, reason: str) -> None:
        """Leave the session for a new one; keep trying while the cluster may come back."""
        while True:
            if self._session not in self._left_sessions:
                self._leave_session()
            self._give_up_if_lost(reason, words=_first_line(reason))
            if self._stop.wait(STOP_POLL_SECONDS):
                raise Interrupted
            try:
                self._session = self._open_session()
                self._session.publish(self._encoded)
                return
            except Exception as error:
                reason = str(error)
                self._stop.wait(1.0)

    def _leave_session(self) -> None:
        self._session.abandon()
        self._left_sessions.append(self._session)

    def _give_up_if_lost(self, reason: str, words: str = "") -> None:
        """Tell of a silence; raises RunError if the cluster gave no sign of life for too long.

        Args:
            reason: why there is no result, for the error.
            words: the same in short; by default what Flame said last of its executors.
        """
        last_result = max(self._began, self._tally.last_result)
        silence = self._watch.silence(last_result)
        # Other runs may have the executors after a long update: then the cluster is not lost.
        limit = self._watch.limit(self._silence)
        self._watch.tell(silence, limit, words)
        # An executor may be stuck though Flame calls it bound. It enforces the deadline of its
        # task, so a longer wait for a result is the cluster's fault, too.
        waited = time.monotonic() - last_result
        deadline = self._patience.limits(self._most_episodes).deadline
        if silence < limit and waited < limit + deadline:
            return
        try:
            check_answers(self._context, self._session.put)
        except UsageError as error:
            raise RunError(
                f"the cluster is lost: {error}. {self._watch.hint}. Go on with --resume"
            ) from error
        raise RunError(
            f"the cluster has given no result for {waited:.0f} s, though it answers: {reason}; "
            f"{self._watch.words}. {self._session.events()}. {self._watch.hint}. "
            "An executor manager may be stuck: docs/cluster.md says how to restart it; then go on "
            "with --resume"
        )


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:120]
