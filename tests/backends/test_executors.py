"""Executors: how many a cluster has room for, what is said of them and when, what they run."""

import itertools
import json
from types import SimpleNamespace

import flamepy.core.client
import pytest
from flamepy.core.types import FlameError, FlameErrorCode, ResourceRequirement
from flamepy.proto import types_pb2 as pb

from flame_rl.actor.remote import processor, versions
from flame_rl.backends.flame import cluster as cluster_module
from flame_rl.backends.flame.cluster import Capacity, ExecutorMonitor, capacity_of, count
from flame_rl.backends.flame.compat import batch_past
from flame_rl.backends.flame.session import Answers
from flame_rl.settings.config import Execution
from flame_rl.system.errors import UsageError
from flame_rl.wire.packing import WireError


def resources(cpu: int, gigabytes: int) -> pb.ResourceRequirement:
    return pb.ResourceRequirement(cpu=cpu, memory=gigabytes << 30)


def executor(name: str, state: str, session: str | None = None, node: str = "near") -> pb.Executor:
    status = pb.ExecutorStatus(state=pb.ExecutorState.Value(f"Executor{state}"), session_id=session)
    spec = pb.ExecutorSpec(node=node, resreq=resources(1, 1))
    return pb.Executor(metadata=pb.Metadata(id=name, name=name), spec=spec, status=status)


def node(name: str, state: str = "Ready", cores: int = 2, gigabytes: int = 8) -> pb.Node:
    room = resources(cores, gigabytes)
    status = pb.NodeStatus(state=pb.NodeState.Value(state), allocatable=room)
    return pb.Node(metadata=pb.Metadata(id=name, name=name), status=status)


OURS, THEIRS = executor("a", "Bound", "ours"), executor("b", "Bound", "theirs")
DEAD, FAR = executor("a", "Unbinding"), executor("a", "Bound", "ours", "far")


@pytest.mark.parametrize(
    ("seen", "details", "working", "alive"),
    [
        ([], "", 0, 0),
        ([OURS, executor("b", "Bound", "ours")], "", 2, 2),
        ([executor("a", "Binding", "ours"), executor("b", "Void")], "2 starting", 0, 1),
        ([DEAD, executor("b", "Unbinding", "ours")], "2 unbinding", 0, 0),
        ([OURS, THEIRS], "1 bound to other sessions", 1, 1),
        ([FAR, executor("b", "Idle")], "1 idle, no sign of node far", 0, 0),
        ([executor("a", "Unknown")], "1 in an unknown state", 0, 0),
    ],
)
def test_executors_are_counted_for_a_run(seen, details, working, alive):
    nodes = [node("near"), *([node("far", "Unknown")] if "far" in details else [])]
    counted = count(seen, nodes, "ours", 2)
    details = f" ({details})" if details else ""
    assert str(counted) == f"{working} of 2 executors are working{details}"
    assert counted.alive == alive


class Cluster:
    """A cluster whose time and answers the test sets, its monitor, and what a listener hears."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = [node("near")]
        self.executors: list[pb.Executor] | None = []
        self.asked, self.now = 0, 1000.0
        self.lines: list[str] = []
        self.waits: list[str] = []
        self.monitor = ExecutorMonitor(2)
        self.monitor.listener = SimpleNamespace(say=self.lines.append, waiting=self.waits.append)
        monkeypatch.setattr(flamepy.core.client, "list_executors", self._list)
        monkeypatch.setattr(flamepy.core.client, "list_nodes", lambda: self.nodes)
        monkeypatch.setattr(cluster_module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def _list(self) -> list[pb.Executor]:
        self.asked += 1
        if self.executors is None:
            raise FlameError(FlameErrorCode.INTERNAL, "Deadline Exceeded")
        return self.executors

    def see(self, *seen: pb.Executor, times: int = 1) -> None:
        """Flame answers this; five seconds pass each time."""
        self.executors = list(seen)
        for _ in range(times):
            self.monitor.ask("ours")
            self.now += 5

    def wait(self, last_result: float, seconds: float) -> None:
        """Ask where it is time to, tell of the silence, and let time pass."""
        self.monitor.ask("ours")
        self.monitor.tell(self.monitor.silence(last_result), 120)
        self.now += seconds

    @property
    def said(self) -> list[str]:
        return [line.partition(".")[0] for line in self.lines]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


BOTH = [OURS, executor("b", "Bound", "ours")]


@pytest.mark.parametrize(
    ("seen", "lines"),
    [
        # One that leaves a session is not lost, one whose process died is.
        ([BOTH, [DEAD, BOTH[1]], [executor("a", "Idle"), BOTH[1]], [DEAD, BOTH[1]]], []),
        ([BOTH, *3 * [[DEAD, BOTH[1]]]], ["1 of 2 executors are working (1 unbinding)"]),
        # Other runs have one, for a moment, for a while, and no more.
        ([[OURS, THEIRS], [OURS, executor("b", "Idle")], [OURS, THEIRS], BOTH], []),
        (
            [*3 * [[OURS, THEIRS]], [OURS, executor("b", "Binding", "ours")], BOTH, BOTH, BOTH],
            [
                "1 of 2 executors are working (1 bound to other sessions)",
                "2 of 2 executors are working",
            ],
        ),
        # More than the run can have.
        (2 * [[*BOTH, executor("c", "Bound", "theirs")]], []),
        (3 * [[FAR, BOTH[1]]], ["1 of 2 executors are working (no sign of node far)"]),
        # None works: that is told as a silence.
        (3 * [[FAR, DEAD]], []),
    ],
)
def test_what_keeps_executors_from_a_run_is_said_once_it_is_settled(cluster, seen, lines):
    cluster.nodes.append(node("far", "Unknown" if FAR in seen[0] else "Ready"))
    for each in seen:
        cluster.see(*each)
    assert cluster.said == lines


def test_a_lost_node_is_named_with_the_remedy_where_none_is_left(cluster):
    cluster.nodes.append(node("far", "NotReady"))
    cluster.see()
    hint = "Start Flame's executor manager on far again, under the same host name"
    assert cluster.monitor.seen.hint == hint


def test_a_cluster_whose_executors_all_unbind_for_ever_is_stuck(cluster):
    others = executor("b", "Unbinding"), executor("c", "Idle", node="far")
    cluster.nodes.append(node("far"))
    for seen, stuck in (
        ((DEAD, *others), False),  # another node may start executors
        ((DEAD, others[0], executor("c", "Unbinding", node="far")), True),
        ((DEAD, others[0], executor("c", "Void", node="far")), False),
    ):
        cluster.see(*seen)
        assert not cluster.monitor.stuck
        cluster.see(*seen)
        assert cluster.monitor.stuck == stuck
        assert cluster.monitor.seen.nodes_stuck == (("far", "near") if stuck else ())
    cluster.nodes[1] = node("far", "NotReady")
    cluster.see(DEAD, others[0], times=3)
    assert cluster.monitor.stuck and cluster.monitor.seen.nodes_stuck == ("near",)


def test_an_executor_at_work_is_a_sign_of_life_however_long_its_task(cluster):
    last_result = cluster.now
    cluster.executors = [OURS]
    for _ in range(600):
        cluster.wait(last_result, 1)
    assert cluster.monitor.silence(last_result) <= 5
    assert cluster.waits == cluster.lines == []
    assert cluster.asked == 120  # every five seconds


def test_a_silence_is_told_within_fifteen_seconds_and_counted_down(cluster):
    last_result = cluster.now
    cluster.executors = [executor("a", "Unbinding"), executor("b", "Unbinding")]
    for tenth in range(150):
        if tenth == 120:
            cluster.executors = None
        cluster.wait(last_result, 0.1)
    assert cluster.waits[0] == (
        "Waiting for the cluster for 10 s: 0 of 2 executors are working (2 unbinding); giving up "
        "in 110 s. Processes of executors were killed: stop Flame's executor manager on near, and "
        "start it again after 30 seconds"
    )
    assert len(cluster.waits) == 5
    cluster.now += 1
    cluster.wait(last_result, 0)
    words = "16 s: its session manager does not answer; giving up in 104 s"
    assert words in cluster.waits[-1] and not cluster.monitor.seen.answers
    cluster.monitor.tell(0.0, 120)  # a result comes
    assert cluster.lines[-1] == "The cluster works." and cluster.waits[-1] == ""
    told = len(cluster.waits)
    cluster.monitor.over()
    cluster.monitor.tell(0.0, 120)
    assert len(cluster.waits) == told


def test_a_cluster_that_another_run_has_is_no_broken_one(cluster):
    # One that is dead stays so for ever.
    for seen, hint in (
        ([executor("a", "Bound", "theirs"), THEIRS], "This run has some when one of the others"),
        ([executor("a", "Unbinding"), THEIRS], "This run has some when one of the others"),
        ([DEAD, executor("b", "Unbinding")], "Processes of executors were killed: stop"),
        ([executor("a", "Idle"), DEAD], "docs/cluster.md says"),
    ):
        cluster.see(*seen)
        assert cluster.monitor.seen.hint.startswith(hint)
        cluster.monitor.tell(20.0, 300.0)
        assert cluster.waits[-1].endswith("giving up in 280 s. " + cluster.monitor.seen.hint)


@pytest.mark.parametrize("then", ["Unbinding", "Idle", "nothing", "no answer"])
def test_executors_that_another_run_gives_back_are_waited_for(cluster, then):
    monitor = cluster.monitor
    assert monitor.limit(120.0) == 120.0
    cluster.executors = [executor("a", "Bound", "theirs"), executor("dead", "Unbinding", "old")]
    monitor.ask("ours")
    assert monitor.limit(120.0) == 300.0 and monitor.limit(400.0) == 400.0
    answers = {"no answer": None, "nothing": []}
    cluster.executors = answers[then] if then in answers else [executor("a", then)]
    for seconds, limit in ((100, 300.0), (19, 300.0), (2, 120.0)):
        cluster.now += seconds
        monitor.ask("ours")
        assert monitor.limit(120.0) == limit


def test_executors_that_start_for_a_run_are_its_own(cluster):
    cluster.see(executor("a", "Binding", "ours"), THEIRS)
    assert cluster.monitor.limit(120.0) == 120.0


def test_a_listener_that_fails_ends_no_run(cluster):
    def fails(text: str) -> None:
        raise OSError("the terminal is gone")

    cluster.monitor.listener = SimpleNamespace(say=fails, waiting=fails)
    for seconds in itertools.chain(range(30), [0]):
        cluster.now += 1
        cluster.monitor.tell(seconds, 120)
    assert not cluster.monitor._telling


# Capacity


def capacity(nodes: list[pb.Node], executors: int | None = None, workers: int = 1) -> Capacity:
    return capacity_of(nodes, Execution(executors=executors, workers_per_executor=workers))


def test_only_nodes_that_are_ready_have_room():
    nodes = [node("a"), node("b", "NotReady", 64), node("c", "Unknown", 64), node("d", cores=3)]
    assert capacity(nodes) == Capacity(5)
    assert capacity(nodes[1:3]) == Capacity(1)
    # Half of the memory is for other runs, and none of it reaches from one node to the next.
    for number, megabytes in ((8, 1024), (64, 256), (1, 4096), (3, 2048)):
        claim = ResourceRequirement(cpu=0, memory=megabytes << 20)
        assert capacity(nodes, number).claim == claim
    # With tasks that wait Flame would start more.
    assert (capacity(nodes, 8).in_flight, capacity(nodes).in_flight) == (8, 10)
    with pytest.raises(UsageError, match="0 MB of the memory of 0 ready nodes"):
        capacity(nodes[1:3], 4)


def test_executors_with_processes_inside_have_as_many_cores():
    nodes = [node("a", cores=5), node("b", cores=4), node("c", cores=1)]
    claim = ResourceRequirement(cpu=2, memory=512 << 20)
    assert capacity(nodes, workers=2) == Capacity(4, claim)
    assert capacity(nodes, 3, workers=8).executors == 3
    with pytest.raises(UsageError, match=r"no node has 6 cores; at most 5.*--executors N"):
        capacity(nodes, workers=6)


@pytest.mark.parametrize(("nodes", "executors"), [(0, 1), (1, 8), (2, 10), (3, 10)])
def test_executors_asked_for_come_and_go_with_their_nodes(nodes, executors):
    """What each claims stays as the run began."""
    claim = capacity([node("a"), node("b")], 8).claim
    now = [node(str(i)) for i in range(nodes)]
    assert capacity_of(now, Execution(executors=10), claim) == Capacity(executors, claim, 10)


# Batches past nodes that are away


def test_no_batch_is_needed_where_no_node_is_away_or_no_other_has_room():
    ready, away = [node("a"), node("b")], [node("c", "NotReady")]
    full = [node("a"), node("c", "NotReady", 0)]
    for nodes in (ready, away, [node("a", cores=0), *away], full):
        assert batch_past(nodes, [], resources(1, 1)) == 0


@pytest.mark.parametrize("near", [1, 2, 3, 7])
@pytest.mark.parametrize("away", [1, 2, 5])
@pytest.mark.parametrize("claim", [resources(1, 1), resources(0, 1)], ids=["cores", "memory"])
def test_a_batch_has_an_executor_elsewhere(near, away, claim):
    # The other resource is plenty.
    nodes = [
        node(name, state, count if claim.cpu else 64, 64 if claim.cpu else count)
        for name, state, count in (("a", "Ready", near), ("b", "NotReady", away))
    ]
    for voids in range(1, away + 1):
        executors = [executor(str(i), "Void", node="b") for i in range(voids)]
        batch = batch_past(nodes, executors, claim)
        free = away - voids
        # One of those that wait for ever is reserved for the run's session.
        assert free < batch - (voids - 1) <= free + near
        # Or none, where the other session has its turn first.
        if near > 1 and away > 1:
            assert free < batch - voids <= free + near


def test_executors_at_work_leave_no_room():
    bound = [executor(name, "Bound", node="a") for name in "xy"]
    nodes = [node("a"), node("b", cores=1), node("c", "NotReady")]
    assert batch_past(nodes, bound, resources(1, 1)) == 2
    assert batch_past(nodes[::2], bound, resources(1, 1)) == 0


# What executors run


def about(where: str, **others: str) -> bytes:
    return json.dumps({"node": where} | versions() | processor() | others).encode()


@pytest.mark.parametrize("name", ["python", "numpy"])
def test_executors_with_other_versions_are_refused_by_their_nodes(name):
    answers = Answers()
    answers.hear(about("alpha"))
    answers.refuse_others()
    for each in ("gamma", "beta"):
        answers.hear(about(each, **{name: "3.99"}))
    words = f"Other versions.* on nodes beta, gamma: {name} {versions()[name]} here, 3.99 there"
    with pytest.raises(UsageError, match=words):
        answers.refuse_others()


@pytest.mark.parametrize("name", processor())
def test_nodes_with_another_kernel_are_named_once(name):
    answers, said = Answers(), []
    for each in ("alpha", "beta", "gamma"):
        answers.hear(about(each, **({name: "Zen"} if each != "alpha" else {})))
    for _ in range(2):
        answers.hear(about("beta", **{name: "Zen"}))
        answers.tell(said.append)
    answers.hear(about("delta", **{name: "Zen"}))
    answers.tell(said.append)
    words = "Another processor than on this machine is on"
    assert len(said) == 2 and said[1].startswith(f"{words} node delta: ")
    assert said[0].startswith(f"{words} nodes beta, gamma: ")
    assert f"{name} {processor()[name]} here, Zen there" in said[0]
    answers.refuse_others()


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"node": 1}', b"\xff", b'{"node": "' + b"a" * 9999]
)
def test_what_is_no_account_of_an_executor_is_refused(data):
    with pytest.raises(WireError, match="what an executor says of itself"):
        Answers().hear(data)
