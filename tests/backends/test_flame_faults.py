"""What a run on Flame survives, and how it ends where it cannot: faults in every part of a cluster.

Each test runs main.py in a process of its own, on the in-memory Flame and, marked `cluster`, on
real servers started for that test alone. Where a run ends well, metrics.csv has the bytes of an
undisturbed run on this machine.
"""

import contextlib
import os
import random
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.flame_fixtures import (
    Finished,
    Flame,
    RealFlame,
    finish,
    processes_with,
    rows,
    run,
    start,
    wait_until,
)
from tests.helpers import SOON
from tests.memory_flame import MemoryFlame

pytestmark = pytest.mark.faults

# Two executors have two or three seconds of work in an iteration: time to be hurt in.
PACE = ("--env", "my_env:Pace-v0", "--iterations", "5", "--episodes-per-iter", "24")
# One task takes three seconds: it is still running when something happens.
SLOW = ("--env", "my_env:SlowPace-v0", "--iterations", "2", "--episodes-per-iter", "12")


@contextlib.contextmanager
def cluster(
    kind: str, folder: Path, executors: int = 2, worker_path: list[Path] | None = None
) -> Iterator[Flame]:
    """Of this test alone, because the test breaks it."""
    if kind == "memory":
        with MemoryFlame(executors, worker_path=worker_path) as memory:
            yield Flame(memory.environment, memory)
        return
    folder.mkdir()
    with RealFlame(folder, executors) as real:
        yield Flame(real.environment, real=real)


@pytest.fixture(params=["memory", pytest.param("cluster", marks=pytest.mark.cluster)])
def fragile(request: pytest.FixtureRequest, no_torch: Path, tmp_path: Path) -> Iterator[Flame]:
    """A cluster that may be broken."""
    with cluster(request.param, tmp_path / "cluster", worker_path=[no_torch]) as flame:
        yield flame


@pytest.fixture
def begin(project: Path, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a run on the cluster, and waits until it has reported that many iterations and both
    executors have their collectors. Where `hurries`, it asks the in-memory Flame more often."""

    def start_run(
        flame: Flame, *flags: str, iterations: int = 1, hurries: bool = False
    ) -> subprocess.Popen[str]:
        script = "hurried.py" if hurries and flame.memory is not None else "main.py"
        process = start(project, tmp_path, flame.environment, *(flags or PACE), script=script)
        wait_for(process, lambda: rows(tmp_path) >= iterations and len(flame.collectors()) == 2)
        return process

    return start_run


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Chance, a different one each time; what it was is printed if the test fails."""
    seed = int(os.environ.get("FAULT_SEED", time.time_ns() % 1_000_000))
    print(f"FAULT_SEED={seed}")
    return random.Random(seed)


def wait_for(process: subprocess.Popen[str], condition: Callable[[], object]) -> None:
    wait_until(condition, 900.0, process)


def imports_torch(process: subprocess.Popen[str]) -> bool:
    """Whether the libraries of torch are being loaded, or were."""
    with contextlib.suppress(psutil.Error):
        return any("torch" in file.path for file in psutil.Process(process.pid).memory_maps())
    return False


def discard_printed(process: subprocess.Popen[str]) -> None:
    """Take what the run has printed until now; the next line that is read is a later one."""
    while select.select([process.stdout], [], [], 0)[0]:
        if not os.read(process.stdout.fileno(), 1 << 16):
            return


def go_on_here(project: Path, folder: Path) -> Finished:
    """Resume the run in `folder` on this machine."""
    flags = ("--resume", "run", "--local", "--workers", "0")
    return run(project, folder, {"STEP_SECONDS": "0"}, *flags)


def assert_undisturbed(finished: Finished, expected: bytes) -> None:
    assert finished.code == 0, finished.err
    assert "Training Complete!" in finished.out
    assert finished.metrics == expected


def assert_gone(folder: Path) -> None:
    """No process of a run whose HOME is the folder is left, soon."""
    wait_until(lambda: not processes_with(str(folder)), 50.0)


# Processes die


def test_killed_collectors_cost_tasks_and_nothing_else(fragile, project, local, tmp_path, dice):
    """Four times in a run, at most twice in an iteration: an episode has three attempts."""
    process = start(project, tmp_path, fragile.environment, *PACE)
    wait_for(process, fragile.collectors)
    workers = set(fragile.worker_pids())
    killed: list[int] = []
    for kill in range(4):
        wait_for(process, lambda kill=kill: rows(tmp_path) >= kill // 2)
        time.sleep(dice.uniform(0.1, 0.4))
        wait_for(process, lambda: [c for c in fragile.collectors() if c.pid not in killed])
        victim = dice.choice([c for c in fragile.collectors() if c.pid not in killed])
        killed.append(victim.pid)
        victim.kill()
    assert workers <= set(fragile.worker_pids())
    finished = finish(process, tmp_path)
    assert_undisturbed(finished, local(*PACE))
    # One that had no task at that moment costs none.
    retries = finished.timing("retries")
    assert 2 <= retries <= 4
    assert f"\n  Tasks sent again: {retries}\n" in finished.out
    if fragile.memory is not None:
        assert fragile.memory.manager.finished["Failed"] == 0
    fragile.assert_nothing_left()


def test_executor_with_a_dead_worker_is_left_for_a_new_session(fragile, begin, local, tmp_path):
    # At half speed there must be time to see that the executor does not come back.
    flags = (*PACE, "--iterations", "9") if fragile.memory is None else PACE
    process = begin(fragile, *flags, hurries=True)
    first = set(fragile.sessions())
    assert len(first) == 1
    os.kill(fragile.worker_pids()[0], signal.SIGKILL)
    wait_for(process, lambda: set(fragile.sessions()) - first)
    finished = finish(process, tmp_path)
    assert_undisturbed(finished, local(*flags))
    assert finished.timing("retries") >= 3
    assert finished.out.count("1 of 2 executors are working (1 unbinding).") == 1
    fragile.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["none works", "one works"])
def test_executors_that_cannot_start_again_end_no_run(fault, begin, no_torch, local, tmp_path):
    """Flame gives up starting executors for a session of a run that had executors before."""
    flags = (*PACE, "--iterations", "9")
    with cluster("memory", tmp_path / "cluster", worker_path=[no_torch]) as flame:
        process = begin(flame, *flags)
        first = set(flame.sessions())
        if fault == "none works":
            # The session that follows has the other executor, which cannot be bound at first.
            flame.memory.unbindable = 5
            os.kill(flame.worker_pids()[0], signal.SIGKILL)
            wait_for(process, lambda: len(set(flame.sessions()) - first) == 2)
        else:
            (session,) = (flame.memory.manager.sessions[name] for name in first)
            for _ in range(5):
                flame.memory.manager.binding_failed(session, "third", "transport error")
        finished = finish(process, tmp_path)
        assert_undisturbed(finished, local(*flags))
        flame.assert_nothing_left()


@pytest.mark.parametrize(
    "fault", [pytest.param("executors", marks=pytest.mark.slow), "executor manager"]
)
def test_cluster_without_an_executor_is_told_and_given_up_in_time(
    fault, fragile, begin, project, local, tmp_path
):
    patience = 10 if fragile.memory is None else 4
    flags = (*PACE, "--cluster-patience", str(patience))
    process = begin(fragile, *flags, iterations=2, hurries=True)
    if fault == "executors":
        for pid in fragile.worker_pids():
            os.kill(pid, signal.SIGKILL)
    else:
        fragile.stop("executor-manager")
    began = time.monotonic()
    # It may have waited for the cluster before, while that started.
    discard_printed(process)
    told = ""
    while not told.startswith("Waiting for the cluster"):
        told = process.stdout.readline()
        assert told, process.communicate()
    assert time.monotonic() - began < 150
    assert re.search(r"0 of [12] executors are working \(", told)
    hint = "docs/cluster.md" if fault == "executors" else "Start Flame's executor manager on "
    assert hint in told
    assert int(re.search(r"giving up in (\d+) s", told)[1]) <= patience
    finished = finish(process, tmp_path)
    assert patience - 1 < time.monotonic() - began < 280
    assert finished.code == 1
    assert re.search(r"0 of [12] executors are working", finished.err)
    assert hint in finished.err and "--resume" in finished.err
    assert "Traceback" not in finished.err
    assert_undisturbed(go_on_here(project, tmp_path), local(*PACE))


# Servers go away


@pytest.mark.slow
def test_restarted_servers_cost_time_only(fragile, project, local, tmp_path):
    process = start(project, tmp_path, fragile.environment, *PACE)
    for iteration, server in ((1, "session-manager"), (3, "object-cache")):
        wait_for(process, lambda i=iteration: rows(tmp_path) == i and fragile.collectors())
        fragile.stop(server)
        time.sleep(1.0)
        fragile.start(server)
    finished = finish(process, tmp_path)
    assert_undisturbed(finished, local(*PACE))
    assert finished.timing("retries") >= 2
    fragile.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("killed", [False, True], ids=["alone", "after its executors"])
def test_executor_manager_that_was_away_for_more_than_thirty_seconds(
    killed, begin, local, tmp_path
):
    """Sooner, Flame's own wedges; after it, tasks are queued again. Executors whose processes were
    killed come back in no other way."""
    with cluster("cluster", tmp_path / "cluster") as flame:
        process = begin(flame)
        if killed:
            for pid in flame.worker_pids():
                os.kill(pid, signal.SIGKILL)
            time.sleep(15)
        flame.stop("executor-manager")
        time.sleep(35)
        flame.start("executor-manager")
        finished = finish(process, tmp_path, seconds=2400)
        assert_undisturbed(finished, local(*PACE))
        assert "giving up in 1" in finished.out
        assert finished.out.count("The cluster works.") == 1
        flame.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [False, True], ids=["away", "hangs"])
@pytest.mark.parametrize("server", ["session-manager", "object-cache"])
def test_server_that_does_not_answer_ends_the_run_with_its_name(
    server, hangs, fragile, begin, project, local, tmp_path
):
    """It is gone, or accepts connections and answers nothing."""
    if hangs and fragile.memory is None:
        pytest.skip("only the in-memory Flame can be made to hang")
    impatient = (*PACE, "--cluster-patience", "8", "--task-timeout", "10")
    process = begin(fragile, *impatient, iterations=2)
    began = time.monotonic()
    with hanging(fragile.memory, server) if hangs else contextlib.nullcontext():
        if not hangs:
            fragile.stop(server)
        finished = finish(process, tmp_path, seconds=600)
    assert time.monotonic() - began < 280
    assert finished.code == 1, finished.err
    assert f"its {server.replace('-', ' ')} at " in finished.err
    assert "--resume" in finished.err and "Traceback" not in finished.err
    if not hangs:
        fragile.start(server)
    # The janitor tries on, and what was left is removed when the cluster is back.
    assert_undisturbed(go_on_here(project, tmp_path), local(*PACE))
    fragile.assert_nothing_left(30)


@contextlib.contextmanager
def hanging(memory: MemoryFlame, server: str) -> Iterator[None]:
    """Within the block it accepts connections and answers nothing."""
    with memory.manager.changed if server == "session-manager" else memory.cache.lock:
        yield


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("server", ["session-manager", "object-cache"])
def test_signals_end_a_run_whose_cluster_hangs(
    server, signals, begin, project, local, no_torch, tmp_path, dice
):
    """One within seconds, two at once; what is left there is removed when it answers again."""
    with cluster("memory", tmp_path, worker_path=[no_torch]) as flame:
        process = begin(flame)
        with hanging(flame.memory, server):
            # Into a call that gets no answer, or between two of them.
            time.sleep(dice.uniform(0, 4))
            process.send_signal(signal.SIGINT)
            if signals == 2:
                time.sleep(0.4)
                assert process.poll() is None
                process.send_signal(signal.SIGINT)
            began = time.monotonic()
            finished = finish(process, tmp_path)
            assert time.monotonic() - began < (SOON if signals == 1 else 10)
        assert finished.code == 130, finished.err
        assert "Traceback" not in finished.err
        flame.assert_nothing_left(30)
    if signals == 1:
        assert "Training Interrupted!" in finished.out
        assert "a process in the background goes on trying" in finished.err
        assert_undisturbed(go_on_here(project, tmp_path), local(*PACE))


def test_executor_that_cannot_start_is_reported_within_a_minute(fragile, project, tmp_path):
    """The environment's package is installed here in a version that exists nowhere else."""
    (tmp_path / "ghost_env.py").write_text("import my_env\n")
    about = tmp_path / "cloudpickle-99.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: cloudpickle\nVersion: 99.0\n")
    (about / "RECORD").write_text("ghost_env.py,,\n")
    (about / "top_level.txt").write_text("ghost_env\n")
    environment = fragile.environment | {"PYTHONPATH": str(tmp_path)}
    began = time.monotonic()
    finished = run(project, tmp_path, environment, "--env", "ghost_env:Pace-v0", *PACE[2:])
    assert time.monotonic() - began < 600
    assert finished.code == 1
    for words in (
        "executors cannot start",
        "Session retry limit reached after 5/5 failed attempts",
        "failed to bind session with return_code",
        "cloudpickle==99.0",
    ):
        assert words in finished.err
    assert "Traceback" not in finished.err.partition("Flame reports")[0]
    fragile.assert_nothing_left()


# The user stops it


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "start-up"),
        (signal.SIGTERM, "collecting"),
        pytest.param(signal.SIGTERM, "any", marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_one_signal_saves_cleans_up_and_ends(
    number, moment, fragile, project, local, tmp_path, dice
):
    process = start(project, tmp_path, fragile.environment, *SLOW)
    if moment == "collecting":
        # An executor has its collector before there is anything to collect.
        config = tmp_path / "run" / "config.json"
        wait_for(process, lambda: config.exists() and any(fragile.sessions().values()))
    else:
        # Before main.py is read, a signal is Python's to answer.
        wait_for(process, lambda: imports_torch(process))
    time.sleep(dice.uniform(0, {"start-up": 2.2, "collecting": 2, "any": 8.2}[moment]))
    process.send_signal(number)
    began = time.monotonic()
    finished = finish(process, tmp_path)
    assert time.monotonic() - began < SOON
    assert finished.code == 128 + number
    assert "Traceback" not in finished.err
    fragile.assert_nothing_left()
    assert_gone(tmp_path)
    if moment == "collecting":
        assert "Training Interrupted!" in finished.out
        resumed = go_on_here(project, tmp_path)
        assert_undisturbed(resumed, local(*SLOW))


@pytest.mark.parametrize(
    "kill", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["two signals", "SIGKILL"]
)
def test_what_a_learner_leaves_behind_is_removed_after_its_end(
    kill, fragile, begin, project, local, tmp_path
):
    process = begin(fragile, *SLOW)
    wait_for(process, lambda: any(fragile.sessions().values()))
    if not kill:
        process.send_signal(signal.SIGINT)
        time.sleep(0.4)
        assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
    finished = finish(process, tmp_path)
    assert time.monotonic() - began < SOON
    # The first signal may have ended it just before the second came.
    assert finished.code in ((-signal.SIGKILL,) if kill else (143, 130))
    fragile.assert_nothing_left()
    assert_gone(tmp_path)
    wait_until(lambda: not fragile.collectors(), 50.0)
    if kill:
        assert_undisturbed(go_on_here(project, tmp_path), local(*SLOW))


@pytest.mark.slow
def test_run_of_this_machine_goes_on_on_a_cluster(fragile, project, local, tmp_path):
    flags = (*PACE, "--local", "--workers", "1")
    process = start(project, tmp_path, {}, *flags)
    wait_for(process, lambda: rows(tmp_path) == 1)
    process.kill()
    finish(process, tmp_path)
    resumed = run(project, tmp_path, fragile.environment, "--resume", "run", "--no-local")
    assert "using Flame Runner" in resumed.out
    assert_undisturbed(resumed, local(*PACE))
    fragile.assert_nothing_left()


@pytest.mark.slow
def test_late_results_are_dropped_and_counted(begin, local, no_torch, tmp_path):
    """An executor dies; what the other one sends when its session is left comes too late."""
    with cluster("memory", tmp_path, 2, [no_torch]) as flame:
        process = begin(flame)
        first = set(flame.sessions())
        held: list[str] = []

        def hold_back(key: str) -> None:
            if any(session in key for session in first):
                held.append(key)
                time.sleep(3)

        flame.memory.on_result = hold_back
        wait_for(process, lambda: held)
        os.kill(flame.worker_pids()[0], signal.SIGKILL)
        finished = finish(process, tmp_path)
        assert_undisturbed(finished, local(*PACE))
        assert 1 <= finished.timing("dropped") <= len(held)
        flame.assert_nothing_left()


@pytest.mark.slow
def test_nothing_grows_in_2000_iterations_while_collectors_die(
    project, local, no_torch, tmp_path, dice
):
    iterations = 2000
    flags = ("--env", "my_env:Mine-v0", "--episodes-per-iter", "2", "--hidden-sizes", "4")
    flags = (*flags, "--iterations", str(iterations), "--checkpoint-every", "50")
    seen: list[tuple[int, int, int, int, int]] = []
    kills = 0
    with cluster("memory", tmp_path, 1, [no_torch]) as flame:
        process = start(project, tmp_path, flame.environment, *flags)
        wait_for(process, lambda: rows(tmp_path) >= iterations // 10)
        learner = psutil.Process(process.pid)
        while process.poll() is None and rows(tmp_path) < iterations - 20:
            with contextlib.suppress(psutil.Error):
                seen.append(
                    (
                        rows(tmp_path),
                        learner.memory_info().rss,
                        learner.num_fds(),
                        learner.num_threads(),
                        len(processes_with(flame.environment["FLAME_ENDPOINT"])),
                    )
                )
            if len(seen) % 4 == 0:
                for victim in flame.collectors():
                    victim.kill()
                    kills += 1
            time.sleep(dice.uniform(0.4, 0.8))
        finished = finish(process, tmp_path, seconds=3000)
        assert_undisturbed(finished, local(*flags))
        assert flame.memory.manager.finished["Failed"] == 0
        flame.assert_nothing_left()
    assert len(seen) >= 40 and kills >= 10
    done, memory, files, threads, processes = np.array(seen, float).T
    growth = np.polyfit(done, memory, 1)[0] * iterations
    assert growth < 8e6, f"{growth / 1e6:.1f} MB in {iterations} iterations"
    for name, count in (("files", files), ("threads", threads), ("processes", processes)):
        # A leak grows with the iterations; noise does not.
        assert np.polyfit(done, count, 1)[0] * iterations < 3, name
        # Some are there for the length of a call.
        assert np.ptp(count) <= 6, name
