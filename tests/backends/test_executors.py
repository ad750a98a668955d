"""How many executors a cluster has room for, the words about them, and when they are said."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import flamepy.core.client
import pytest
from flamepy.core.types import FlameError, FlameErrorCode, ResourceRequirement
from flamepy.proto import types_pb2 as pb

from flame_rl.backends.flame import executors
from flame_rl.backends.flame.executors import Watch, count
from flame_rl.backends.flame.room import Room, Wish, batch_past, room_among
from flame_rl.system.errors import UsageError


def executor(name: str, state: str, session: str | None = None, node: str = "near") -> pb.Executor:
    status = pb.ExecutorStatus(state=pb.ExecutorState.Value(f"Executor{state}"), session_id=session)
    return pb.Executor(
        metadata=pb.Metadata(id=name, name=name), spec=pb.ExecutorSpec(node=node), status=status
    )


def node(name: str, state: str = "Ready", cores: int = 2, gigabytes: int = 8) -> pb.Node:
    room = pb.ResourceRequirement(cpu=cores, memory=gigabytes << 30)
    status = pb.NodeStatus(state=pb.NodeState.Value(state), allocatable=room)
    return pb.Node(metadata=pb.Metadata(id=name, name=name), status=status)


@pytest.mark.parametrize(
    ("seen", "text", "alive", "gone"),
    [
        ([], "0 of 2 executors are working", 0, ""),
        (
            [executor("a", "Bound", "ours"), executor("b", "Bound", "ours")],
            "2 of 2 executors are working",
            2,
            "",
        ),
        (
            [executor("a", "Binding", "ours"), executor("b", "Void")],
            "0 of 2 executors are working (2 starting)",
            1,
            "",
        ),
        (
            [executor("a", "Unbinding"), executor("b", "Unbinding", "ours")],
            "0 of 2 executors are working (2 unbinding)",
            False,
            "ab",
        ),
        (
            [executor("a", "Bound", "theirs"), executor("b", "Bound", "ours")],
            "1 of 2 executors are working (1 bound to other sessions)",
            True,
            "",
        ),
        (
            [executor("a", "Bound", "ours", "far"), executor("b", "Idle")],
            "0 of 2 executors are working (1 idle, no sign of node far)",
            False,
            "a",
        ),
        ([executor("a", "Unknown")], "0 of 2 executors are working (1 in an unknown state)", 0, ""),
    ],
)
def test_executors_are_counted_for_a_run(
    seen: list[pb.Executor], text: str, alive: int, gone: str
) -> None:
    nodes = [node("near")]
    if "far" in text:
        nodes.append(node("far", "Unknown"))
    counted = count(seen, nodes, "ours", 2)
    assert str(counted) == text
    assert counted.alive == alive
    assert counted.gone == set(gone)


class Heard:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.waits: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def waiting(self, text: str) -> None:
        self.waits.append(text)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What Flame answers, how often it was asked, and the time, which the test sets."""
    state = SimpleNamespace(executors=[], nodes=[node("near")], asked=0, now=1000.0)

    def list_executors() -> list[pb.Executor]:
        state.asked += 1
        if state.executors is None:
            raise FlameError(FlameErrorCode.INTERNAL, "Deadline Exceeded")
        return state.executors

    monkeypatch.setattr(flamepy.core.client, "list_executors", list_executors)
    monkeypatch.setattr(flamepy.core.client, "list_nodes", lambda: state.nodes)
    monkeypatch.setattr(executors, "time", SimpleNamespace(monotonic=lambda: state.now))
    return state


def watch_with(listener: object) -> Watch:
    watch = Watch(2)
    watch.listener = listener
    return watch


def test_a_lost_executor_is_said_once_and_one_that_leaves_a_session_is_not_lost(cluster) -> None:
    heard = Heard()
    watch = watch_with(heard)
    working = executor("b", "Bound", "ours")
    for states in (["Bound", "ours"], ["Unbinding"], ["Idle"], ["Unbinding"]):
        cluster.executors = [executor("a", *states), working]
        watch.ask("ours")
        cluster.now += 5
    assert heard.lines == []
    for _ in range(3):
        watch.ask("ours")
        cluster.now += 5
    assert len(heard.lines) == 1
    assert heard.lines[0].startswith("An executor was lost: 1 of 2 left. ")
    cluster.nodes = [node("near", "Unknown")]
    for _ in range(3):
        watch.ask("ours")
        cluster.now += 5
    assert [line.partition(".")[0] for line in heard.lines[1:]] == [
        "Node near: no connection to the cluster",
        "An executor was lost: 0 of 1 left",
    ]


def test_of_a_lost_node_only_executors_that_worked_for_the_run_are_lost(cluster) -> None:
    """Flame places another one there, which never starts, and forgets those that were there."""
    heard = Heard()
    watch = watch_with(heard)
    cluster.nodes = [node("near"), node("far")]
    near = [executor(name, "Bound", "ours") for name in "abcd"]
    far = [executor(name, "Bound", "ours", "far") for name in "ef"]
    others = [executor("x", "Bound", "theirs", "far"), executor("y", "Bound", "theirs")]
    lost = []
    for state, seen in (
        ("Ready", [*near, *far, *others]),
        ("Unknown", [*near, *far, *others]),
        ("Unknown", [*near, *far, *others]),
        ("NotReady", near),
        ("NotReady", [*near, executor("new", "Void", node="far")]),
        ("NotReady", [*near, executor("new", "Void", node="far")]),
    ):
        cluster.nodes[1] = node("far", state)
        cluster.executors = seen
        watch.ask("ours")
        lost.append(watch.lost)
        cluster.now += 5
    assert lost == [0, 2, 0, 0, 0, 0]
    assert [line.partition(".")[0] for line in heard.lines] == [
        "Node far: no connection to the cluster",
        "2 executors were lost: 4 of 6 left",
    ]
    cluster.executors = []
    watch.ask("ours")
    assert watch.hint == "Start Flame's executor manager on far again, under the same host name"


def test_what_is_seen_before_anybody_listens_is_said_later(cluster) -> None:
    heard = Heard()
    watch = watch_with(None)
    cluster.nodes.append(node("far", "NotReady"))
    watch.ask("ours")
    watch.listener = heard
    assert heard.lines == ["Node far: no connection to the cluster. The run goes on without"]


def test_flame_is_asked_every_five_seconds(cluster) -> None:
    watch = watch_with(None)
    for _ in range(200):
        watch.ask("ours")
        cluster.now += 0.1
    assert cluster.asked == 4


def test_an_executor_at_work_is_a_sign_of_life(cluster) -> None:
    """However long its task takes."""
    heard = Heard()
    watch = watch_with(heard)
    last_result = cluster.now
    cluster.executors = [executor("a", "Bound", "ours")]
    for _ in range(600):
        watch.ask("ours")
        watch.tell(watch.silence(last_result), 120)
        cluster.now += 1
    assert watch.silence(last_result) <= 5
    assert heard.waits == heard.lines == []


def test_a_silence_is_told_within_fifteen_seconds_and_counted_down(cluster) -> None:
    heard = Heard()
    watch = watch_with(heard)
    last_result = cluster.now
    cluster.executors = [executor("a", "Unbinding"), executor("b", "Unbinding")]
    for tenth in range(150):
        if tenth == 120:
            cluster.executors = None
        watch.ask("ours")
        watch.tell(watch.silence(last_result), 120)
        cluster.now += 0.1
    assert heard.waits[0] == (
        "Waiting for the cluster for 10 s: 0 of 2 executors are working (2 unbinding); giving up "
        "in 110 s. docs/cluster.md says how to see which of its servers run, and what helps"
    )
    assert len(heard.waits) == 5
    cluster.now += 1
    watch.ask("ours")
    watch.tell(watch.silence(last_result), 120)
    assert "16 s: its session manager does not answer; giving up in 104 s" in heard.waits[-1]
    assert not watch.answers
    # A result comes.
    watch.tell(0.0, 120)
    assert heard.lines[-1] == "The cluster works again."
    assert heard.waits[-1] == ""
    told = len(heard.waits)
    watch.over()
    watch.tell(0.0, 120)
    assert len(heard.waits) == told


def test_a_cluster_that_another_run_has_is_no_broken_one(cluster) -> None:
    heard = Heard()
    watch = watch_with(heard)
    cluster.executors = [executor("a", "Bound", "theirs"), executor("b", "Bound", "theirs")]
    watch.ask("ours")
    watch.tell(20.0, 300.0)
    assert heard.waits[-1].endswith("giving up in 280 s. " + watch.hint)
    assert watch.hint.startswith("Other runs have those that work")
    # One that is dead stays so for ever.
    cluster.executors[0] = executor("a", "Unbinding")
    cluster.now += 5
    watch.ask("ours")
    assert watch.hint.startswith("Other runs have those that work")
    cluster.executors[1] = executor("b", "Unbinding")
    cluster.now += 5
    watch.ask("ours")
    assert watch.hint.startswith("docs/cluster.md says")


@pytest.mark.parametrize("then", ["Unbinding", "Idle", "nothing", "no answer"])
def test_executors_that_another_run_gives_back_are_waited_for(cluster, then) -> None:
    watch = watch_with(Heard())
    assert watch.limit(120.0) == 120.0
    cluster.executors = [executor("a", "Bound", "theirs"), executor("dead", "Unbinding", "old")]
    watch.ask("ours")
    assert watch.limit(120.0) == 300.0 and watch.limit(400.0) == 400.0
    answers = {"no answer": None, "nothing": []}
    cluster.executors = answers[then] if then in answers else [executor("a", then)]
    for seconds, limit in ((100, 300.0), (19, 300.0), (2, 120.0)):
        cluster.now += seconds
        watch.ask("ours")
        assert watch.limit(120.0) == limit


def test_executors_that_start_for_a_run_are_its_own(cluster) -> None:
    watch = watch_with(Heard())
    cluster.executors = [executor("a", "Binding", "ours"), executor("b", "Bound", "theirs")]
    watch.ask("ours")
    assert watch.limit(120.0) == 120.0


def test_the_share_of_a_run_is_said_once_it_is_settled(cluster) -> None:
    heard = Heard()
    watch = watch_with(heard)
    ours, theirs = executor("a", "Bound", "ours"), executor("b", "Bound", "theirs")
    for seen, lines in (
        ([ours], 0),
        ([ours, theirs], 0),
        ([ours, executor("b", "Idle")], 0),
        ([ours, theirs], 0),
        ([ours, theirs], 1),
        ([ours, theirs], 1),
        ([ours, executor("b", "Binding", "ours")], 1),
        ([ours, executor("b", "Bound", "ours")], 2),
        # More than the run can have.
        ([ours, executor("b", "Bound", "ours"), executor("c", "Bound", "theirs")], 2),
    ):
        cluster.executors = seen
        cluster.now += 5
        watch.ask("ours")
        assert len(heard.lines) == lines, heard.lines
    assert heard.lines[0].startswith("This run has 1 of 2 executors, and other runs have 1: ")
    assert heard.lines[1] == "This run has 2 of 2 executors"


def test_a_listener_that_fails_ends_no_run(cluster) -> None:
    def fails(text: str) -> None:
        raise OSError("the terminal is gone")

    watch = watch_with(SimpleNamespace(say=fails, waiting=fails))
    for seconds in itertools.chain(range(30), [0]):
        cluster.now += 1
        watch.tell(seconds, 120)
    assert not watch._telling


# Room


def resources(cpu: int, gigabytes: int) -> pb.ResourceRequirement:
    return pb.ResourceRequirement(cpu=cpu, memory=gigabytes << 30)


def test_only_nodes_that_are_ready_have_room() -> None:
    nodes = [node("a"), node("b", "NotReady", 64), node("c", "Unknown", 64), node("d", cores=3)]
    assert room_among(nodes, Wish()) == Room(5)
    assert room_among(nodes[1:3], Wish()) == Room(1)
    # Half of the memory is for other runs.
    assert room_among(nodes, Wish(8)).claim == ResourceRequirement(cpu=0, memory=1 << 30)
    assert room_among(nodes, Wish(64)).claim == ResourceRequirement(cpu=0, memory=256 << 20)
    # With tasks that wait Flame would start more.
    assert (room_among(nodes, Wish(8)).in_flight, room_among(nodes, Wish()).in_flight) == (8, 10)
    with pytest.raises(UsageError, match="no node of the cluster is ready"):
        room_among(nodes[1:3], Wish(4))


def test_executors_with_processes_inside_have_as_many_cores() -> None:
    nodes = [node("a", cores=5), node("b", cores=4), node("c", cores=1)]
    room = room_among(nodes, Wish(workers=2))
    assert room == Room(4, ResourceRequirement(cpu=2, memory=512 << 20))
    assert room_among(nodes, Wish(3, workers=8)).executors == 3
    with pytest.raises(UsageError, match=r"no node has 6 cores; at most 5.*--executors N"):
        room_among(nodes, Wish(workers=6))


@pytest.mark.parametrize(("nodes", "executors"), [(0, 1), (1, 8), (2, 10), (3, 10)])
def test_executors_asked_for_come_and_go_with_their_nodes(nodes: int, executors: int) -> None:
    """What each claims stays as the run began."""
    claim = room_among([node("a"), node("b")], Wish(8)).claim
    room = room_among([node(str(i)) for i in range(nodes)], Wish(10), claim)
    assert room == Room(executors, claim, 10)


def void(name: str, node: str) -> pb.Executor:
    found = executor(name, "Void", node=node)
    found.spec.resreq.CopyFrom(resources(1, 1))
    return found


def test_no_batch_is_needed_where_no_node_is_away_or_no_other_has_room() -> None:
    ready, away = [node("a"), node("b")], [node("c", "NotReady")]
    assert batch_past(ready, [], resources(1, 1)) == 0
    assert batch_past(away, [], resources(1, 1)) == 0
    assert batch_past([node("a", cores=0), *away], [], resources(1, 1)) == 0
    full = [node("a"), node("c", "NotReady", 0)]
    assert batch_past(full, [], resources(1, 1)) == 0


@pytest.mark.parametrize("near", [1, 2, 3, 7])
@pytest.mark.parametrize("away", [1, 2, 5])
@pytest.mark.parametrize("claim", [resources(1, 1), resources(0, 1)], ids=["cores", "memory"])
def test_a_batch_has_an_executor_elsewhere(near, away, claim) -> None:
    # The other resource is plenty.
    cores = (near, away) if claim.cpu else (64, 64)
    gigabytes = (64, 64) if claim.cpu else (near, away)
    nodes = [
        node("a", "Ready", cores[0], gigabytes[0]),
        node("b", "NotReady", cores[1], gigabytes[1]),
    ]
    for voids in range(1, away + 1):
        batch = batch_past(nodes, [void(str(i), "b") for i in range(voids)], claim)
        free = away - voids
        # One of those that wait for ever is reserved for the run's session.
        assert free < batch - (voids - 1) <= free + near
        # Or none, where the other session has its turn first.
        if near > 1 and away > 1:
            assert free < batch - voids <= free + near


def test_executors_at_work_leave_no_room() -> None:
    bound = [executor(name, "Bound", "ours", "a") for name in "xy"]
    for each in bound:
        each.spec.resreq.CopyFrom(resources(1, 1))
    nodes = [node("a"), node("b", cores=1), node("c", "NotReady")]
    assert batch_past(nodes, bound, resources(1, 1)) == 2
    assert batch_past(nodes[::2], bound, resources(1, 1)) == 0
