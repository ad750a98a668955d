"""Dispatch: splitting, retrying, refusing; and that local backends agree."""

import math
import os
import signal
import threading
import time
from collections import defaultdict
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import ClassVar

import pytest

from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.simulators.plain import PlainSimulator
from flame_rl.backends.dispatch import MAX_ATTEMPTS, MAX_DEATHS, Listener, Transport, gather
from flame_rl.backends.local import InlineBackend, ProcessBackend
from flame_rl.backends.tasks import Deadlines, TaskSizes
from flame_rl.system.errors import Interrupted, RunError, UsageError
from flame_rl.wire import codec
from flame_rl.wire.messages import CollectFailure, Environment
from tests.helpers import (
    SOON,
    assert_same_episodes,
    described,
    environment_id,
    random_snapshot,
    request_for,
    snapshot_for,
    together,
)

DEADLINES = Deadlines(60, episodes=100_000, megabytes=4096)
SNAPSHOT = random_snapshot(4, 2, False)
REQUEST = request_for("CartPole-v1", range(11))


def answer(data: bytes) -> bytes:
    request = codec.decode_request(data)
    episodes = collect_episodes(SNAPSHOT, request, PlainSimulator(request.environment))
    return b"".join(codec.encode_result(episodes, request))


def done(value: bytes | Exception) -> Future:
    future: Future = Future()
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


def gather_with(submit, task_size=3, in_flight=2, stop=None, failed=None, request=REQUEST):
    def sent(data, episodes):
        assert len(codec.decode_request(data).indices) == episodes
        return submit(data)

    transport = Transport(sent, in_flight, failed=failed)
    sizes = TaskSizes(in_flight)
    sizes.split = lambda n, evenly: [min(task_size, n - i) for i in range(0, n, task_size)]
    return gather(request, transport, sizes, stop or threading.Event(), Listener())


EXPECTED = gather_with(lambda data: done(answer(data)), task_size=11).episodes


@pytest.mark.parametrize("task_size", [1, 2, 3, 7, 11, 100])
def test_task_size_changes_no_bit_and_episodes_are_sorted(task_size):
    collected = gather_with(lambda data: done(answer(data)), task_size, in_flight=3)
    assert_same_episodes(collected.episodes, EXPECTED)
    assert [e.index for e in collected.episodes] == list(range(11))
    assert collected.retries == 0 and collected.bytes_in > 0 and collected.bytes_out > 0


def with_steps(steps, first):
    return replace(REQUEST, indices=tuple(range(first)), steps=steps)


@pytest.mark.parametrize("steps", [1, 60, 150])
@pytest.mark.parametrize(("first", "in_flight"), [(1, 1), (1, 3), (4, 2), (40, 3)])
def test_steps_are_those_of_the_first_episodes(steps, first, in_flight):
    request = with_steps(steps, first)
    collected = gather_with(lambda data: done(answer(data)), 3, in_flight, request=request)
    lengths = [episode.length for episode in EXPECTED]
    (last, *_) = [i for i in range(11) if sum(lengths[: i + 1]) >= steps]
    assert_same_episodes(collected.episodes, EXPECTED.between(0, last + 1))


@pytest.mark.parametrize(("bad", "wanted"), [(5, True), (6, False)])
def test_an_episode_that_always_fails_ends_the_run_where_it_is_wanted(bad, wanted):
    """Whether it was asked for depends on the workers, too."""
    crash = codec.encode_failure(CollectFailure("crash", "the cause", "CartPole-v1"))
    steps = sum(episode.length for episode in EXPECTED.between(0, 6))

    def submit(data):
        return done(crash if bad in codec.decode_request(data).indices else answer(data))

    for first in (1, 7, 11):
        if wanted:
            with pytest.raises(RunError, match="the cause"):
                gather_with(submit, request=with_steps(steps, first))
        else:
            collected = gather_with(submit, request=with_steps(steps, first))
            assert_same_episodes(collected.episodes, EXPECTED.between(0, 6))


@pytest.mark.parametrize("workers", [1, 2, 5, 64])
@pytest.mark.parametrize("episode_seconds", [1e-4, 0.02, 0.3, 40.0])
@pytest.mark.parametrize("episodes", [1, 7, 100, 1000])
def test_tasks_are_worth_sending_and_end_together(workers, episode_seconds, episodes):
    task_sizes = TaskSizes(workers)
    for known in (False, True):
        sizes = task_sizes.split(episodes)
        assert sum(sizes) == episodes and min(sizes) >= 1
        assert len(sizes) >= min(workers, episodes)
        assert sizes == sorted(sizes, reverse=True)
        # The last to end keeps the others waiting for no more than its own task.
        if workers == 1:
            assert sizes == [episodes]
        elif not known:
            assert sizes[-1] == 1
        else:
            assert sizes[-1] * episode_seconds <= max(0.25, 0.01 * workers, episode_seconds)
            small = [size for size in sizes if size * episode_seconds < 0.12]
            assert len(small) <= max(2 * workers, 2)
        task_sizes.note(episodes, episodes * episode_seconds / workers, [])


def test_many_workers_get_no_more_tasks_than_the_learner_can_send():
    """In the time of a task it can send 200 a second, and so 200 tasks' worth to 200 workers."""
    task_sizes = TaskSizes(200)
    task_sizes.note(10_000, 10_000 * 0.05 / 200, [])
    assert len(task_sizes.split(10_000)) / 200 <= 10_000 * 0.05 / 200


@pytest.mark.parametrize("episodes", [1, 15, 16, 17, 100, 1000])
def test_tasks_keep_all_processes_of_an_executor_busy(episodes):
    task_sizes = TaskSizes(4, together=16)
    for _ in range(2):
        sizes = task_sizes.split(episodes)
        assert sum(sizes) == episodes and min(sizes) >= min(16, episodes // 5, 1)
        assert len(sizes) <= 4 * math.ceil(episodes / 64) + 4
        task_sizes.note(episodes, 1.0 * math.ceil(episodes / 64), [])


def test_no_more_in_flight_than_allowed():
    running = []
    most = 0

    def submit(data):
        nonlocal most
        future = Future()
        running.append(future)
        most = max(most, sum(not f.done() for f in running))
        threading.Timer(0.02, lambda: future.set_result(answer(data))).start()
        return future

    gather_with(submit, task_size=1, in_flight=4)
    assert most == 4 and len(running) == 11


@pytest.mark.parametrize(
    "fault",
    [
        ConnectionError("Stream removed"),
        b"garbage",
        codec.encode_failure(CollectFailure("crash", "died", "CartPole-v1")),
        codec.encode_failure(CollectFailure("invalid", "NaN", "CartPole-v1")),
        # Late, doubled or another run's.
        b"".join(codec.encode_result(together(list(EXPECTED)[9:]), REQUEST)),
    ],
)
def test_a_failed_task_is_asked_for_again(fault):
    requests = []

    def submit(data):
        indices = codec.decode_request(data).indices
        requests.append(indices)
        failed = 4 in indices and sum(4 in sent for sent in requests) < MAX_ATTEMPTS
        return done(fault if failed else answer(data))

    collected = gather_with(submit)
    assert_same_episodes(collected.episodes, EXPECTED)
    assert collected.retries == MAX_ATTEMPTS - 1
    # After the first failure, episode by episode.
    assert requests.count((4,)) == MAX_ATTEMPTS - 1 and (3,) in requests and (5,) in requests


@pytest.mark.parametrize(
    ("kind", "error", "attempts"),
    [
        ("crash", RunError, 3),
        ("timeout", RunError, 3),
        ("invalid", UsageError, 3),
        ("simulator", RunError, 3),
        ("environment", UsageError, 1),
    ],
)
def test_what_keeps_failing_ends_the_run_with_its_message(kind, error, attempts):
    requests = []

    def submit(data):
        requests.append(data)
        return done(codec.encode_failure(CollectFailure(kind, "the cause", "CartPole-v1")))

    with pytest.raises(error, match="the cause"):
        gather_with(submit, task_size=1, in_flight=1)
    assert len(requests) == attempts


def test_workers_that_die_before_they_play_cost_no_episode_an_attempt():
    """Five in a row, and later a few more."""
    dead = codec.encode_failure(CollectFailure("start", "died by SIGKILL", "CartPole-v1"))
    requests = []

    def submit(data):
        requests.append(data)
        return done(dead if len(requests) % 7 in (1, 2, 3, 4, 5) else answer(data))

    assert_same_episodes(gather_with(submit, task_size=3).episodes, EXPECTED)
    with pytest.raises(RunError, match=f"{MAX_DEATHS} worker processes.*fewer --workers.*SIGKILL"):
        gather_with(lambda data: done(dead))


def test_a_worker_that_is_killed_while_it_describes_is_asked_again(monkeypatch):
    """At moments spread over its start; one that dies too often in a row is given up."""
    monkeypatch.setattr("flame_rl.backends.dispatch.MAX_DEATHS", 3)
    began = time.monotonic()
    environment = Environment(environment_id("Server"))
    with closing(ProcessBackend(1, DEADLINES, threading.Event())) as backend:
        expected = backend.describe(environment)
        seconds = time.monotonic() - began
        for part in (1, 3):
            backend._workers[0]._end_child()
            backend._workers[0].start()
            pid = backend._workers[0].pid
            killer = threading.Timer(part * seconds / 4, os.kill, (pid, signal.SIGKILL))
            killer.start()
            assert backend.describe(environment) == expected
            killer.cancel()
        with pytest.raises(RunError, match=r"3 worker processes.*SIGKILL"):
            backend.describe(Environment(environment_id("StillBorn")))


def test_what_happens_to_several_episodes_together_counts_against_none():
    """Each of the task's episodes then fails twice alone, and is played the third time."""
    crash = codec.encode_failure(CollectFailure("crash", "died", "CartPole-v1"))
    tries = defaultdict(int)

    def submit(data):
        indices = codec.decode_request(data).indices
        tries[indices] += 1
        played = len(indices) == 1 and tries[indices] == MAX_ATTEMPTS
        return done(answer(data) if played else crash)

    assert_same_episodes(gather_with(submit, task_size=4).episodes, EXPECTED)


def test_what_fails_on_the_way_is_not_held_against_the_episodes():
    told = []

    def submit(data):
        return done(ConnectionError("Stream removed") if len(told) < 8 else answer(data))

    collected = gather_with(submit, failed=told.append)
    assert_same_episodes(collected.episodes, EXPECTED)
    assert collected.retries == len(told) >= 8


def test_stop_interrupts_the_wait():
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        gather_with(lambda data: Future(), stop=stop)
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize("workers", [0, 2])
def test_a_listener_hears_how_much_has_been_played(workers):
    class Listener:
        heard: ClassVar[list] = []

        def collecting(self, request, episodes, env_steps):
            self.heard.append((episodes, env_steps))
            raise RuntimeError("which ends no run")

    env_id = environment_id("Slow")
    request = request_for(env_id, range(8))
    stop, spec = threading.Event(), described(env_id)
    made = ProcessBackend(workers, DEADLINES, stop) if workers else InlineBackend(stop)
    with closing(made) as backend:
        backend.describe(request.environment)
        backend.listener = Listener()
        collected = backend.collect(snapshot_for(spec), request)
    episodes, steps = len(collected.episodes), collected.episodes.steps
    heard = Listener.heard
    assert heard[-1] == (episodes, steps)
    assert any(0 < part[1] < steps for part in heard)


def test_a_slow_worker_holds_up_nobody_and_lives_on(tmp_path, monkeypatch):
    """A task of six episodes takes it 6 seconds, and the others 0.12."""
    monkeypatch.setenv("FAULT_MARKER", str(tmp_path / "marker"))
    request = request_for(environment_id("OneIsSlow"), range(18))
    began = time.monotonic()
    with closing(ProcessBackend(3, DEADLINES, threading.Event())) as backend:
        collected = [backend.collect(random_snapshot(1, 2, False), request) for _ in range(4)]
        pids = [worker.pid for worker in backend._workers]
        backend.collect(random_snapshot(1, 2, False, version=1), replace(request, policy_version=1))
        assert pids == [worker.pid for worker in backend._workers]
    assert min(each.seconds for each in collected) < 4
    assert time.monotonic() - began < SOON
    for each in collected:
        assert_same_episodes(each.episodes, collected[0].episodes)
        assert each.retries == 0
