"""A real Flame cluster of several nodes on this machine, each a container with a host name, an
address and a limit of cores of its own. The image is empty: a node sees this machine's programs,
read-only."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import tarfile
import uuid
from pathlib import Path

import pytest
from flamepy.proto import frontend_pb2 as requests
from flamepy.proto import types_pb2 as pb

from tests.flame_fixtures import RealFlame, frontend_of

IMAGE = "flame-rl-empty-node"
# A node sees these of this machine; what it writes goes to folders of its own.
SEEN = ("/usr", "/etc", "/root", "/home", "/opt")


def docker(*words: str) -> str:
    """What the command prints. Raises RuntimeError with what it says of a failure."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"docker {' '.join(words)}: {done.stderr}")
    return done.stdout.strip()


def make_image() -> None:
    """An image of folders and links alone, for bind mounts; nothing is pulled."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name in ("bin", "lib", "lib64", "sbin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
        for name in ("tmp", *(each.strip("/") for each in SEEN)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
    command = ["docker", "import", "-", IMAGE]
    subprocess.run(command, input=content.getvalue(), check=True, capture_output=True)


def wrong_clock(offset: str) -> dict[str, str]:
    """The variables that make the time of day of a process wrong by `offset`, such as -2h. Skips
    the test where libfaketime is not installed."""
    library = next(Path("/usr/lib").glob("**/libfaketimeMT.so.1"), None)
    if library is None:
        pytest.skip("wrong clocks need libfaketime")
    return {"LD_PRELOAD": str(library), "FAKETIME": offset, "DONT_FAKE_MONOTONIC": "1"}


class FlameNodes(RealFlame):
    """Session manager and object cache of this machine, and an executor manager in each container.

    Skips the test where Flame or docker is missing.
    """

    servers = ("object-cache", "session-manager")

    def __init__(self, folder: Path, cache_clock: str = "") -> None:
        super().__init__(folder, executors=64)
        if cache_clock:
            self._variables["object-cache"] = wrong_clock(cache_clock)
        if (
            shutil.which("docker") is None
            or subprocess.run(["docker", "info"], capture_output=True).returncode
        ):
            pytest.skip("several nodes need docker, with a daemon that answers")
        make_image()
        self._network = f"flame-rl-{uuid.uuid4().hex[:8]}"
        docker("network", "create", self._network)
        self._ending.callback(docker, "network", "rm", self._network)
        form = "{{(index .IPAM.Config 0).Gateway}} {{slice .Id 0 12}}"
        gateway, network = docker("network", "inspect", self._network, "-f", form).split()
        # The servers listen where the containers can reach them.
        text = self._config.read_text()
        text = text.replace("127.0.0.1", gateway).replace(
            "network_interface: lo", f"network_interface: br-{network}"
        )
        self._config.write_text(text)
        self._address = gateway
        self.environment = {
            name: value.replace("127.0.0.1", gateway) for name, value in self.environment.items()
        }

    def start_node(self, name: str, broken: bool = False, clock: str = "") -> None:
        """Start an executor manager of two cores under this host name; `broken`: it cannot install
        packages; `clock`: how wrong its clock is, as libfaketime takes it."""
        home = self._folder / "nodes" / name
        if not home.exists():
            (home / "data").mkdir(parents=True)
            for part in ("bin", "lib"):
                (home / part).symlink_to(self._home / part)
            (home / "data" / "cache").symlink_to(self._home / "data" / "cache")
        mounts = [
            word for path in SEEN if Path(path).is_dir() for word in ("-v", f"{path}:{path}:ro")
        ]
        writable = [self._folder, self._home / "data" / "cache"]
        mounts += [word for path in writable for word in ("-v", f"{path}:{path}")]
        variables = self._environment | {
            "FLAME_HOME": home,
            "FLAME_SOCKET_DIR": "/tmp",
            "RUST_LOG": "info",
            "HOME": "/tmp",
            "PWD": home,
            "PYENV_DIR": home,
            "PATH": os.environ["PATH"],
            "UV_LINK_MODE": "copy",
        }
        if broken:
            variables["UV_CONSTRAINT"] = "/nowhere"
        if clock:
            variables |= wrong_clock(clock)
        docker(
            *("run", "-d", "--name", f"{self._network}-{name}", "--hostname", name),
            *("--network", self._network, "--cpus", "2", "--tmpfs", "/tmp:exec"),
            *mounts,
            *(word for each in variables.items() for word in ("-e", "{}={}".format(*each))),
            *("-w", str(home), IMAGE, f"{self._home}/bin/flame-executor-manager"),
            *("--config", str(self._config)),
        )
        self._ending.callback(self.kill_node, name)

    def kill_node(self, name: str) -> None:
        """As if its plug were pulled. Killing one that is gone does nothing."""
        with contextlib.suppress(RuntimeError):
            docker("rm", "-f", f"{self._network}-{name}")

    def nodes(self) -> dict[str, str]:
        """The state of each, as the session manager names it."""
        with frontend_of(self.environment) as frontend:
            nodes = frontend.ListNodes(requests.ListNodesRequest()).nodes
        return {node.metadata.name: pb.NodeState.Name(node.status.state) for node in nodes}

    def bound(self) -> list[str]:
        """The nodes of the executors that are bound to a session."""
        with frontend_of(self.environment) as frontend:
            executors = frontend.ListExecutor(requests.ListExecutorRequest()).executors
        return [e.spec.node for e in executors if e.status.state == pb.ExecutorBound]
