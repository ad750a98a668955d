"""The in-memory Flame answers flamepy as Flame v0.6.0 does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import flamepy.core.cache as cache
import flamepy.core.client as client
import pytest
from flamepy.core.types import FlameError
from flamepy.proto.types_pb2 import ExecutorState
from flamepy.runner import Runner
from flamepy.runner.runner import RunnerService

from tests.flame_fixtures import wait_until
from tests.memory_flame import MemoryFlame

JOB = """
import os, time

def nap(seconds):
    time.sleep(seconds)
    return os.getpid()
"""


@pytest.fixture
def flame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryFlame]:
    """One executor, and flamepy of this process connected to it; the current folder is a package
    with the module `job`."""
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with MemoryFlame(executors=1) as flame:
        for name, value in flame.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(client.ConnectionInstance, "_connection", None)
        monkeypatch.setattr(cache, "_context_cache", None)
        yield flame
        if client.ConnectionInstance._connection is not None:
            client.ConnectionInstance._connection.close()


def deploy() -> tuple[Runner, RunnerService]:
    import job

    runner = Runner("test-app", fail_if_exists=True, dependencies=[])
    return runner, runner.service(job.nap)


def test_service_refuses_to_close_while_a_task_runs(flame: MemoryFlame) -> None:
    assert client.get_application("test-app") is None
    runner, nap = deploy()
    assert nap(0).get() == flame.worker_pids()[0]
    assert {"job.py", "pyproject.toml"} <= set(flame.uploaded_package())

    running, pending = nap(1.0), nap(0)
    session = nap._session
    wait_until(lambda: client.get_session(session.id).running == 1)
    with pytest.raises(FlameError, match="Cannot close session with running tasks"):
        session.close()
    with pytest.raises(FlameError, match="has open sessions"):
        client.unregister_application("test-app")
    assert running.get() == pending.get()

    with pytest.raises(FlameError, match="Task failed without error message"):
        nap("not a number").get()
    assert "'str' object" in session.get_task("4").events[-1].message
    assert flame.finished_tasks == {"Succeed": 3, "Failed": 1}

    runner.close()
    assert (flame.applications, flame.sessions, flame.objects) == ([], {}, {})
    wait_until(lambda: not flame.worker_pids())


def test_executor_with_a_dead_worker_is_a_black_hole(flame: MemoryFlame) -> None:
    runner, nap = deploy()
    nap(0).get()
    task = nap(30)
    wait_until(lambda: client.get_session(nap._session.id).running == 1)
    os.kill(flame.worker_pids()[0], signal.SIGKILL)
    began = time.monotonic()
    for failed in (task, nap(0), nap(0)):
        with pytest.raises(FlameError, match="Task failed without error message"):
            failed.get()
    assert time.monotonic() - began < 20
    wait_until(lambda: not flame.worker_pids())
    runner.close()
    # Its slot is lost: it unbinds for ever.
    wait_until(
        lambda: (
            [e.status.state for e in client.list_executors()] == [ExecutorState.ExecutorUnbinding]
        )
    )
