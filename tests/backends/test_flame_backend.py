"""Training on Flame the user's way: `python main.py` in a process of its own.

Against the in-memory Flame always; marked `cluster`, the same tests against a real one.
"""

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import flamepy.core.cache
import flamepy.core.client
import psutil
import pytest
from flamepy.core.types import FlameError, ResourceRequirement, SessionAttributes
from flamepy.proto import types_pb2
from flamepy.runner.runner import RunnerService

from flame_rl.actor.environments.making import cannot_be_made
from flame_rl.actor.remote import Collector
from flame_rl.backends.flame import compat
from flame_rl.backends.flame.cleanup import Janitor
from flame_rl.backends.flame.cluster import Capacity, capacity_of, connect
from flame_rl.backends.flame.package import Application
from flame_rl.backends.flame.session import Answers, Session
from flame_rl.settings.config import Execution
from flame_rl.system.errors import UsageError
from tests.flame_fixtures import CORE, SECRET, finish, run, start
from tests.helpers import SOON, run_ok
from tests.memory_flame import MemoryFlame, ObjectCache
from tests.runs import assert_saved_weights, rows, wait_until

SMALL = ("--iterations", "3", "--episodes-per-iter", "10")
STEPS = ("--iterations", "4", "--steps-per-iter", "50", "--hidden-sizes", "8")
PPO = ("--env", "cartpole", *SMALL, "--algorithm", "ppo")
REPLAY = ("--warm-up-steps", "60", "--updates-per-step", "0.2", "--batch-size", "16")
DQN = ("--env", "cartpole", *STEPS, *REPLAY, "--algorithm", "dqn")
POINT = ("--env", "InvertedPendulum-v5", *STEPS, *REPLAY, "--algorithm")
GOALS = ("--env", "goals:Bits-v1", *STEPS, "--algorithm")
MINE = ("--env", "my_env:Mine-v0", "--env-kwargs", "length=20", *PPO[2:])
LONG = ("--env", "my_env:Mine-v0", "--env-kwargs", "length=120")
EVALUATED = ("--evaluate-every", "2")
# Runs by what is particular about them; slow ones are left out unless they are asked for.
RUNS = {
    "two in an executor": ("--env", "cartpole", *SMALL, "--workers-per-executor", "2"),
    "own environment": (*MINE, "--wrapper", "my_wrappers:halved", "--overlap", *EVALUATED),
    "hindsight": (*GOALS, "dqn", "--hindsight", "future", "--prioritized", *REPLAY),
    "fragments": (*LONG, *STEPS, "--fragment-steps", "10", "--algorithm", "ppo"),
}
SLOW = {
    "reinforce": ("--env", "cartpole", *SMALL),
    "executors": ("--env", "InvertedPendulum-v5", *SMALL, "--executors", "2"),
    "memory": (*PPO, "--memory", "lstm", "--shared-torso"),
    "pictures": (*PPO[2:], "--env", "my_env:Eye-v0", "--frame-stack", "2"),
    "impala": ("--env", "cartpole", *SMALL, "--algorithm", "impala"),
    **{name: (*DQN[:-1], name) for name in ("sarsa", "successor", "r2d2")},
    **{name: (*POINT, name) for name in ("ddpg", "td3", "sac")},
    "from": (*DQN, "--from", "{}/old", "--with-replay"),
    "demonstrations": (*DQN, "--demonstrations", "{}/teacher.npz"),
    "policy-observations": (*GOALS, "ppo", "--policy-observations", "observation", "desired_goal"),
}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a run of dqn, "old", and episodes of it, "teacher.npz"."""
    folder = tmp_path_factory.mktemp("before")
    here = ("--local", "--workers", "0")
    record = ["evaluate", "old", "--episodes", "4", "--record", "teacher.npz"]
    for words in ((*DQN, "--output", "old"), record):
        run_ok(*words, *here, cwd=folder)
    return folder


@pytest.mark.parametrize(
    "name", [*RUNS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_a_run_has_the_bytes_of_this_machine_and_sends_only_what_it_needs(
    name, flame, project, local, tmp_path, request
):
    """For the workers of the in-memory Flame torch cannot be imported."""
    flags = (RUNS | SLOW)[name]
    if any("{}" in flag for flag in flags):
        before = request.getfixturevalue("before")
        flags = tuple(flag.format(before) for flag in flags)
    finished = run(project, tmp_path, flame.environment, *flags)
    assert finished.code == 0, finished.err
    assert re.search(r"\nDistributed .+ on \S+ using Flame Runner\n", finished.out)
    assert "Training Complete!" in finished.out and finished.err == ""
    assert finished.metrics == local(*flags)
    assert_saved_weights(finished.folder)
    assert not (tmp_path / "dist").exists() and not (project / "dist").exists()
    flame.assert_nothing_left()
    if flame.memory is not None:
        *_, package = flame.memory.cache.packages.values()
        own = {f"{flag.partition(':')[0]}.py" for flag in flags if ":" in flag and "/" not in flag}
        assert {name for name in package if Path(name).suffix} == CORE | own
        assert not any(SECRET.encode() in content for content in package.values())
        assert sum(map(len, package.values())) < 400_000


@pytest.mark.slow
def test_several_seeds_share_a_cluster(flame, project, local, tmp_path):
    finished = run(project, tmp_path, flame.environment, *PPO, "--seeds", "1", "2")
    assert finished.code == 0, finished.err
    for seed in ("1", "2"):
        folder = finished.folder / f"seed-{seed}"
        assert (folder / "metrics.csv").read_bytes() == local(*PPO, "--seed", seed)
        assert "using Flame Runner" in folder.with_suffix(".txt").read_text()
    flame.assert_nothing_left()


@pytest.mark.slow
def test_a_study_on_a_cluster_that_is_killed_and_resumed_is_that_of_this_machine(
    flame, project, tmp_path
):
    pytest.importorskip("optuna", reason="uv run --group tune pytest")
    words = ("tune", "--env", "cartpole", "--algorithm", "ppo", "--env-steps", "600")
    words += ("--steps-per-iter", "60", "--trials", "4", "--parallel", "2")
    words += ("--search", "learning-rate", "epochs")
    run_ok(*words, "--local", "--output", "here", cwd=tmp_path)
    process = start(project, tmp_path, flame.environment, *words)
    study = tmp_path / "run"
    trials = [study / f"trial-00{number}" for number in (0, 1)]
    wait_until(lambda: all(rows(trial) > 2 for trial in trials), 4 * SOON, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    resumed = start(project, tmp_path, flame.environment, "tune", "--resume", "run")
    finished = finish(resumed, tmp_path)
    assert finished.code == 0, finished.err
    for number in range(4):
        trials = [tmp_path / where / f"trial-00{number}" for where in ("run", "here")]
        found, expected = ((each / "metrics.csv").read_bytes() for each in trials)
        assert found == expected
        assert "using Flame Runner" in trials[0].with_suffix(".txt").read_text()
    assert trials_of(study) == trials_of(tmp_path / "here")
    flame.assert_nothing_left()


def trials_of(study: Path) -> list[tuple]:
    """Settings, values and end of each trial."""
    lines = [json.loads(line) for line in (study / "trials.log").read_text().splitlines()]
    return [(t["params"], t["intermediate_values"], t["state"]) for t in lines if "params" in t]


def test_grpc_has_no_part_in_a_fork():
    """Its handlers break about one fork in fifty beside its threads, before the fork does anything;
    they do not run where it is told so before its first connection."""
    assert os.environ["GRPC_ENABLE_FORK_SUPPORT"] == "0"


# Ends before the end


def test_ctrl_c_ends_tasks_that_would_take_long(project, no_torch, tmp_path):
    """Flame cannot stop a task of 40 s; its executor notices that nobody wants it any more."""
    slow = ("--env", "my_env:Mine-v0", "--env-kwargs", "seconds=0.01", "length=4000")
    flags = (*slow, "--max-episode-steps", "0", "--iterations", "1", "--episodes-per-iter", "2")
    with MemoryFlame(executors=1, worker_path=[no_torch]) as memory:
        process = start(project, tmp_path, memory.environment, *flags)
        wait_until(lambda: running_tasks(memory), process=process)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        finished = finish(process, tmp_path)
        assert time.monotonic() - began < SOON
        wait_until(lambda: not running_tasks(memory), 20)  # long before its own end
        assert not any(session.open for session in memory.sessions.values())
        assert not memory.objects
    assert finished.code == 130
    assert "Training Interrupted!" in finished.out
    assert finished.err == ""


def test_weights_that_arrive_after_the_clean_up_do_not_stay(memory, project, tmp_path, monkeypatch):
    """The cache is slow, so that the learner has removed everything before they are stored."""
    arrives, ended, put = threading.Event(), threading.Event(), ObjectCache.do_put
    prefixes = []

    def slow_put(cache, context, descriptor, reader, writer) -> None:
        prefix = descriptor.path[0].decode()
        if prefix.count("/") == 1 and "pkg" not in prefix:
            prefixes.append(prefix)
        # Flame Runner's own object comes first, then the weights.
        if len(prefixes) > 1:
            arrives.set()
            assert ended.wait(300)
        put(cache, context, descriptor, reader, writer)

    monkeypatch.setattr(ObjectCache, "do_put", slow_put)
    process = start(project, tmp_path, memory.environment, "--env", "cartpole", *SMALL)
    assert arrives.wait(600)
    process.send_signal(signal.SIGINT)
    finished = finish(process, tmp_path)
    ended.set()
    assert finished.code == 130 and finished.err == ""
    time.sleep(0.5)
    memory.assert_nothing_left()


def running_tasks(memory: MemoryFlame) -> int:
    return sum(session.counts["Running"] for session in memory.sessions.values())


@pytest.mark.parametrize("listens", [False, True], ids=["closed port", "silent port"])
def test_unreachable_cluster_is_a_usage_error_within_seconds(listens, project, tmp_path):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        environment = {
            "FLAME_ENDPOINT": f"http://{address}",
            "FLAME_CACHE_ENDPOINT": f"grpc://{address}",
        }
        began = time.monotonic()
        finished = run(project, tmp_path, environment)
    assert time.monotonic() - began < 100
    assert finished.code == 2
    assert f"http://{address}" in finished.err
    assert "--local" in finished.err
    assert "Traceback" not in finished.err
    assert not (tmp_path / "run").exists()


def open_session(
    name: str, service: Callable, janitor: Janitor, capacity: Capacity | None = None
) -> Session:
    """Of an application of that name, whose runner opens services in this way."""
    application = Application(name, SimpleNamespace(service=service), [])
    return Session(application, capacity or Capacity(1), janitor, Answers())


def test_a_session_that_does_not_open_is_given_up_and_remembered_all_the_same(monkeypatch):
    """Otherwise a cluster that hangs would never be given up, or what it opens late would stay."""
    monkeypatch.setattr(compat, "CALL_SECONDS", 0.1)
    janitor, answered, names = Mock(), threading.Event(), []

    def service(kind: type, **options: object) -> None:
        names.append(kind._session_context.session_id)
        answered.wait(100)

    with pytest.raises(TimeoutError):
        open_session("ours", service, janitor)
    answered.set()
    assert names[0].startswith("ours-")
    janitor.remember.assert_called_once_with("session", names[0])


# Executors


def test_an_executor_starts_its_simulators_process_before_it_is_asked():
    with closing(Collector()._team) as team:
        assert psutil.pid_exists(team._workers[0].pid)


@pytest.fixture
def memory_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryFlame]:
    """An in-memory Flame of 12 cores and 24 GB, for flamepy in this process; no executor starts."""
    monkeypatch.setattr(flamepy.core.client.ConnectionInstance, "_connection", None)
    monkeypatch.setattr(flamepy.core.cache, "_context_cache", None)
    with MemoryFlame(executors=12) as memory:
        memory.manager.on_pending = lambda: None
        for name, value in memory.environment.items():
            monkeypatch.setenv(name, value)
        yield memory
        flamepy.core.client.ConnectionInstance.instance()._channel.close()


def test_the_connection_of_the_process_before_a_fork_is_refused(memory_here):
    connect(threading.Event())
    connect(threading.Event())
    flamepy.core.client.ConnectionInstance.instance().process += 1
    with pytest.raises(UsageError, match="was forked from one that had reached the cluster"):
        connect(threading.Event())


def test_executors_are_asked_for_by_their_share_of_the_memory(memory_here):
    connect(threading.Event())
    nodes = flamepy.core.client.list_nodes()
    capacity = capacity_of(nodes, Execution(executors=48))
    assert capacity == Capacity(48, ResourceRequirement(cpu=0, memory=256 << 20), 48)
    asked = Mock()
    open_session("x", asked, Mock(), capacity)
    assert asked.call_args.kwargs == {"autoscale": False, "warmup": 48, "resreq": capacity.claim}
    with pytest.raises(UsageError, match=r"--executors: 100 would have 245 MB .* at most 96$"):
        capacity_of(nodes, Execution(executors=100))


def test_a_session_that_is_refused_leaves_no_object(memory_here):
    """flamepy puts one into the cache before it asks for the session."""
    janitor = Janitor()
    janitor.remember("application", "gone")
    for _ in range(3):
        with pytest.raises(FlameError, match="gone not found"):
            open_session("gone", partial(RunnerService, "gone"), janitor)
    assert len(memory_here.objects) == 3
    wait_until(janitor.clean_up)
    assert memory_here.objects == {}
    janitor.end(dismissed=True)


def test_a_task_is_heard_of_while_many_others_still_run(memory_here):
    """flamepy by itself watches ten."""
    connect(threading.Event())
    capacity = capacity_of(flamepy.core.client.list_nodes(), Execution())
    assert capacity == Capacity(12)
    compat.watch_tasks(capacity.in_flight)
    spec = SessionAttributes(id="many", application="flmrun", min_instances=0)
    many = flamepy.core.client.open_session("many", spec)
    futures = [many.run(b"") for _ in range(capacity.in_flight)]
    last = memory_here.sessions["many"].tasks[str(len(futures))]
    memory_here.manager.finish(last, types_pb2.TaskState.Succeed, "done", b"answer")
    assert futures[-1].result(timeout=50) == b"answer"
    assert not any(future.done() for future in futures[:-1])


def test_a_file_that_stayed_here_is_missed_on_an_executor(project, memory, tmp_path):
    """The environment can be made on this machine, so the error must say where it cannot."""
    (project / "helper_of_two.py").write_text("LIMIT = 5\n")
    (project / "of_two_files.py").write_text(
        "import gymnasium\nfrom helper_of_two import LIMIT\n"
        "gymnasium.register('Two-v0', 'gymnasium.envs.classic_control:CartPoleEnv',"
        " max_episode_steps=LIMIT)\n"
    )
    finished = run(project, tmp_path, memory.environment, "--env", "of_two_files:Two-v0", *SMALL)
    assert finished.code == 2 and "needs the package helper_of_two" in finished.err
    assert "happened on an executor, which has of your files only the module" in finished.err


def test_an_environment_that_needs_torch_is_told_that_executors_have_none():
    with pytest.raises(ModuleNotFoundError) as caught:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    text = str(cannot_be_made("mine:Mine-v0", caught.value))
    assert "executors of a cluster have no torch" in text and "uv add" not in text


def test_weights_have_the_time_that_their_size_takes(monkeypatch):
    """8 MB take 6.4 s over 10 Mbit/s; what was too slow has twice the time in the same session."""
    limits, clock = [], [0.0]

    def arrives(seconds: float, function: Callable) -> object:
        limits.append(seconds)
        if len(limits) == 2:
            raise TimeoutError
        clock[0] += 6.4
        return function()

    service = Mock(return_value=None)
    opened = open_session("ours", service, Mock())
    monkeypatch.setattr("flame_rl.backends.flame.session.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("flame_rl.backends.flame.session.call_with_timeout", arrives)
    ref = flamepy.core.cache.ObjectRef("grpc://127.0.0.1:1", "ours/x/y", 1)
    for name in ("put_object", "update_object"):
        monkeypatch.setattr(flamepy.core.cache, name, lambda *_: ref)
    weights = bytes(8_000_000)
    opened.publish(weights)
    with pytest.raises(TimeoutError, match=r"^8\.0 MB of weights .* within 69 s: the network"):
        opened.publish(weights)
    opened.publish(weights)
    assert limits == pytest.approx([69, 69, 5 + 2 * 69])
