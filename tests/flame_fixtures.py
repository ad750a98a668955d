"""A cluster to run main.py against: the in-memory Flame or a real one, and how to hurt it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import urlparse

import grpc
import psutil
import pytest
from flamepy.core.types import FlameContext
from flamepy.proto import frontend_pb2 as requests
from flamepy.proto.frontend_pb2_grpc import FrontendStub

from tests.forks import Forked
from tests.helpers import PIPES, ROOT, table
from tests.memory_flame import MemoryFlame, free_ports
from tests.runs import processes_with, wait_until
from tests.runs import rows as rows_of

EXECUTORS = 2
# What travels of this package: three folders, of which nothing but the code, and what makes it one.
CORE = {
    "flame_rl/__init__.py",
    "flame_rl_wheel.py",
    "flame_rl_actor-0.1.0-py3-none-any.whl",
    "pyproject.toml",
} | {
    path.relative_to(ROOT).as_posix()
    for folder in ("actor", "nets", "wire")
    for path in (ROOT / "flame_rl" / folder).rglob("*.py")
}
# In every file of the user's that must not travel.
SECRET = "nobody else's business"

# A user's own wrapper.
MY_WRAPPERS = """
import gymnasium

def halved(env):
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward / 2)
"""

# A user's own environments, whose steps may take time, which changes no result; without it, a
# reference is quick.
MY_ENV = """
import os
import select
import gymnasium
import numpy as np

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seconds=0.0, length=20):
        self.seconds, self.length = float(os.environ.get("STEP_SECONDS", seconds)), length

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.length
        self.observation = self.np_random.normal(size=3).astype(np.float32)
        return self.observation, {}

    def step(self, action):
        # time.sleep fails now and then where libfaketime makes the clock wrong.
        select.select((), (), (), self.seconds)
        reward = float(action == (self.observation[0] > 0))
        self.observation = self.np_random.normal(size=3).astype(np.float32)
        self.left -= 1
        return self.observation, reward, self.left == 0, False, {}

class Eye(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        return self.picture(), {}

    def step(self, action):
        self.left -= 1
        reward = float(action == self.bright)
        return self.picture(), reward, self.left == 0, False, {}

    def picture(self):
        self.bright = int(self.np_random.integers(2))
        return self.np_random.integers(100, size=(12, 12, 3), dtype=np.uint8) + 100 * self.bright

gymnasium.register("Eye-v0", Eye)
for name, seconds in (("Mine", 0.0), ("Pace", 0.004), ("SlowPace", 0.05)):
    gymnasium.register(name + "-v0", Mine, kwargs={"seconds": seconds})
"""

# main.py, with a cluster that is asked more often and missed sooner.
HURRIED = """
import sys
from flame_rl.backends.flame import cluster
cluster.ASK_SECONDS, cluster.QUIET_SECONDS = 0.5, 2.0
import main
sys.exit(main.main())
"""

CLUSTER = """
cluster:
  name: test
  endpoint: http://127.0.0.1:{port}
  resreq: cpu=1,mem=1g
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
        real: the servers of a real one, if they are ours.
        before: what was on it at the start, which is not ours.
    """

    environment: dict[str, str]
    memory: MemoryFlame | None = None
    real: RealFlame | None = None
    before: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.contents()

    def contents(self) -> set[str]:
        """All applications, sessions and objects, and of the in-memory one all processes."""
        with frontend_of(self.environment) as frontend:
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

    def assert_nothing_left(self, seconds: float = 300.0) -> None:
        """Within seconds, far more than it takes where nothing else runs: a worker's child notices
        after one that its parent is gone."""
        limit = time.monotonic() + seconds
        while left := self.contents() - self.before:
            assert time.monotonic() < limit, f"left behind: {sorted(left)}"
            time.sleep(0.2)

    def sessions(self) -> dict[str, int]:
        """The tasks that run or wait, by session."""
        with frontend_of(self.environment) as frontend:
            sessions = frontend.ListSession(requests.ListSessionRequest()).sessions
        return {s.metadata.id: s.status.running + s.status.pending for s in sessions}

    def worker_pids(self) -> list[int]:
        """The processes in which Flame runs tasks."""
        if self.memory is not None:
            return self.memory.worker_pids()
        return [
            p.pid
            for p in self.real.processes_of("executor-manager")
            if runs(p, "flamepy.runner.runpy")
        ]

    def collectors(self) -> list[psutil.Process]:
        """The children of those, in which simulators run."""
        found = []
        for pid in self.worker_pids():
            with contextlib.suppress(psutil.Error):
                children = psutil.Process(pid).children()
                found += [
                    child for child in children if runs(child, "flame_rl.actor.worker.process")
                ]
        return found

    def stop(self, server: str) -> None:
        """End `session-manager`, `object-cache` or `executor-manager`; what they keep stays."""
        (self.memory or self.real).stop(server)

    def start(self, server: str) -> None:
        """Start it again where it was."""
        (self.memory or self.real).start(server)


@contextlib.contextmanager
def frontend_of(environment: dict[str, str]) -> Iterator[FrontendStub]:
    """Flame's own interface."""
    endpoint = urlparse(environment["FLAME_ENDPOINT"])
    with grpc.insecure_channel(f"{endpoint.hostname}:{endpoint.port}") as channel:
        yield FrontendStub(channel)


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

    def timing(self, column: str) -> int:
        """The sum of a column of timing.csv."""
        return sum(int(row[column]) for row in table(self.folder / "timing.csv"))


def start(
    project: Path,
    folder: Path,
    environment: dict[str, str],
    *flags: str,
    script: str = "main.py",
) -> Forked:
    """Start main.py in `folder`, which is HOME too, so that no ~/.flame is read."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FLAME_")}
    output = () if "--resume" in flags else ("--output", str(folder / "run"))
    env = inherited | environment | {"HOME": str(folder)}
    return Forked(project / script, (*flags, *output), folder, env, **PIPES)


def finish(process: Forked, folder: Path, seconds: float = 1200) -> Finished:
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return Finished(process.returncode, out, err, folder / "run")


def run(project: Path, folder: Path, environment: dict[str, str], *flags: str) -> Finished:
    return finish(start(project, folder, environment, *flags), folder)


def rows(folder: Path) -> int:
    """The number of iterations that the run in `folder` has reported."""
    return max(0, rows_of(folder / "run") - 1)


def runs(process: psutil.Process, module: str) -> bool:
    """Whether that module is what the process executes, itself and not by another program."""
    with contextlib.suppress(psutil.Error):
        command = process.cmdline()
        return module in command and "python" in Path(command[0]).name
    return False


# A real cluster


@contextlib.contextmanager
def real_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """The cluster that is configured, or one of its own from Flame's binaries, or a skip."""
    configured = Path.home() / ".flame" / "flame.yaml"
    if "FLAME_ENDPOINT" in os.environ or configured.exists():
        context = FlameContext()
        yield {"FLAME_ENDPOINT": context.endpoint, "FLAME_CACHE_ENDPOINT": context.cache.endpoint}
        return
    with RealFlame(folder) as flame:
        yield flame.environment


class RealFlame:
    """Flame's three servers on free ports, for the length of a `with` block, with all that they
    write in `folder`. Skips the test where Flame is not installed."""

    servers: ClassVar = ("object-cache", "session-manager", "executor-manager")

    def __init__(self, folder: Path, executors: int = EXECUTORS) -> None:
        named = os.environ.get("FLAME_HOME")
        found = shutil.which("flame-session-manager", path=named and str(Path(named, "bin")))
        if found is None:
            pytest.skip(
                "no Flame cluster: set FLAME_ENDPOINT, write ~/.flame/flame.yaml, or have Flame's "
                "binaries in $FLAME_HOME/bin or PATH"
            )
        home = Path(found).resolve().parent.parent
        self._home, self._folder = home, folder
        self._address = "127.0.0.1"
        own_home = folder / "home"
        (own_home / "data").mkdir(parents=True)
        for name in ("bin", "lib"):
            (own_home / name).symlink_to(home / name)
        # Shared, because installing the package from a cold cache of packages takes minutes.
        (own_home / "data" / "cache").symlink_to(home / "data" / "cache")
        port, cache_port = free_ports()
        self._listening = {"object-cache": cache_port, "session-manager": port + 1}
        self._config = folder / "flame-cluster.yaml"
        self._config.write_text(
            CLUSTER.format(port=port, cache_port=cache_port, executors=executors, folder=folder)
        )
        self.environment = {
            "FLAME_ENDPOINT": f"http://127.0.0.1:{port}",
            "FLAME_CACHE_ENDPOINT": f"grpc://127.0.0.1:{cache_port}",
        }
        # Unix sockets have short paths.
        self._sockets = tempfile.mkdtemp(prefix="flame-")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        self._environment = inherited | {
            "FLAME_HOME": str(own_home),
            "FLAME_SOCKET_DIR": self._sockets,
            "RUST_LOG": "warn",
        }
        # Further variables of a server.
        self._variables: dict[str, dict[str, str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._ending.callback(shutil.rmtree, self._sockets)
        for name in self.servers:
            self._ending.callback(self.stop, name)
            self.start(name)
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.close()

    def start(self, name: str) -> None:
        if name == "object-cache":
            # It does not start again with a file that it had only begun to write.
            for path in (self._folder / "objects").rglob("*.arrow"):
                if path.stat().st_size == 0:
                    path.unlink()
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self._home / "bin" / f"flame-{name}"), "--config", str(self._config)],
                cwd=self._folder,
                env=self._environment | self._variables.get(name, {}),
                stdout=log,
                stderr=log,
            )
        self._processes[name] = process
        if name in self._listening:
            wait_for_port(self._address, self._listening[name], process)

    def stop(self, name: str) -> None:
        """The executor manager does not end its workers, so they are ended here."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        workers = []
        if process.poll() is None:
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

    def processes_of(self, name: str) -> list[psutil.Process]:
        """All descendants of a server."""
        process = self._processes.get(name)
        return psutil.Process(process.pid).children(recursive=True) if process else []


def wait_for_port(address: str, port: int, process: subprocess.Popen[bytes]) -> None:
    def listens() -> bool:
        assert process.poll() is None, f"{process.args[0]} ended: {process.returncode}"
        with contextlib.suppress(OSError):
            socket.create_connection((address, port), 1).close()
            return True
        return False

    wait_until(listens, 200.0)
