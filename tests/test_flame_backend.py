"""Training on Flame the user's way: `python main.py` in a process of its own.

Against the in-memory Flame always; marked `cluster`, the same tests against a real one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlparse

import grpc
import psutil
import pytest
from flamepy.core.types import FlameContext
from flamepy.proto import frontend_pb2 as requests
from flamepy.proto.frontend_pb2_grpc import FrontendStub

from flame_rl.errors import UsageError
from tests.memory_flame import MemoryFlame

ROOT = Path(__file__).resolve().parent.parent
SMALL = ("--iterations", "3", "--episodes-per-iter", "10")
EXECUTORS = 3

# A user's own environment; the other ids of the module are this one with a fault.
MY_ENV = """
import os
import signal
import time
import gymnasium
import numpy as np
from pathlib import Path

MARKER = Path({marker!r})

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault=""):
        self.fault = fault
        self.length = 4000 if fault == "slow" else 20

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.normal(size=3).astype(np.float32), {{}}

    def step(self, action):
        self.steps += 1
        observation = self.np_random.normal(size=3).astype(np.float32)
        if self.steps == 5 and self.fault == "raises":
            raise ValueError("broken on purpose")
        if self.steps == 5 and self.fault == "nan":
            observation[1] = np.nan
        if self.steps == 5 and self.fault == "shape":
            observation = observation[:2]
        if self.steps == 5 and self.fault == "dies" and not MARKER.exists():
            MARKER.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "slow":
            time.sleep(0.01)
        ended = self.steps == self.length
        return observation, float(action == (observation[0] > 0)), ended, False, {{}}

for fault in ("", "raises", "nan", "shape", "dies", "slow"):
    gymnasium.register("Mine" + fault + "-v0", Mine, kwargs={{"fault": fault}})
"""


CLUSTER = """
cluster:
  name: test
  endpoint: http://127.0.0.1:{port}
  resreq: cpu=1,mem=1g
  policies: [priority, drf, gang]
  storage: fs://{folder}/sessions
  executors:
    shim: host
  limits:
    max_executors: {executors}
cache:
  endpoint: grpc://127.0.0.1:{cache_port}
  network_interface: lo
  storage: {folder}/objects
"""


@dataclass
class Flame:
    """A cluster to run against.

    Attributes:
        environment: where it is.
        memory: the in-memory one itself, None for a real cluster.
        before: what was on it at the start, which is not ours.
    """

    environment: dict[str, str]
    memory: MemoryFlame | None = None
    before: set[str] = field(default_factory=set)

    def contents(self) -> set[str]:
        """All applications, sessions and objects, and of the in-memory one all processes."""
        endpoint = urlparse(self.environment["FLAME_ENDPOINT"])
        with grpc.insecure_channel(f"{endpoint.hostname}:{endpoint.port}") as channel:
            frontend = FrontendStub(channel)
            applications = frontend.ListApplication(requests.ListApplicationRequest()).applications
            sessions = frontend.ListSession(requests.ListSessionRequest()).sessions
        cache = urlparse(self.environment["FLAME_CACHE_ENDPOINT"])
        with grpc.insecure_channel(f"{cache.hostname}:{cache.port}") as channel:
            # pyarrow refuses what Flame's cache answers; the raw message holds the key.
            list_flights = channel.unary_stream("/arrow.flight.protocol.FlightService/ListFlights")
            objects = [message.decode(errors="replace") for message in list_flights(b"")]
        found = {f"application {application.metadata.name}" for application in applications}
        found |= {f"session {session.metadata.id}" for session in sessions}
        found |= {f"object {message}" for message in objects}
        if self.memory is not None:
            # Its address is its own, and it is in the environment of learner, workers, children.
            found |= {f"process {p}" for p in processes_with(self.environment["FLAME_ENDPOINT"])}
        return found

    def assert_nothing_left(self) -> None:
        """Within seconds: a worker's child notices after one that its parent is gone."""
        limit = time.monotonic() + 10
        while left := self.contents() - self.before:
            assert time.monotonic() < limit, f"left behind: {sorted(left)}"
            time.sleep(0.2)


@dataclass
class Finished:
    """A run of main.py that has ended."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def metrics(self) -> bytes:
        return (self.folder / "metrics.csv").read_bytes()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's folder: the program, an environment of their own, and what must not travel."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("main.py", "model.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "flame_rl", folder / "flame_rl", ignore=ignored)
    (folder / "my_env.py").write_text(MY_ENV.format(marker=str(folder / "died")))
    (folder / ".env").write_text("PASSWORD=secret")
    (folder / "flame_rl" / "actor" / ".env").write_text("PASSWORD=secret")
    (folder / "id_rsa").write_text("secret")
    (folder / "data.bin").write_bytes(os.urandom(3_000_000))
    (folder / "runs" / "old").mkdir(parents=True)
    (folder / "runs" / "old" / "weights.safetensors").write_bytes(b"weights")
    (folder / "link").symlink_to(Path.home())
    return folder


@pytest.fixture(scope="module")
def no_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a torch that cannot be imported, as on an executor."""
    folder = tmp_path_factory.mktemp("no_torch")
    (folder / "torch.py").write_text("raise ImportError('torch is not for executors')")
    return folder


@pytest.fixture(scope="module")
def memory(no_torch: Path) -> Iterator[Flame]:
    with MemoryFlame(EXECUTORS, worker_path=[no_torch]) as memory:
        flame = Flame(memory.environment, memory)
        flame.before = flame.contents()
        yield flame


@pytest.fixture(
    scope="module", params=["memory", pytest.param("cluster", marks=pytest.mark.cluster)]
)
def flame(
    request: pytest.FixtureRequest, memory: Flame, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Flame]:
    if request.param == "memory":
        yield memory
        return
    with real_cluster(tmp_path_factory.mktemp("cluster")) as environment:
        flame = Flame(environment)
        flame.before = flame.contents()
        yield flame


@pytest.fixture(scope="module")
def local(project: Path, tmp_path_factory: pytest.TempPathFactory):
    """What a run of these flags writes on this machine without workers: the reference."""
    runs: dict[tuple[str, ...], bytes] = {}

    def metrics(*flags: str) -> bytes:
        if flags not in runs:
            folder = tmp_path_factory.mktemp("local")
            finished = run(project, folder, {}, *flags, "--local", "--workers", "0")
            assert finished.code == 0, finished.err
            runs[flags] = finished.metrics
        return runs[flags]

    return metrics


def start(project: Path, folder: Path, environment: dict[str, str], *flags: str):
    """Start main.py in `folder`, which is HOME too, so that no ~/.flame is read."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FLAME_")}
    return subprocess.Popen(
        [sys.executable, str(project / "main.py"), *flags, "--output", str(folder / "run")],
        cwd=folder,
        env=inherited | environment | {"HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], folder: Path, seconds: float = 120) -> Finished:
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return Finished(process.returncode, out, err, folder / "run")


def run(project: Path, folder: Path, environment: dict[str, str], *flags: str) -> Finished:
    return finish(start(project, folder, environment, *flags), folder)


def processes_with(value: str) -> list[psutil.Process]:
    """The processes that have this value in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if value in process.environ().values():
                found.append(process)
    return found


# A real cluster


@contextlib.contextmanager
def real_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """The cluster that is configured, or one of its own from Flame's binaries, or a skip."""
    configured = Path.home() / ".flame" / "flame.yaml"
    if "FLAME_ENDPOINT" in os.environ or configured.exists():
        context = FlameContext()
        yield {
            "FLAME_ENDPOINT": context.endpoint,
            "FLAME_CACHE_ENDPOINT": context.cache.endpoint,
        }
        return
    home = flame_home()
    if home is None:
        pytest.skip(
            "no Flame cluster: set FLAME_ENDPOINT, write ~/.flame/flame.yaml, or have Flame's "
            "binaries in $FLAME_HOME/bin or PATH"
        )
    with servers(home, folder) as environment:
        yield environment


def flame_home() -> Path | None:
    """Where Flame is installed."""
    home = os.environ.get("FLAME_HOME")
    found = shutil.which("flame-session-manager", path=home and str(Path(home, "bin")))
    return Path(found).resolve().parent.parent if found else None


@contextlib.contextmanager
def servers(home: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Flame's three servers on free ports, with all that they write in `folder`."""
    own_home = folder / "home"
    (own_home / "data").mkdir(parents=True)
    for name in ("bin", "lib"):
        (own_home / name).symlink_to(home / name)
    # Shared, because installing the package from a cold cache of packages takes minutes.
    (own_home / "data" / "cache").symlink_to(home / "data" / "cache")
    port, cache_port = free_ports()
    config = folder / "flame-cluster.yaml"
    config.write_text(
        CLUSTER.format(port=port, cache_port=cache_port, executors=EXECUTORS, folder=folder)
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    # Unix sockets have short paths.
    sockets = tempfile.mkdtemp(prefix="flame-")
    environment |= {"FLAME_HOME": str(own_home), "FLAME_SOCKET_DIR": sockets, "RUST_LOG": "warn"}
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, sockets)
        ready = {"object-cache": cache_port, "session-manager": port + 1, "executor-manager": None}
        for name, listening in ready.items():
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [str(home / "bin" / f"flame-{name}"), "--config", str(config)],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
            )
            stack.callback(stop, process)
            if listening is not None:
                wait_for_port(listening, process)
        yield {
            "FLAME_ENDPOINT": f"http://127.0.0.1:{port}",
            "FLAME_CACHE_ENDPOINT": f"grpc://127.0.0.1:{cache_port}",
        }


def stop(process: subprocess.Popen[bytes]) -> None:
    """The executor manager does not end its workers, so they are ended here."""
    workers = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()


def free_ports() -> tuple[int, int]:
    """One whose next is free too, as the session manager takes both, and another."""
    while True:
        with contextlib.ExitStack() as stack:
            ports = []
            for _ in range(2):
                probe = stack.enter_context(socket.socket())
                probe.bind(("127.0.0.1", 0))
                ports.append(probe.getsockname()[1])
            with contextlib.suppress(OSError), socket.socket() as following:
                following.bind(("127.0.0.1", ports[0] + 1))
                return ports[0], ports[1]


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + 20
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        assert process.poll() is None, f"{process.args[0]} ended: {process.returncode}"
        assert time.monotonic() < limit, f"{process.args[0]} does not listen"
        time.sleep(0.1)


# Results


@pytest.mark.parametrize("env", ["cartpole", "InvertedPendulum-v5"])
def test_flame_gives_the_same_bytes_as_this_machine(
    env: str, flame: Flame, project: Path, local, tmp_path: Path
) -> None:
    finished = run(project, tmp_path, flame.environment, "--env", env, *SMALL)
    assert finished.code == 0, finished.err
    name = {"cartpole": "CartPole-v1"}.get(env, env)
    assert f"\nDistributed REINFORCE on {name} using Flame Runner\n" in finished.out
    assert "Training Complete!" in finished.out
    assert finished.err == ""
    assert finished.metrics == local("--env", env, *SMALL)
    assert not (tmp_path / "dist").exists()
    assert not (project / "dist").exists()
    flame.assert_nothing_left()
    if flame.memory is not None:
        assert set(flame.memory.uploaded_package()) == shipped_files()


@pytest.mark.parametrize("env", ["cartpole", "InvertedPendulum-v5"])
def test_number_of_workers_changes_no_byte(
    env: str, project: Path, local, no_torch: Path, tmp_path: Path
) -> None:
    """Two workers on this machine and one executor, at once to save time."""
    flags = ("--env", env, *SMALL)
    for name in ("processes", "flame"):
        (tmp_path / name).mkdir()
    with MemoryFlame(executors=1, worker_path=[no_torch]) as memory:
        processes = start(project, tmp_path / "processes", {}, *flags, "--local", "--workers", "2")
        flame = run(project, tmp_path / "flame", memory.environment, *flags)
        assert len(memory.started_workers) == 1
    two_workers = finish(processes, tmp_path / "processes")
    assert two_workers.metrics == local(*flags), two_workers.err
    assert flame.metrics == local(*flags), flame.err


# What is shipped


def shipped_files() -> set[str]:
    """The names in the package of an environment that came with Gymnasium."""
    actor = {path.name for path in (ROOT / "flame_rl" / "actor").glob("*.py")}
    files = {"__init__.py", "messages.py", "wire.py", *(f"actor/{name}" for name in actor)}
    folders = {"flame_rl", "flame_rl/actor"}
    return {"pyproject.toml", *folders, *(f"flame_rl/{name}" for name in files)}


def test_own_environment_travels_and_nothing_else_does(
    memory: Flame, project: Path, local, tmp_path: Path
) -> None:
    """Nor is torch needed: for the workers of `memory` it cannot be imported."""
    flags = ("--env", "my_env:Mine-v0", *SMALL)
    finished = run(project, tmp_path, memory.environment, *flags)
    assert finished.code == 0, finished.err
    assert finished.metrics == local(*flags)
    assert set(memory.memory.uploaded_package()) == shipped_files() | {"my_env.py"}
    memory.assert_nothing_left()


# Ends before the end


def test_ctrl_c_stops_soon_saves_and_leaves_nothing(
    flame: Flame, project: Path, tmp_path: Path
) -> None:
    flags = ("--env", "ant", "--iterations", "1000", "--episodes-per-iter", "60")
    process = start(project, tmp_path, flame.environment, *flags)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Iteration   0"):
            break
    time.sleep(0.5)  # into the collecting of a later iteration
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    finished = finish(process, tmp_path)
    seconds = time.monotonic() - began
    assert finished.code == 130, "".join(lines) + finished.err
    assert seconds < 5
    assert "Training Interrupted!" in finished.out
    assert "Final Mean Reward" in finished.out
    assert finished.err == ""
    assert (tmp_path / "run" / "weights.safetensors").stat().st_size > 0
    assert finished.metrics.count(b"\n") >= 2
    flame.assert_nothing_left()


def test_ctrl_c_ends_tasks_that_would_take_long(
    project: Path, no_torch: Path, tmp_path: Path
) -> None:
    """Flame cannot stop a task of 40 s; its executor notices that nobody wants it any more."""
    flags = ("--env", "my_env:Mineslow-v0", "--iterations", "1", "--episodes-per-iter", "2")
    with MemoryFlame(executors=1, worker_path=[no_torch]) as memory:
        process = start(project, tmp_path, memory.environment, *flags)
        # Its versions first; then it collects.
        while memory.finished_tasks["Succeed"] == 0 or not running_tasks(memory):
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        finished = finish(process, tmp_path)
        assert time.monotonic() - began < 5
        assert running_tasks(memory) == 0
        assert not any(session.open for session in memory.sessions.values())
        assert not memory.objects
    assert finished.code == 130
    assert "Training Interrupted!" in finished.out
    assert finished.err == ""


def running_tasks(memory: MemoryFlame) -> int:
    return sum(session.counts()["Running"] for session in memory.sessions.values())


@pytest.mark.parametrize("listens", [False, True], ids=["closed port", "silent port"])
def test_unreachable_cluster_is_a_usage_error_within_seconds(
    listens: bool, project: Path, tmp_path: Path
) -> None:
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
    assert time.monotonic() - began < 10
    assert finished.code == 2
    assert f"http://{address}" in finished.err
    assert "--local" in finished.err
    assert "Traceback" not in finished.err
    assert not (tmp_path / "run").exists()


# The simulator is not trusted


def test_simulator_that_kills_its_process_costs_one_task_and_no_executor(
    project: Path, local, no_torch: Path, tmp_path: Path
) -> None:
    flags = ("--env", "my_env:Minedies-v0", *SMALL)
    (project / "died").touch()
    undisturbed = local(*flags)
    (project / "died").unlink()
    with MemoryFlame(executors=1, worker_path=[no_torch]) as memory:
        pids: set[int] = set()
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.05):
                pids.update(memory.worker_pids())

        watching = threading.Thread(target=watch)
        watching.start()
        finished = run(project, tmp_path, memory.environment, *flags)
        ended.set()
        watching.join()
        assert memory.finished_tasks["Failed"] == 0
        assert pids == set(memory.started_workers)
        assert len(pids) == 1
    assert (project / "died").exists()
    assert finished.code == 0, finished.err
    assert "  Tasks sent again: 1\n" in finished.out
    assert finished.metrics == undisturbed


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("raises", "step raised ValueError: broken on purpose"),
        ("nan", "observation: step returned NaN or infinity"),
        (
            "shape",
            "observation: step returned shape (2,) where the observation space promises (3,)",
        ),
    ],
)
def test_faulty_environment_is_named_with_episode_and_step(
    fault: str, expected: str, flame: Flame, project: Path, tmp_path: Path
) -> None:
    flags = ("--env", f"my_env:Mine{fault}-v0", "--iterations", "1", "--episodes-per-iter", "1")
    finished = run(project, tmp_path, flame.environment, *flags)
    assert finished.code == 2
    assert f"error: {expected}" in finished.err
    assert f"(environment my_env:Mine{fault}-v0, iteration 0, episode 0, step 4" in finished.err
    # Its own traceback helps; that of this program would not.
    assert finished.err.count("Traceback (most recent call last)") == (fault == "raises")
    assert "main.py" not in finished.err
    flame.assert_nothing_left()


@pytest.mark.parametrize("name", ["python", "numpy"])
def test_executor_with_other_versions_is_refused(name: str) -> None:
    from flame_rl.actor.remote import versions
    from flame_rl.backends.flame import FlameBackend

    theirs = versions() | {name: "3.99"}
    answer: Future[bytes] = Future()
    answer.set_result(json.dumps(theirs).encode())
    backend = FlameBackend.__new__(FlameBackend)
    with pytest.raises(UsageError, match=f"{name} {versions()[name]} here, 3.99 there"):
        backend._compare_versions(answer)
