"""The supervised child: it may die, hang and chatter; its supervisor only ever returns values."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from unittest import mock

import psutil
import pytest

from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.worker import supervisor
from flame_rl.actor.worker.supervisor import Limits, SupervisedWorker, Team
from flame_rl.wire import codec
from flame_rl.wire.messages import CollectFailure, CollectRequest, Environment
from tests.helpers import (
    ROOT,
    SOON,
    assert_same_episodes,
    environment_id,
    plain,
    random_snapshot,
    request_for,
)
from tests.runs import wait_until

SNAPSHOT, POLES = random_snapshot(1, 2, False), random_snapshot(4, 2, False)


@pytest.fixture
def new() -> Iterator[SupervisedWorker]:
    """Whose child has the variables of this test."""
    with closing(SupervisedWorker()) as worker:
        yield worker


@pytest.fixture(scope="module")
def worker() -> Iterator[SupervisedWorker]:
    """Of all tests: whatever happens in one, the next call works."""
    with closing(SupervisedWorker()) as worker:
        yield worker


def collect(worker, request, snapshot=SNAPSHOT, deadline=60.0, withdrawn=lambda: False):
    encoded = codec.encode_snapshot(snapshot), codec.encode_request(request)
    limits = Limits(len(request.indices), deadline, 100_000, 4096)
    return codec.decode_result(worker.collect(*encoded, limits, withdrawn), request)


def test_what_a_simulator_prints_does_not_get_between_the_frames(worker):
    episodes = collect(worker, request_for(environment_id("Chatty"), range(20)))
    assert len(episodes) == 20


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("Kill", "crash", "SIGKILL"),
        ("Segfault", "crash", "SIGSEGV"),
        ("Exit", "simulator", "SystemExit: 3"),
        ("Hang", "timeout", "within 3 s"),
        ("Raise", "simulator", "the robot fell over"),
    ],
)
def test_a_fault_is_a_value_and_the_next_call_works(worker, fault, kind, words):
    deadline = 3.0 if fault == "Hang" else 60.0
    failure = collect(worker, request_for(environment_id(f"{fault}Fault")), deadline=deadline)
    assert isinstance(failure, CollectFailure)
    assert failure.kind == kind and words in failure.message
    if fault == "Segfault":
        assert "environments.py" in failure.traceback  # where it happened
    assert len(collect(worker, request_for(environment_id("ActionReward")))) == 3


def test_a_module_that_cannot_be_imported_shows_its_own_traceback(new, tmp_path, monkeypatch):
    (tmp_path / "broken_env.py").write_text("from math import does_not_exist_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = Environment("broken_env:Mine-v0")
    answer = new.describe(environment, 60, lambda: False)
    failure = codec.decode_description(answer, environment.env_id)
    assert failure.kind == "environment"
    assert "broken_env.py" in failure.traceback and "does_not_exist_anywhere" in failure.traceback


def test_a_frame_of_gigabytes_is_not_waited_for(worker):
    failure = collect(worker, request_for(environment_id("Forger")), deadline=300.0)
    assert failure.kind == "crash" and f"a frame of {1 << 60} bytes" in failure.message
    assert len(collect(worker, request_for(environment_id("ActionReward")))) == 3


def test_a_child_that_does_not_read_is_killed_at_the_deadline(worker):
    """The weights are larger than what a pipe takes."""
    request = request_for(environment_id("ActionReward"))
    large = random_snapshot(1, 2, False, (999,) * 2, version=1)
    collect(worker, request)
    os.kill(worker.pid, signal.SIGSTOP)
    began = time.monotonic()
    failure = collect(worker, replace(request, policy_version=1), large, deadline=1.0)
    assert failure.kind == "timeout" and time.monotonic() - began < 100
    assert not isinstance(collect(worker, request), CollectFailure)


def test_close_in_the_middle_of_a_call_ends_the_child(tmp_path, monkeypatch):
    hangs = tmp_path / "hangs"
    monkeypatch.setenv("FAULT_MARKER", str(hangs))
    worker = SupervisedWorker()
    answers = []
    request = request_for(environment_id("HangFault"))
    thread = threading.Thread(target=lambda: answers.append(collect(worker, request)))
    thread.start()
    wait_until(hangs.exists)
    child = psutil.Process(worker.pid)
    worker.close()
    thread.join(600)
    assert not child.is_running() and answers[0].kind == "stale"
    assert worker.pid is None


def test_a_withdrawn_task_ends_soon_and_its_child_lives_on(worker):
    slow = request_for(environment_id("Slow"), range(3000))
    assert not isinstance(collect(worker, request_for(environment_id("Slow"))), CollectFailure)
    pid = worker.pid
    for _ in range(2):
        began = time.monotonic()
        late = lambda began=began: time.monotonic() - began > 0.5  # noqa: E731
        assert collect(worker, slow, deadline=600, withdrawn=late).kind == "stale"
        assert time.monotonic() - began < SOON
        assert len(collect(worker, request_for(environment_id("Slow")))) == 3
    assert worker.pid == pid


def test_a_child_that_does_not_stop_is_killed(new, tmp_path, monkeypatch):
    hangs = tmp_path / "hangs"
    monkeypatch.setenv("FAULT_MARKER", str(hangs))
    monkeypatch.setattr(supervisor, "CLOSE_SECONDS", 0.5)
    request = request_for(environment_id("HangFault"))
    assert collect(new, request, deadline=600, withdrawn=hangs.exists).kind == "stale"
    assert new.pid is None


def test_an_idle_child_closes_its_environments_when_its_parent_is_killed(tmp_path):
    """As an executor of Flame is, once its session is closed."""
    code = f"""
import os
from flame_rl.actor.worker.supervisor import SupervisedWorker
from tests.actor.test_worker import *
collect(SupervisedWorker(), request_for({environment_id("Server")!r}))
os.kill(os.getpid(), 9)
"""
    log = tmp_path / "log"
    environment = os.environ | {"SERVER_LOG": str(log)}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment)
    wait_until(lambda: log.read_text().count("closed") == log.read_text().count("made"))
    assert "made" in log.read_text()


def test_weights_are_told_apart_by_their_content_and_not_by_their_number(worker):
    """Another learner's state may have as many updates behind it."""
    request = request_for("CartPole-v1", range(3))
    answers = [
        collect(worker, request, random_snapshot(4, 2, False, seed=seed)) for seed in (0, 1, 0)
    ]
    assert answers[0].observations.tobytes() == answers[2].observations.tobytes()
    assert answers[0].observations.tobytes() != answers[1].observations.tobytes()


def test_a_child_that_dies_is_noticed_though_its_own_child_holds_the_pipe(new, tmp_path):
    """And nothing that the simulator started goes on."""
    env_id = environment_id("Forking")
    with mock.patch.dict(os.environ, {"FORKED": str(tmp_path / "pid")}):
        began = time.monotonic()
        failure = collect(new, request_for(env_id, [0]))
    assert failure.kind == "crash" and time.monotonic() - began < 200
    forked = int((tmp_path / "pid").read_text())
    ended = psutil.STATUS_ZOMBIE
    wait_until(lambda: not psutil.pid_exists(forked) or psutil.Process(forked).status() == ended)


def test_a_child_that_dies_before_it_plays_is_told_apart(worker):
    failure = collect(worker, request_for(environment_id("StillBorn"), [0]))
    assert failure.kind == "start" and "SIGKILL" in failure.message


# Several workers that share each task


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team(print)
    team.start()
    yield team
    team.close()


def share(team: Team, request: CollectRequest, workers: int, withdrawn=lambda: False):
    snapshot = SNAPSHOT if request.environment.env_id != "CartPole-v1" else POLES
    limits = Limits(len(request.indices), 600.0, 100_000, 4096, workers)
    encoded = codec.encode_snapshot(snapshot), codec.encode_request(request)
    return codec.decode_result(team.collect(*encoded, limits, withdrawn), request)


def test_they_play_at_the_same_time(team):
    share(team, request_for(environment_id("Slow"), range(3)), 3)
    began = time.monotonic()
    share(team, request_for(environment_id("Slow"), range(30)), 3)
    assert time.monotonic() - began < 4  # one after another 6 s


def test_a_failure_of_one_ends_the_task_with_its_cause(team):
    failure = share(team, request_for(environment_id("KillFault"), range(8)), 2)
    assert failure.kind == "crash"
    request = request_for("CartPole-v1", range(8))
    expected = collect_episodes(POLES, request, plain("CartPole-v1"))
    assert_same_episodes(share(team, request, 2), expected)


def test_a_task_is_withdrawn_from_all(team):
    began = time.monotonic()
    request = request_for(environment_id("Slow"), range(2000))
    failure = share(team, request, 2, lambda: time.monotonic() - began > 1)
    assert failure.kind == "stale"
    assert time.monotonic() - began < SOON


def test_it_gives_what_one_worker_does_whatever_their_number_and_ends_them(team):
    # Enough that each of them takes some before the others have played all.
    for workers, episodes in ((1, 5), (2, 23), (3, 200)):
        request = request_for("CartPole-v1", range(3, 3 + episodes))
        expected = collect_episodes(POLES, request, plain("CartPole-v1"))
        assert_same_episodes(share(team, request, workers), expected)
    children = [psutil.Process(worker.pid) for worker in team._workers]
    assert len(children) == 3
    team.close()
    assert psutil.wait_procs(children, timeout=SOON)[1] == []
