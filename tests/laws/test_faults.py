"""Workers, simulators and updates that fail: what a run does, and that nothing of it is seen."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest

from flame_rl.actor.randomness import reset_seed
from flame_rl.actor.worker.supervisor import Limits
from flame_rl.backends.tasks import Deadlines
from flame_rl.run.checkpoint import find_checkpoint
from tests.helpers import (
    PIPES,
    ROOT,
    SOON,
    environment_id,
    finished_run,
    run_here,
    run_ok,
    start_main,
    table,
)
from tests.runs import SLOWLY, WHOLE, assert_same_run, rows, saved_weights, survivors, wait_until

pytestmark = pytest.mark.faults


ITERATIONS = 9
RUN = (
    *("--env", environment_id("Poisoned"), "--episodes-per-iter", "16", "--seed", "7"),
    *("--hidden-sizes", "6", "--checkpoint-every", "4", "--output", "run"),
    *("--iterations", str(ITERATIONS)),
)
# The episode that faults happen in.
ITERATION, INDEX = 5, 3
SEED = reset_seed(7, ITERATION, INDEX)


def poison(kind: str, seed: int = SEED) -> dict[str, str]:
    return {"FAULT_KIND": kind, "FAULT_SEED": str(seed)}


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    """The folder of the run without faults."""
    return finished_run(tmp_path_factory, *RUN, "--workers", "0")


def retries(run: Path) -> int:
    return sum(int(row["retries"]) for row in table(run / "timing.csv"))


# Workers that die, hang, leak.


def test_six_workers_killed_in_a_run(tmp_path):
    arguments = (*RUN, "--iterations", "20")
    run_ok(*arguments, "--workers", "0", "--output", "clean", cwd=tmp_path)
    process = start_main(*arguments, "--workers", "2", cwd=tmp_path, environment=SLOWLY, **PIPES)
    random = np.random.default_rng(3)
    learner, run = psutil.Process(process.pid), tmp_path / "run"
    for kill in range(6):
        # One iteration is whole between two kills, so that none meets one episode three times.
        count = max(rows(run), 1)
        wait_until(lambda: rows(run) > count or process.poll() is not None)  # noqa: B023
        time.sleep(random.uniform(0, 0.15))
        assert process.poll() is None, f"the run ended before kill {kill}"
        random.choice(learner.children()).kill()
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert_same_run(run, tmp_path / "clean")
    assert retries(run) >= 3  # a worker may have been idle
    assert f"Tasks sent again: {retries(run)}\n" in output


@pytest.mark.parametrize(("workers", "deadline"), [(1, 3), (2, 600)])
def test_a_hanging_simulator_is_killed_at_the_deadline(clean, tmp_path, workers, deadline):
    """Where another worker has nothing to do, it need not be waited for."""
    began = time.monotonic()
    done = run_ok(
        *(*RUN, "--workers", str(workers), "--task-timeout", str(deadline)),
        cwd=tmp_path,
        environment=poison("hang") | {"FAULT_MARKER": str(tmp_path / "marker")},
    )
    assert time.monotonic() - began < 300 and (tmp_path / "marker").exists()
    if workers == 1:
        assert time.monotonic() - began > deadline
        assert retries(tmp_path / "run") == 1 and "Tasks sent again: 1\n" in done.stdout
    assert_same_run(tmp_path / "run", clean)


def test_the_deadline_follows_the_longest_task_and_the_number_of_episodes():
    deadlines = Deadlines(None, episodes=5, megabytes=6)
    assert deadlines.limits() == Limits(1, 600.0, 5, 6)
    for seconds, deadline in ((0.5, 60.0), (75.0, 750.0), (2.0, 750.0)):
        deadlines.note(deadlines.limits(1), seconds, None)
        assert deadlines.limits(4).deadline == deadline
    assert deadlines.limits(40).deadline == 2 * 40 * 75.0
    # Side by side they take less than one after another.
    deadlines.note(deadlines.limits(40), 1353.0, None)
    assert deadlines.limits(40).deadline == deadlines.limits(1).deadline == 13530.0
    fixed = Deadlines(3.0, episodes=5, megabytes=6)
    fixed.note(fixed.limits(1), 100.0, None)
    assert fixed.limits(50).deadline == 3.0


def test_a_killed_task_stretches_the_deadline_within_bounds_until_one_of_its_size_succeeds():
    deadlines = Deadlines(None, episodes=5, megabytes=6)
    deadlines.note(deadlines.limits(1), 10.0, None)
    limits = deadlines.limits(20)
    assert limits.deadline == 400.0
    for _ in range(2):  # killed together
        deadlines.note(limits, 1.0, "timeout")
    deadlines.note(deadlines.limits(1), 10.0, None)
    assert deadlines.limits(20).deadline == 800.0
    for _ in range(3):
        deadlines.note(deadlines.limits(20), 1.0, "timeout")
    assert deadlines.limits(20).deadline == 1600.0
    deadlines.note(deadlines.limits(20), 30.0, None)
    assert deadlines.limits(20).deadline == 300.0


def test_a_leaking_worker_is_replaced(tmp_path):
    """40 episodes leak 1.2 GB in all; a worker may have 400 MB."""
    arguments = (*RUN, "--env", environment_id("Leaking"), "--iterations", "5")
    arguments = (*arguments, "--episodes-per-iter", "8")
    calm = {"FAULT_LEAK_MEGABYTES": "0"}
    run_ok(*arguments, "--workers", "0", "--output", "clean", cwd=tmp_path, environment=calm)

    log, done = tmp_path / "log", threading.Event()
    environment = {"FAULT_LOG": str(log), "FAULT_LEAK_MEGABYTES": "30"}
    peak = 0

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.03):
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    # Until it is a worker it shows the memory of this process.
                    if "flame_rl.actor.worker.process" in child.cmdline():
                        peak = max(peak, child.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        ended = run_here(
            *(*arguments, "--workers", "1", "--worker-megabytes", "400"),
            cwd=tmp_path,
            environment=environment,
        )
    finally:
        done.set()
        watcher.join()
    assert ended.returncode == 0, ended.stderr
    assert_same_run(tmp_path / "run", tmp_path / "clean")
    assert retries(tmp_path / "run") == 0
    assert 300e6 < peak < 650e6  # a task of eight after 400 were nearly reached
    assert len(Counter(log.read_text().split())) >= 3


ORPHAN = """
import os, sys, threading, time
from flame_rl.wire import codec
from flame_rl.actor.worker.supervisor import Limits, SupervisedWorker
from tests.helpers import environment_id, random_snapshot, request_for

def collect():
    snapshot, request = random_snapshot(1, 2, False), request_for(environment_id({name!r}))
    encoded = codec.encode_snapshot(snapshot), codec.encode_request(request)
    worker.collect(*encoded, Limits(3, 600, 1000, 4096))

worker = SupervisedWorker()
threading.Thread(target=collect, daemon=True).start()
while worker.pid is None:
    time.sleep(0.001)
time.sleep({seconds})
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("name", "kind", "seconds"),
    [
        ("Poisoned", "hang in C", 2),  # no other thread of the worker has a chance
        ("Family", "hang", 2),  # the simulator has a process of its own
    ],
    ids=["in C", "engine"],
)
def test_nothing_outlives_a_learner_that_is_killed(name, kind, seconds):
    tag = uuid.uuid4().hex
    environment = os.environ | poison(kind, "any") | {"FAULT_TAG": tag}
    code = ORPHAN.format(name=name, seconds=seconds)
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment)
    assert killed.returncode == -signal.SIGKILL
    left = survivors(tag)
    for process in left:
        process.kill()
    assert left == []


# Environments that hold something: a server, a port, a licence.


SERVER = (*RUN, "--env", environment_id("Server"), "--iterations", "3")


def assert_all_closed(log: Path) -> None:
    """Each in the process that made it, and none twice."""
    events = Counter(log.read_text().split("\n")[:-1])
    made = {event.split()[1]: count for event, count in events.items() if "made" in event}
    closed = {event.split()[1]: count for event, count in events.items() if "closed" in event}
    assert closed == made and made


@pytest.mark.parametrize("workers", ["0", "2"])
def test_environments_are_closed(workers, tmp_path):
    """At the end of a run and of an evaluation, and where a worker is replaced."""
    environment = {"SERVER_LOG": str(tmp_path / "log")}
    flags = ("--worker-episodes", "20", "--workers", workers)
    for words in ((*SERVER, *flags), ("evaluate", "run", "--episodes", "3", *flags[2:])):
        run_ok(*words, cwd=tmp_path, environment=environment)
        assert_all_closed(tmp_path / "log")


def test_environments_are_closed_after_ctrl_c(tmp_path):
    environment = SLOWLY | {"SERVER_LOG": str(tmp_path / "log")}
    flags = ("--iterations", "1000", "--workers", "2")
    process = start_main(
        *(*SERVER, *flags), cwd=tmp_path, environment=environment, stdout=subprocess.DEVNULL
    )
    wait_until(lambda: rows(tmp_path / "run") > 1)
    process.send_signal(signal.SIGINT)
    assert process.wait(600) == 130
    assert_all_closed(tmp_path / "log")


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_close_that_fails_costs_a_word(workers, clean, tmp_path, capfd):
    environment = {"SERVER_CLOSE": "raise"}
    flags = ("--workers", workers, "--iterations", str(ITERATIONS))
    done = run_ok(*SERVER, *flags, cwd=tmp_path, environment=environment)
    words = "Server-v0: close raised RuntimeError: no such window"
    assert words in done.stderr + capfd.readouterr().err
    assert_same_run(tmp_path / "run", clean)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--workers", "1", "--slots", "1"), None),
        (("--workers", "1"), "FileExistsError.*number 2 in this process.*--slots 1"),
        (("--workers", "2", "--slots", "1"), "FileExistsError(.*\n)+.*--workers 1 --slots 1"),
    ],
)
def test_an_environment_of_which_only_one_can_exist(flags, words, clean, tmp_path):
    environment = {"SERVER_PORT": str(tmp_path / "port")}
    if "2" in flags:  # the first worker could play all episodes before the second has started
        environment["SERVER_RIVAL"] = str(tmp_path / "rival")
    arguments = (*SERVER, "--iterations", str(ITERATIONS), *flags)
    done = run_here(*arguments, cwd=tmp_path, environment=environment)
    if words is None:
        assert done.returncode == 0, done.stderr
        assert_same_run(tmp_path / "run", clean)
    else:
        assert done.returncode == 2 and re.search(words, done.stderr), done.stderr
    assert not (tmp_path / "port").exists()


# An episode that fails every time.


def fail_on_one_episode(kind: str, tmp_path: Path, words: list[str]):
    """Runs into it; gives the flags of the command that was printed, and the fault."""
    words_of_run = (*RUN, "--output", "my run", "--workers", "2")
    done = run_here(*words_of_run, cwd=tmp_path, environment=poison(kind))
    assert done.returncode == 1
    for word in [
        "failed in 3 attempts",
        "environment tests.environments:Poisoned-v0",
        f"iteration {ITERATION}, episode {INDEX}",
        f"seed {SEED}",
        *words,
    ]:
        assert word in done.stderr, word
    checkpoint, damaged = find_checkpoint(tmp_path / "my run")
    assert checkpoint.totals.iterations == ITERATION and not damaged
    assert rows(tmp_path / "my run") == 1 + ITERATION
    (command,) = re.findall(r"^ +uv run main\.py (.*)$", done.stderr, re.MULTILINE)
    command = shlex.split(command)
    assert command == ["--resume", "my run", "--reproduce", str(INDEX)]
    return command, poison(kind)


def mended_goes_on(clean: Path, tmp_path: Path) -> None:
    """Without the fault, the run comes to its end as if there had never been one."""
    run_ok("--resume", "my run", cwd=tmp_path)
    assert_same_run(tmp_path / "my run", clean)


def test_an_episode_that_raises_every_time(clean, tmp_path):
    words = ["Traceback", "environments.py", "RuntimeError: the robot fell over", "step 2"]
    command, fault = fail_on_one_episode("raise", tmp_path, words)
    before = (tmp_path / "my run" / "metrics.csv").read_bytes()
    again = run_here(*command, cwd=tmp_path, environment=fault)
    assert again.returncode == 1
    for word in [*words, f"iteration {ITERATION}, episode {INDEX}", f"seed {fault['FAULT_SEED']}"]:
        assert word in again.stderr
    assert (tmp_path / "my run" / "metrics.csv").read_bytes() == before
    mended = run_ok(*command, cwd=tmp_path)
    assert "nothing failed" in mended.stdout
    mended_goes_on(clean, tmp_path)


def test_an_episode_that_crashes_every_time(clean, tmp_path):
    words = ["died by SIGSEGV", "Fatal Python error: Segmentation fault", "environments.py"]
    command, fault = fail_on_one_episode("segfault", tmp_path, words)
    process = start_main(*command, cwd=tmp_path, environment=fault, stdout=subprocess.DEVNULL)
    assert process.wait(600) == -signal.SIGSEGV  # in one process: under a debugger, if one likes
    mended_goes_on(clean, tmp_path)


def test_an_update_that_is_refused_ends_the_run_and_leaves_sound_files(clean, tmp_path):
    done = run_here(*(*RUN, "--workers", "0"), cwd=tmp_path, environment=poison("enormous"))
    assert done.returncode == 1
    for word in ("the update was refused", "rewards or observations of enormous", "try a tenth"):
        assert word in done.stderr
    run = tmp_path / "run"
    checkpoint, damaged = find_checkpoint(run)
    assert not damaged and checkpoint.totals.iterations == ITERATION
    assert rows(run) == 1 + ITERATION
    assert "nan" not in (run / "metrics.csv").read_text()
    assert all(np.isfinite(array).all() for array in saved_weights(run).values())
    run_ok("--resume", "run", cwd=tmp_path)
    assert_same_run(run, clean)


# Ctrl-C and SIGTERM.


def interrupt(tmp_path: Path, number: signal.Signals, moment: int | float) -> None:
    """One signal, after so many rows if `moment` is an integer, otherwise seconds."""
    tag = uuid.uuid4().hex
    environment = SLOWLY | {"FAULT_TAG": tag}
    if not isinstance(moment, int):  # Python's own start is part of it
        environment["PYTHONPATH"] = str(ROOT)
    process = start_main(
        *(*WHOLE, "--workers", "2", "--output", "run"),
        cwd=tmp_path,
        environment=environment,
        **PIPES,
    )
    if isinstance(moment, int):
        wait_until(lambda: rows(tmp_path / "run") >= moment)
    else:
        time.sleep(moment)
    assert process.poll() is None, process.stderr.read()
    began = time.monotonic()
    process.send_signal(number)
    output, errors = process.communicate(timeout=600)
    assert time.monotonic() - began < SOON
    if isinstance(moment, int):
        assert "Training Interrupted!" in output and "Final Mean Reward" in output
        assert re.search(
            r"Saved after \d+ iterations; go on with:\n.*main.py --resume run\n", output
        )
    # Before main.py is read, Python itself dies of it, which a shell calls 128 + number, too.
    assert process.returncode in (128 + number, -number), errors
    assert process.returncode > 0 or not (tmp_path / "run").exists()
    assert survivors(tag, seconds=10) == []


def random_moments() -> list:
    random = np.random.default_rng(0)
    return [
        pytest.param(
            (signal.SIGINT, signal.SIGTERM)[number % 2],
            random.uniform(0.05, 4.0) if number % 3 == 0 else int(random.integers(1, 22)),
            marks=pytest.mark.slow,
        )
        for number in range(20)
    ]


@pytest.mark.parametrize(
    ("number", "moment"), [(signal.SIGINT, 0.1), (signal.SIGTERM, 12), *random_moments()]
)
def test_one_signal_at_any_moment(number, moment, whole, tmp_path):
    """Whatever it leaves is taken up, and is the run that never stopped."""
    interrupt(tmp_path, number, moment)
    run = tmp_path / "run"
    if not run.exists():
        return
    if isinstance(moment, int):
        # Saved to the last row: nothing has to be computed again.
        assert find_checkpoint(run)[0].totals.iterations == rows(run) - 1
    done = run_ok("--resume", "run", cwd=tmp_path)
    # Before the first update there was nothing to save.
    assert done.stderr == "" or "begins at the beginning" in done.stderr
    assert_same_run(run, whole)


@pytest.mark.parametrize(
    "words", [("--help",), ("--env", environment_id("Slow"), "--workers", "1")]
)
def test_ctrl_c_is_not_lost_in_an_import(words, tmp_path):
    """Of a library that goes on whatever another import raises: tyro for --help, else torch."""
    (tmp_path / ("tyro.py" if words == ("--help",) else "torch.py")).write_text(
        "import pathlib, time\n"
        "pathlib.Path('importing').touch()\n"
        "try:\n"
        "    time.sleep(60)\n"
        "except BaseException:\n"
        "    raise SystemExit(7)\n"
    )
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    process = start_main(*words, cwd=tmp_path, environment={"PYTHONPATH": path})
    wait_until((tmp_path / "importing").exists)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(100) == 130 and not (tmp_path / "runs").exists()
    assert psutil.wait_procs(children, timeout=SOON)[1] == []


@pytest.mark.slow
def test_soak_of_2000_iterations(tmp_path):
    """A worker is killed now and then; memory, files, threads and processes of the learner stay."""
    iterations, run = 2000, tmp_path / "run"
    process = start_main(
        *("--env", environment_id("Poisoned"), "--episodes-per-iter", "4", "--workers", "2"),
        *("--hidden-sizes", "4", "--checkpoint-every", "20", "--output", "run"),
        *("--iterations", str(iterations)),
        cwd=tmp_path,
        environment={"FAULT_SLEEP": "0.0005"},
        **PIPES,
    )
    learner, random = psutil.Process(process.pid), np.random.default_rng(5)
    samples, kills, next_kill = [], 0, 50
    while process.poll() is None:
        done = rows(run) - 1
        with contextlib.suppress(psutil.Error):
            children = learner.children()
            if 200 < done < iterations - 1:
                memory, files = learner.memory_info().rss, learner.num_fds()
                samples.append((done, memory, files, learner.num_threads(), len(children)))
            if done >= next_kill and children:
                random.choice(children).kill()
                kills += 1
                next_kill = done + 100
        time.sleep(0.1)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert rows(run) == 1 + iterations and kills >= 5
    done, memory, files, threads, children = np.array(samples, float).T
    assert len(done) > 20
    growth = np.polyfit(done, memory, 1)[0] * iterations
    assert growth < 8e6, f"{growth / 1e6:.1f} MB in {iterations} iterations"
    half = len(done) // 2
    assert np.median(files[half:]) <= np.median(files[:half]) + 1
    assert files.max() - np.median(files) <= 6  # a worker being replaced has some for a moment
    assert np.median(threads[half:]) <= np.median(threads[:half])
    assert threads.max() - np.median(threads) <= 2
    assert children.max() <= 2
