"""The backend: collects episodes, replaces a failing session, gives up on a lost cluster."""

import contextlib
import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import replace

import grpc
from flamepy.core import client
from flamepy.core.types import FlameError

from flame_rl.actor.worker.supervisor import SupervisedWorker
from flame_rl.backends import dispatch
from flame_rl.backends.flame import cluster, compat
from flame_rl.backends.flame.cleanup import JANITOR_SECONDS, Janitor
from flame_rl.backends.flame.package import deploy
from flame_rl.backends.flame.session import Answers, Session
from flame_rl.backends.tasks import Deadlines, TaskSizes
from flame_rl.settings.config import Execution
from flame_rl.system.errors import Interrupted, RunError, UsageError, warn
from flame_rl.system.signals import unless_stopped
from flame_rl.wire import codec, messages
from flame_rl.wire.messages import CollectRequest, PolicySnapshot
from flame_rl.wire.packing import Buffer

# Failed tasks after which a session is replaced: an executor whose process died fails every one.
FAILURES_OF_A_SESSION = 3
_UNUSABLE = (
    "This happened on an executor, which has of your files only the module that --env names; "
    "docs/cluster.md says how to send more"
)


class FlameBackend:
    """One application on the cluster, from construction to `close`, and one session at a time: one
    whose tasks fail on the way (its executor's process died, the session manager was restarted) is
    left for a new one. Executors come and go with their nodes, from one iteration to the next."""

    def __init__(
        self,
        environment: messages.Environment,
        settings: Execution,
        deadlines: Deadlines,
        stop: threading.Event,
    ) -> None:
        """Connect, ship the package with the environment's modules, and open a session. `stop` is
        set when the user asks to stop. Raises UsageError if no cluster answers, or the
        environment's module cannot be shipped, RunError if Flame opens no session."""
        self.listener = dispatch.Listener()
        self._environment, self._settings = environment, settings
        self._deadlines, self._stop = deadlines, stop
        self._closed = False
        self._answers = Answers()
        logging.getLogger("flamepy").addHandler(logging.NullHandler())
        self._context = cluster.connect(stop)
        self._capacity = cluster.capacity_of(client.list_nodes(), settings)
        self._sizes = TaskSizes(self.executors, settings.workers_per_executor)
        self._monitor = cluster.ExecutorMonitor(self.executors)
        self._unheeded = False  # whether `_follow_nodes` has yet to heed what Flame said last
        self._failing: frozenset[str] = frozenset()  # nodes that cannot start executors
        self._shared = True  # whether the application may be other runs', too
        self._restarted = False
        self._reopened_for = 0  # the number of executors that a session was last replaced for
        self._left_sessions: list[Session] = []
        self._janitor = Janitor()
        try:
            self._deploy()
            self._open_session()
        except Exception as error:
            self._janitor.end(dismissed=self._janitor.clean_up())
            if isinstance(error, UsageError | RunError):
                raise
            raise RunError(f"Flame did not open a session: {error}") from error

    @property
    def executors(self) -> int:
        """The number of executors that the run can have now."""
        return self._capacity.executors

    def describe(self, environment: messages.Environment) -> messages.EnvironmentSpec:
        """Read the spaces in a process on this machine, where an error shows soonest."""
        with contextlib.closing(SupervisedWorker(warn)) as worker:
            deadline = self._deadlines.limits().deadline
            return dispatch.describe_by(worker, environment, deadline, self._stop)

    def collect(self, snapshot: PolicySnapshot, request: CollectRequest) -> dispatch.Collected:
        self._monitor.listener = self.listener
        # `stop` ends the wait even while Flame does not answer.
        try:
            return unless_stopped(self._stop, lambda: self._collect(snapshot, request))
        finally:
            self._monitor.over()

    def _collect(self, snapshot: PolicySnapshot, request: CollectRequest) -> dispatch.Collected:
        self._encoded = codec.encode_snapshot(snapshot)
        self._most_episodes = 1
        try:
            self._began = time.monotonic()
            self._follow_nodes()
            compat.watch_tasks(self._capacity.in_flight)
            self._publish()
            self._began = time.monotonic()  # however long the weights took, they came
            tasks = self._submit, self._capacity.in_flight, self._check, self._transport_failed
            transport = dispatch.Transport(*tasks, unusable=_UNUSABLE)
            collected = dispatch.gather(request, transport, self._sizes, self._stop, self.listener)
        finally:
            self._bypass.close()
        self._answers.tell(self._monitor.say)
        dropped, self._answers.dropped = self._answers.dropped, 0
        bytes_out = collected.bytes_out + len(self._encoded)
        return replace(collected, bytes_out=bytes_out, dropped=dropped)

    def _submit(self, data: bytes, episodes: int) -> Future[Buffer]:
        self._most_episodes = max(self._most_episodes, episodes)
        return self._session.collect(data, episodes, self._deadlines)

    def close(self) -> None:
        """Leave nothing on the cluster but an application that other runs use."""
        if self._closed:
            return
        self._closed = True
        if not (clean := self._janitor.clean_up()):
            compat.disconnect()
            warn(
                f"Flame still runs tasks of {self._application.name}, or does not answer; a "
                f"process in the background goes on trying for {JANITOR_SECONDS:.0f} s to remove it"
            )
        # Where `collect` was abandoned it may have been sending weights.
        self._janitor.end(dismissed=clean and not self._stop.is_set())

    # Application and session

    def _deploy(self) -> None:
        install = self._settings.executor_packages == "install"
        self._application = deploy(self._environment, self._janitor, install, self._shared)
        self._bypass = compat.Bypass(self._application.name, self._janitor.remember)

    def _open_session(self) -> None:
        # Another run removes it with its own end, while this one has no session of it.
        if client.get_application(self._application.name) is None:
            self._deploy()
        self._session = Session(self._application, self._capacity, self._janitor, self._answers)

    def _reopen(self, reason: str) -> None:
        self._leave_session()
        self._give_up_if_lost(reason)
        self._publish()

    def _publish(self) -> None:
        """Publish the weights, in a new session if need be, while the cluster may come back."""
        while True:
            try:
                if self._session.left:
                    self._open_session()
                return self._session.publish(self._encoded)
            except RunError:
                raise
            except Exception as error:
                reason = str(error)
                if not self._session.left:
                    reason = f"the weights could not be published: {error}"
                    if isinstance(error, TimeoutError):  # another session would have the same cache
                        self._monitor.say(f"{error}. They are sent again")
                    else:
                        self._leave_session()
            self._give_up_if_lost(reason)
            if self._stop.wait(1.0):
                raise Interrupted

    def _leave_session(self) -> None:
        if not self._session.left:
            self._session.abandon()
            self._left_sessions.append(self._session)

    # Nodes and executors

    def _look(self) -> bool:
        """Ask Flame every few seconds what nodes and executors do, and bypass nodes that are away.
        Returns whether it has answered now."""
        monitor = self._monitor
        if not monitor.ask(self._session.id):
            return False
        self._unheeded = True
        if monitor.seen.alive >= monitor.wanted:
            self._bypass.close()
        elif not all(map(compat.is_ready, monitor.nodes)):
            with contextlib.suppress(FlameError, grpc.RpcError):
                self._bypass.follow(monitor.nodes, monitor.executors, self._session.id)
        return True

    def _follow_nodes(self) -> None:
        """Have as many executors as the nodes of now have room for."""
        self._look()  # mostly it was asked while the episodes of the last iteration were awaited
        if not self._unheeded:
            return
        self._unheeded = False
        alive = self._monitor.seen.alive
        given_up = alive < self.executors and self._gave_up()
        nodes = [node for node in self._monitor.nodes if node.metadata.name not in self._failing]
        self._capacity = cluster.capacity_of(nodes, self._settings, self._capacity.claim)
        self._monitor.wanted = self._sizes.workers = self.executors
        # Flame starts no executors for a session that it has given up; another may have them.
        if given_up and alive < self.executors != self._reopened_for:
            self._reopened_for = self.executors
            self._leave_session()

    def _gave_up(self) -> bool:
        """Whether Flame has given up starting executors for the session. Says which nodes fail."""
        try:
            events = self._session.events()
        except FlameError:
            return False
        if all(event.code != compat.GAVE_UP for event in events):
            return False
        reasons = compat.failed_nodes(events)
        for node in sorted(reasons.keys() - self._failing):
            reason = reasons[node].partition("\n")[0][:120]
            self._monitor.say(f"Node {node} cannot start executors: {reason}")
        self._failing |= reasons.keys()
        return True

    def _restart(self) -> None:
        """Open another session for one without executors that Flame has given up. Where no other
        node can start any, or a new session had none either, it is one of an application under
        another name: a node tries to install each only once. Raises RunError if none will start."""
        report = self._session.report()
        ready = {node.metadata.name for node in self._monitor.nodes if compat.is_ready(node)}
        # Where others could start before, it is not the package that keeps them from it.
        if not self._started and not self._shared and ready <= self._failing:
            needed = ", ".join(self._application.dependencies) or "what their image must hold"
            raise RunError(
                f"the cluster's executors cannot start. {report}. The package asks for {needed}: "
                "these must be available to the executors, for their Python (docs/cluster.md)"
            )
        if self._shared and not self._started and (self._restarted or ready <= self._failing):
            self._leave_session()
            self._bypass.close()
            self._shared, self._failing = False, frozenset()
            self._deploy()
        self._restarted = True
        self._reopen(report)

    # While episodes are awaited

    @property
    def _started(self) -> bool:
        """Whether any executor has ever given a result."""
        return self._answers.last_result > 0

    def _check(self) -> None:
        """Called while waiting, before answers are read."""
        self._answers.refuse_others()
        if self._look():
            left = self._left_sessions
            self._left_sessions = [s for s in left if not compat.close_session(s.id)]
            # Executors that are bound already work on, whatever Flame has given up.
            if self._monitor.seen.alive == 0 and self._gave_up():
                self._restart()
        self._give_up_if_lost("tasks are sent and none comes back")

    def _transport_failed(self, failure: messages.CollectFailure) -> None:
        if failure.kind == "transport" and self._session.failures >= FAILURES_OF_A_SESSION:
            self._reopen(failure.message)
        else:
            self._give_up_if_lost(failure.message)
            self._stop.wait(dispatch.STOP_POLL_SECONDS)

    def _give_up_if_lost(self, reason: str) -> None:
        """Tell of a silence. Raises RunError, with the reason, if it lasts for too long."""
        monitor = self._monitor
        last_result = max(self._began, self._answers.last_result)
        waited = silence = time.monotonic() - last_result
        limit = max(cluster.STARTUP_SECONDS, self._settings.cluster_patience)
        if not self._started and monitor.stuck:
            limit = 0.0
        elif self._started:
            silence = monitor.silence(last_result)
            # Other runs may have the executors after a long update: then the cluster is not lost.
            limit = monitor.limit(self._settings.cluster_patience)
        monitor.tell(silence, limit)
        # An executor may be stuck though Flame calls it bound. It enforces the deadline of its
        # task, so a longer wait for a result is the cluster's fault, too.
        deadline = self._deadlines.limits(self._most_episodes).deadline
        if silence < limit and waited < limit + deadline:
            return
        try:
            cluster.check_servers(self._context)
        except UsageError as error:
            raise RunError(
                f"the cluster is lost: {reason}. {error}. {monitor.seen.hint}. Go on with --resume"
            ) from error
        seen = f"{monitor.seen}. {self._session.report()}. {monitor.seen.hint}"
        if not self._started:
            raise RunError(
                f"no executor of the cluster became ready within {waited:.0f} s: {reason}; {seen}"
                + ("; a greater --cluster-patience waits longer" if limit else "")
            )
        raise RunError(
            f"the cluster has given no result for {waited:.0f} s, though it answers: {reason}; "
            f"{seen}. An executor manager may be stuck: docs/cluster.md says how to restart it; "
            "then go on with --resume"
        )
