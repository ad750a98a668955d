"""Nodes of a Flame cluster that join, are lost, or cannot start executors.

Against the in-memory Flame, with the backend in this process; marked `nodes`, runs of main.py
against a real cluster of containers.
"""

import contextlib
import importlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import flamepy.core.cache
import flamepy.core.client
import gymnasium
import psutil
import pytest
from flamepy.proto import types_pb2 as pb

from flame_rl.actor.remote import processor
from flame_rl.backends.flame.backend import FlameBackend
from flame_rl.backends.flame.session import Session
from flame_rl.backends.local import InlineBackend
from flame_rl.backends.tasks import Deadlines
from flame_rl.settings.config import Execution
from flame_rl.system.errors import RunError, UsageError
from flame_rl.wire.messages import Environment, Episodes
from tests.flame_fixtures import finish, rows, run, start, wait_until
from tests.flame_nodes import FlameNodes
from tests.helpers import assert_same_episodes, random_snapshot, request_for
from tests.memory_flame import MemoryFlame, link_packages

TINY, SLOW = "my_env:Mine-v0", "my_env:SlowPace-v0"
SNAPSHOT = random_snapshot(3, 2, False)
CANNOT = r"cannot start.*failed to install the package"


class Heard:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.episodes = 0

    def say(self, text: str) -> None:
        self.lines.append(text.partition(".")[0])

    def waiting(self, text: str) -> None:
        pass

    def collecting(self, request: object, episodes: int, env_steps: int) -> None:
        self.episodes = episodes


@pytest.fixture
def pace(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The project's environments can be imported."""
    # After all others: of the project, only the environments are wanted.
    monkeypatch.setattr(sys, "path", [*sys.path, str(project)])
    with mock.patch.dict(gymnasium.registry):
        importlib.import_module("my_env")
        yield
    sys.modules.pop("my_env")


@pytest.fixture
def on(pace: None, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """A context with a backend on that cluster, for flamepy in this process."""

    @contextlib.contextmanager
    def backend(memory: MemoryFlame) -> Iterator[FlameBackend]:
        monkeypatch.setattr(flamepy.core.client.ConnectionInstance, "_connection", None)
        monkeypatch.setattr(flamepy.core.cache, "_context_cache", None)
        monkeypatch.setattr("flame_rl.backends.flame.cluster.ASK_SECONDS", 0.5)
        for name, value in memory.environment.items():
            monkeypatch.setenv(name, value)
        made = another()
        made.listener = Heard()
        try:
            yield made
        finally:
            made.close()
            flamepy.core.client.ConnectionInstance.instance().close()

    return backend


def another(packages: str = "install") -> FlameBackend:
    """Another run's, on the cluster of the one that is."""
    settings = Execution(cluster_patience=20, executor_packages=packages)
    deadlines = Deadlines(None, 100_000, 4096)
    return FlameBackend(Environment(TINY), settings, deadlines, threading.Event())


def collect(backend: object, iteration: int, episodes: int = 8, env: str = TINY) -> Episodes:
    request = request_for(env, range(episodes), iteration=iteration)
    return backend.collect(SNAPSHOT, request).episodes


def assert_as_here(found: Episodes, iteration: int, env: str = TINY) -> None:
    here = InlineBackend(threading.Event())
    with mock.patch.dict(os.environ, STEP_SECONDS="0"):
        here.describe(Environment(env))
        assert_same_episodes(found, collect(here, iteration, len(found), env))


def look(backend: FlameBackend) -> None:
    """The next time it is asked, Flame is asked again."""
    backend._monitor._asked_at = 0.0


def test_weights_that_came_too_slowly_are_sent_again_in_the_same_session(on, monkeypatch):
    with MemoryFlame(nodes={"a": 1}) as memory, on(memory) as backend:
        publish, heard = Session.publish, [TimeoutError("8 MB did not arrive")]

        def slow(self: Session, encoded: bytes) -> None:
            if heard:
                raise heard.pop()
            publish(self, encoded)

        monkeypatch.setattr(Session, "publish", slow)
        assert_as_here(collect(backend, 0, 2), 0)
        assert "8 MB did not arrive" in backend.listener.lines
        assert len(memory.sessions) == 1


def test_nodes_that_join_get_tasks_and_one_that_is_lost_costs_its_tasks_alone(on):
    with MemoryFlame(nodes={"a": 1}) as memory, on(memory) as backend:
        assert_as_here(collect(backend, 0, 2), 0)
        assert backend.executors == 1
        memory.add_node("b", 1)
        memory.add_node("c", 1)
        look(backend)
        assert_as_here(collect(backend, 1), 1)
        assert backend.executors == 3
        executors = memory.manager.executors
        assert sorted(executor.node for executor in executors) == ["a", "b", "c"]
        wait_until(lambda: all(e.state == pb.ExecutorBound for e in executors))

        found: list[Episodes] = []
        running = threading.Thread(target=lambda: found.append(collect(backend, 2, 4, SLOW)))
        running.start()
        lost = next(executor for executor in executors if executor.node == "b")
        wait_until(lambda: lost.task is not None)
        memory.lose_node("b")
        # Flame itself never gives the lost task to another executor here.
        running.join(200)
        assert_as_here(found[0], 2, SLOW)
        memory.give_up_node("b")
        look(backend)
        assert_as_here(collect(backend, 3), 3)
        assert backend.executors == 2


def test_a_node_seen_while_episodes_are_awaited_gets_tasks_of_the_next_iteration(on):
    with MemoryFlame(nodes={"a": 1}) as memory, on(memory) as backend:
        assert_as_here(collect(backend, 0, 2), 0)
        memory.add_node("b", 1)
        look(backend)
        backend._check()
        assert_as_here(collect(backend, 1), 1)
        assert backend.executors == 2


@pytest.mark.parametrize(
    "before", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["first run", "second run"]
)
def test_a_node_that_is_away_keeps_no_executor_from_starting(on, before):
    """Flame reserves the executor that it placed there, and creates no other for the session."""
    with MemoryFlame(nodes={"a": 2, "b": 2}) as memory:
        memory.lose_node("b")
        memory.give_up_node("b")
        for _ in range(1 + before):
            with on(memory) as backend:
                assert backend.executors == 2
                for iteration in range(100):
                    look(backend)
                    assert_as_here(collect(backend, iteration), iteration)
                    at_work = [e for e in memory.manager.executors if not e.void]
                    if len(at_work) == 2:
                        break
                assert [executor.node for executor in at_work] == ["a", "a"]
                assert len(memory.manager.executors) > 2
                # The session beside is open only while executors are missing.
                assert sum(session.open for session in memory.sessions.values()) == 1
            assert not any(session.open for session in memory.sessions.values())


def test_a_node_that_cannot_install_is_named_and_the_others_work(on):
    with MemoryFlame(nodes={"a": 1, "b": 1}) as memory:
        memory.manager.nodes["b"].broken = True
        with on(memory) as backend:
            assert_as_here(collect(backend, 0), 0)
            look(backend)
            assert_as_here(collect(backend, 1), 1)
            assert [executor.node for executor in memory.manager.executors] == ["a"]
            assert backend.executors == 1
            # A busy machine may have waited for the first result.
            (line,) = [line for line in backend.listener.lines if line != "The cluster works"]
            assert line.startswith("Node b cannot start executors: ")


@pytest.mark.slow
def test_a_second_run_beside_a_node_that_cannot_install_ships_nothing_anew(on):
    """Flame gives up its first session, because the other node works for the first run."""
    with MemoryFlame(nodes={"a": 1, "b": 1}) as memory:
        memory.manager.nodes["b"].broken = True
        with on(memory) as first:
            assert_as_here(collect(first, 0), 0)
            second = another()
            second.listener, before = Heard(), second._session
            found: list[Episodes] = []
            running = threading.Thread(target=lambda: found.append(collect(second, 0)))
            running.start()
            wait_until(lambda: second._session is not before)
            first.close()
            running.join(200)
            assert_as_here(found[0], 0)
            assert second._application.name == first._application.name
            second.close()


@pytest.mark.slow
def test_what_no_node_could_install_is_tried_again_by_the_next_run(on):
    """A node remembers by the application's name that it could not."""
    with MemoryFlame(nodes={"a": 1}) as memory:
        memory.manager.nodes["a"].broken = True
        with on(memory) as backend, pytest.raises(RunError, match=CANNOT):
            collect(backend, 0)
        memory.manager.nodes["a"].broken = False
        with on(memory) as backend:
            assert_as_here(collect(backend, 0), 0)


@pytest.mark.slow
def test_runs_of_equal_content_share_an_install_and_remove_only_what_is_theirs(on):
    with MemoryFlame(nodes={"a": 1}) as memory:
        with on(memory) as first:
            assert_as_here(collect(first, 0), 0)
            (application,) = memory.applications
            memory.add_node("b", 1)
            second = another()
            assert_as_here(collect(second, 0), 0)
            assert memory.applications == [application]
            second.close()
            assert not any(second._session.id in name for name in memory.objects)
            # What it needs is still there: for executors that start now, too.
            shutil.rmtree(memory.folder / "apps")
            first._leave_session()
            first._open_session()
            assert_as_here(collect(first, 1), 1)
        assert not memory.applications and not memory.objects
        with on(memory) as third:
            assert_as_here(collect(third, 0), 0)
            assert memory.applications == [application]
        assert [path.name for path in (memory.folder / "apps").iterdir()] == [application]


@pytest.mark.parametrize(
    "there", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["there", "missing"]
)
def test_executors_with_the_packages_in_their_image_install_nothing(on, tmp_path, there):
    image = tmp_path / "image"
    link_packages(["gymnasium[mujoco]", "numpy"] if there else [], image)
    with MemoryFlame(executors=1, worker_path=[image]) as memory, on(memory) as unused:
        unused.close()
        backend = another("image")
        if there:
            assert_as_here(collect(backend, 0), 0)
        else:
            with pytest.raises(RunError, match=r"cannot start.*numpy.*what their image must hold"):
                collect(backend, 0)
        (installed,) = (memory.folder / "apps" / backend._application.name).glob("deps")
        assert not (installed / "mujoco").exists()
        backend.close()


def test_an_object_cache_out_of_the_learners_reach_is_named(on):
    with MemoryFlame(executors=1) as memory:
        memory.cache.endpoint = "grpc://127.0.0.1:9"
        with pytest.raises(UsageError, match=r"calls itself grpc://127\.0\.0\.1:9"), on(memory):
            pass


@pytest.mark.slow
def test_an_application_that_another_run_has_removed_is_shipped_again(on):
    with MemoryFlame(nodes={"a": 2}) as memory, on(memory) as first:
        assert_as_here(collect(first, 0), 0)
        # Between two sessions it has none that keeps the application.
        wait_until(first._session.close)  # refused while a task runs that was asked for twice
        second = another()
        second.close()
        assert not memory.applications
        assert_as_here(collect(first, 1), 1)


def test_an_application_without_its_package_is_shipped_again(on):
    with MemoryFlame(nodes={"a": 1}) as memory, on(memory) as first:
        (application,) = memory.applications
        for name in [name for name in memory.objects if name.startswith(f"{application}/pkg")]:
            del memory.cache.objects[name]
        # The first has a session of it, so that it stays as it is, and is of no use.
        second = another()
        assert second._application.name.startswith(f"{application}-")
        second.close()
        first.close()
        assert not memory.applications
        third = another()
        assert memory.applications == [application]
        third.close()
        assert not memory.applications and not memory.objects


def test_a_run_waits_for_executors_that_another_one_has_longer_than_for_a_cluster(on):
    """Flame takes them back in a long update, and the other run keeps what it was given."""
    with MemoryFlame(nodes={"a": 1}) as memory, on(memory) as backend:
        assert_as_here(collect(backend, 0), 0)
        now, monitor = time.monotonic(), backend._monitor
        backend._answers.last_result = monitor._alive_at = backend._began = now - 200
        backend._most_episodes, monitor._taken_at = 0, now
        backend._give_up_if_lost("none")
        monitor._taken_at = now - 150
        with pytest.raises(RunError, match="no result"):
            backend._give_up_if_lost("none")


@pytest.mark.slow
def test_a_node_with_another_kernel_is_named_though_it_does_not_answer_first(on):
    kernel = processor()["BLAS kernel"]
    other = "Nehalem" if kernel != "Nehalem" else "Haswell"
    with MemoryFlame(nodes={"a": 1}) as memory, on(memory) as backend:
        assert_as_here(collect(backend, 0, 2), 0)
        memory.add_node("b", 1)
        memory.manager.nodes["b"].environment["OPENBLAS_CORETYPE"] = other
        for iteration in range(1, 100):
            look(backend)
            collect(backend, iteration)
            if backend.listener.lines:
                break
        (line,) = backend.listener.lines
        where = f"Another processor than on this machine is on node {socket.gethostname()}: "
        assert line.startswith(f"{where}BLAS kernel {kernel} here, {other} there")


def test_results_are_deleted_in_the_object_cache_that_has_them(on):
    with MemoryFlame(executors=2, caches=2) as memory:
        put = threading.Event()
        memory.on_result = lambda key: put.set() if key in memory.caches[1].objects else None
        with on(memory) as backend:
            for iteration in range(100):
                assert_as_here(collect(backend, iteration), iteration)
                if put.is_set():
                    break
            assert put.is_set()
            wait_until(lambda: not memory.caches[1].objects)
            # As one that comes when nobody waits for it any more.
            memory.caches[1].objects |= {
                f"{backend._application.name}/{backend._session.id}/late": b""
            }
        assert memory.objects == {}


@pytest.mark.slow
def test_what_ran_on_a_node_that_comes_back_too_late_ends_by_itself(on):
    """Flame has given it up, and leaves its processes alone."""
    with MemoryFlame(nodes={"a": 1, "b": 1}) as memory:
        with on(memory) as backend:
            # The other executor may play all episodes before this one has started.
            wait_until(lambda: collect(backend, 0) and memory.workers_of["b"])
            (worker,) = memory.workers_of["b"]
            wait_until(lambda: collect(backend, 0) and psutil.Process(worker.pid).children())
            # Busy as it is: what it never knew it could not miss.
            wait_until(lambda: collect(backend, 0) and memory.knows_itself(worker))
            left = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children()]
            memory.pause_node("b")
            memory.give_up_node("b")
            look(backend)
            assert_as_here(collect(backend, 1), 1)
        memory.resume_node("b")
        wait_until(lambda: worker.poll() is not None)
        psutil.wait_procs(left, 100)
        assert not any(lives(process) for process in left)


def test_an_executor_does_not_outlive_its_executor_manager(tmp_path):
    """Which starts it by way of uv, the leader of its process group."""
    collector = "from flame_rl.actor.remote import Collector; import time; each = Collector()"
    shell = f"'{sys.executable}' -c '{collector}; print(1, flush=True); time.sleep(600)' & wait"
    code = "import subprocess, sys\nsubprocess.run(sys.argv[1], shell=True, process_group=0)"
    manager = subprocess.Popen(
        [sys.executable, "-c", code, shell],
        stdout=subprocess.PIPE,
        env=os.environ | {"FLAME_INSTANCE_ENDPOINT": str(tmp_path / "id.sock")},
    )
    manager.stdout.readline()
    left = psutil.Process(manager.pid).children(recursive=True)
    assert len(left) == 3  # the shell, the executor's own process, its child
    shell_process, *others = left
    manager.kill()
    manager.wait()
    psutil.wait_procs(others, 100)
    assert not any(lives(process) for process in others)
    psutil.wait_procs([shell_process], 100)


def lives(process: psutil.Process) -> bool:
    """Whether the process runs; one that ended may wait for its parent to notice."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# A real cluster

PACE = ("--env", "my_env:Pace-v0", "--iterations", "8", "--episodes-per-iter", "48")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FlameNodes]:
    """Nodes of two cores, of which alpha and beta are ready."""
    with FlameNodes(tmp_path / "cluster") as flame:
        for name in ("alpha", "beta"):
            flame.start_node(name)
        wait_until(lambda: flame.nodes() == {"alpha": "Ready", "beta": "Ready"})
        yield flame


@pytest.mark.cluster
@pytest.mark.nodes
@pytest.mark.slow
def test_nodes_join_and_are_lost_in_a_real_run(cluster, project, local, tmp_path):
    flags = (*PACE[:2], "--iterations", "40", *PACE[4:])
    process = start(project, tmp_path, cluster.environment, *flags)
    wait_until(lambda: rows(tmp_path) == 2 and len(cluster.bound()) == 4, 600)
    cluster.start_node("gamma")
    wait_until(lambda: len(cluster.bound()) == 6, 600)
    cluster.kill_node("beta")
    began, seen = time.monotonic(), rows(tmp_path)
    wait_until(lambda: rows(tmp_path) > seen + 1)
    assert time.monotonic() - began < 60  # Flame alone takes 80 s
    finished = finish(process, tmp_path)
    assert finished.code == 0, finished.err
    assert finished.metrics == local(*flags)
    assert len(re.findall(r"4 of [46] executors .*no sign of node beta", finished.out)) == 1


@pytest.mark.cluster
@pytest.mark.nodes
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["away", "broken"])
def test_a_real_run_starts_beside_a_node_that_is_of_no_use(
    fault, cluster, project, local, tmp_path
):
    cluster.start_node("gamma", broken=fault == "broken")
    wait_until(lambda: cluster.nodes().get("gamma") == "Ready")
    if fault == "away":
        cluster.kill_node("gamma")
        wait_until(lambda: cluster.nodes()["gamma"] == "NotReady")
    with (project / "my_env.py").open("a") as file:
        # Another content, which all nodes install: else the run may end before gamma has failed.
        file.write(f"# {fault}\n")
    finished = run(project, tmp_path, cluster.environment, *PACE)
    assert finished.code == 0, finished.err
    assert finished.metrics == local(*PACE)
    told = {"broken": "Node gamma cannot start executors: ", "away": "no sign of node gamma"}
    assert told[fault] in finished.out


@pytest.mark.cluster
@pytest.mark.nodes
@pytest.mark.slow
def test_wrong_clocks_of_nodes_change_nothing(project, local, tmp_path):
    with FlameNodes(tmp_path / "cluster", cache_clock="-1h") as flame:
        flame.start_node("alpha", clock="-2h")
        flame.start_node("beta", clock="+1d")
        wait_until(lambda: flame.nodes() == {"alpha": "Ready", "beta": "Ready"})
        finished = run(project, tmp_path, flame.environment, *PACE)
    assert finished.code == 0, finished.err
    assert finished.metrics == local(*PACE)
    assert finished.timing("retries") == 0
