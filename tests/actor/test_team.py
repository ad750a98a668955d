"""Several workers that share each task."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil
import pytest

from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.worker.supervisor import Limits, Team
from flame_rl.wire import codec
from flame_rl.wire.messages import CollectRequest
from tests.helpers import (
    SOON,
    assert_same_episodes,
    environment_id,
    plain,
    random_snapshot,
    request_for,
)

SNAPSHOT = random_snapshot(4, 2, False)


@pytest.fixture
def team() -> Iterator[Team]:
    team = Team(print)
    team.start()
    yield team
    team.close()


def collect(team: Team, request: CollectRequest, workers: int, withdrawn=lambda: False):
    snapshot = (
        SNAPSHOT if "CartPole" in request.environment.env_id else random_snapshot(1, 2, False)
    )
    limits = Limits(len(request.indices), 600.0, 100_000, 4096, workers)
    data = team.collect(
        codec.encode_snapshot(snapshot), codec.encode_request(request), limits, withdrawn
    )
    return codec.decode_result(data, request)


def test_it_gives_what_one_worker_does_whatever_their_number(team: Team) -> None:
    # Enough that each of them takes some before the others have played all.
    for workers, episodes in ((1, 5), (2, 23), (3, 200)):
        request = request_for("CartPole-v1", range(3, 3 + episodes))
        expected = collect_episodes(SNAPSHOT, request, plain("CartPole-v1"))
        assert_same_episodes(collect(team, request, workers), expected)
    children = psutil.Process().children()
    assert len([c for c in children if "flame_rl.actor.worker.child" in c.cmdline()]) == 3
    team.close()
    assert psutil.wait_procs(children, timeout=SOON)[1] == []


def test_they_play_at_the_same_time(team: Team) -> None:
    collect(team, request_for(environment_id("Slow"), range(3)), 3)
    began = time.monotonic()
    collect(team, request_for(environment_id("Slow"), range(30)), 3)
    assert time.monotonic() - began < 4  # one after another 6 s


def test_a_failure_of_one_ends_the_task_with_its_cause(team: Team) -> None:
    failure = collect(team, request_for(environment_id("KillFault"), range(8)), 2)
    assert failure.kind == "crash"
    request = request_for("CartPole-v1", range(8))
    expected = collect_episodes(SNAPSHOT, request, plain("CartPole-v1"))
    assert_same_episodes(collect(team, request, 2), expected)


def test_a_task_is_withdrawn_from_all(team: Team) -> None:
    began = time.monotonic()
    request = request_for(environment_id("Slow"), range(2000))
    failure = collect(team, request, 2, lambda: time.monotonic() - began > 1)
    assert failure.kind == "stale"
    assert time.monotonic() - began < SOON
