"""Fixtures of the tests that run main.py against Flame."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import gymnasium
import hypothesis
import pytest

from tests.flame_fixtures import (
    EXECUTORS,
    HURRIED,
    MY_ENV,
    MY_WRAPPERS,
    SECRET,
    Flame,
    real_cluster,
)
from tests.helpers import ROOT, copied_package, finished_run, run_here
from tests.memory_flame import MemoryFlame

# Whether data come quickly says how busy the machine is.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")


def pytest_configure(config: pytest.Config) -> None:
    """A suite in the background of a shell ignores SIGINT, and so would all that it starts.

    Where PYTHONDONTWRITEBYTECODE is set, each of the many processes that tests start would compile
    torch's source anew, which takes as long as importing it: they keep what they compile in a
    folder of the suite's own.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        folder = tempfile.TemporaryDirectory(prefix="bytecode-", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        os.environ["PYTHONPYCACHEPREFIX"] = folder.name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: with several processes side by side, none is left for the end."""
    items.sort(key=lambda item: "2000_iterations" not in item.name)


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's folder: the program, an environment of their own, and what must not travel."""
    folder = copied_package(tmp_path_factory.mktemp("project"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "hurried.py").write_text(HURRIED)
    (folder / "my_env.py").write_text(MY_ENV)
    (folder / "my_wrappers.py").write_text(MY_WRAPPERS)
    # Its ids are others than those of tests.goals, which this process may have, too.
    goals = (ROOT / "tests" / "goals.py").read_text().replace("-v0", "-v1")
    (folder / "goals.py").write_text(goals)
    (folder / ".env").write_text(f"PASSWORD={SECRET}")
    (folder / "flame_rl" / "actor" / ".env").write_text(f"PASSWORD={SECRET}")
    (folder / "id_rsa").write_text(SECRET)
    (folder / "data.bin").write_bytes(SECRET.encode() + os.urandom(3_000_000))
    (folder / "runs" / "old").mkdir(parents=True)
    (folder / "runs" / "old" / "weights.safetensors").write_text(SECRET)
    (folder / "link").symlink_to(Path.home())
    return folder


@pytest.fixture(scope="session")
def no_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a torch that cannot be imported, as on an executor."""
    folder = tmp_path_factory.mktemp("no_torch")
    (folder / "torch.py").write_text("raise ImportError('torch is not for executors')")
    return folder


@pytest.fixture(scope="module")
def memory(no_torch: Path) -> Iterator[Flame]:
    with MemoryFlame(EXECUTORS, worker_path=[no_torch]) as memory:
        yield Flame(memory.environment, memory)


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
        yield Flame(environment)


@pytest.fixture(scope="session")
def local(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bytes]:
    """What a run of these flags writes on this machine without workers: the reference."""
    runs: dict[tuple[str, ...], bytes] = {}

    def metrics(*flags: str) -> bytes:
        if flags not in runs:
            folder = tmp_path_factory.mktemp("local")
            words = (*flags, "--local", "--workers", "0", "--output", "run")
            # After all others: of the project, only the environments are wanted.
            with (
                mock.patch.object(sys, "path", [*sys.path, str(project)]),
                mock.patch.dict(gymnasium.registry),
            ):
                done = run_here(*words, cwd=folder, environment={"STEP_SECONDS": "0"})
            # Other tests have modules of these names.
            for name in ("my_env", "my_wrappers", "goals"):
                sys.modules.pop(name, None)
            assert done.returncode == 0, done.stderr
            runs[flags] = (folder / "run" / "metrics.csv").read_bytes()
        return runs[flags]

    return metrics


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    """The folder of the run `tests.runs.WHOLE`, which nothing interrupts."""
    from tests.runs import WHOLE

    return finished_run(tmp_path_factory, *WHOLE, "--workers", "0")
