"""The arithmetic against plain oracles; a profile's predictions against measured runs."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flame_rl import TrainConfig, Trainer
from flame_rl.backends.shares import Shares, split
from flame_rl.commands.profile import advice, predictions, table
from flame_rl.tools import profiling as measuring
from flame_rl.tools.scaling import (
    Costs,
    Prediction,
    Workload,
    enough,
    lock_steps,
    on_typical_cluster,
    predict,
    schedule,
)
from tests.flame_fixtures import Flame, run
from tests.helpers import ROOT, environment_id, run_here

FREE = Costs(
    lock_step=0.0,
    step=1.0,
    episode=0.0,
    task=0.0,
    client_task=0.0,
    client_byte=0.0,
    iteration=0.0,
    slots=16,
)
SECONDS = st.integers(1, 9)
SLOW = pytest.mark.slow


# Arithmetic


@given(st.lists(SECONDS, min_size=1, max_size=40), st.integers(1, 20))
def test_lock_steps_are_those_of_slots_that_play_step_by_step(lengths, slots):
    waiting, playing, steps = list(lengths), [], 0
    while waiting or playing:
        while waiting and len(playing) < slots:
            playing.append(waiting.pop(0))
        playing = [left - 1 for left in playing if left > 1]
        steps += 1
    assert lock_steps(lengths, slots) == steps


@settings(deadline=None)
@given(
    st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=30),
    st.integers(1, 6),
    st.integers(1, 12),
    SECONDS,
)
def test_a_schedule_is_what_happens_second_by_second(tasks, workers, in_flight, sending):
    """Every duration is a whole number of seconds, so that a clock that ticks misses nothing."""
    unsent, queue, busy, answers = list(tasks), [], [], []
    underway = clock = 0
    learner = None  # seconds left, and the task that is sent then
    while unsent or underway:
        # Who is free at this moment takes up work; what takes until now ends first.
        if learner is not None and learner[0] == 0:
            if learner[1] is None:
                underway -= 1
            else:
                queue.append(learner[1])
            learner = None
        answers += [reading for left, reading in busy if left == 0]
        busy = [(left, reading) for left, reading in busy if left > 0]
        if learner is None:
            if unsent and underway < in_flight:
                learner = (sending, unsent.pop(0))
                underway += 1
            elif answers:
                learner = (answers.pop(0), None)
        while queue and len(busy) < workers:
            busy.append(queue.pop(0))
        if unsent or underway:
            clock += 1
            learner = learner and (learner[0] - 1, learner[1])
            busy = [(left - 1, reading) for left, reading in busy]
    costs = replace(FREE, client_task=float(sending))
    found = schedule(tasks, costs, workers, in_flight)
    # Of answers that come in the same second, the order may differ, and with it the moment at which
    # the next task is sent.
    assert found == pytest.approx(clock, abs=9)
    if len({reading for _, reading in tasks}) == 1:
        assert found == pytest.approx(clock)


def test_workers_share_cores_and_waiting_ones_do_not_need_them():
    computing = replace(FREE, cores=2)
    assert schedule([(1.0, 0.0)] * 4, computing, workers=2, in_flight=9) == pytest.approx(2.0)
    assert schedule([(1.0, 0.0)] * 4, computing, workers=4, in_flight=9) == pytest.approx(2.0)
    # One core: whoever is left has it to itself, so that the work is done when it is done.
    alone = replace(FREE, cores=1)
    assert schedule([(1.0, 0.0), (3.0, 0.0)], alone, workers=2, in_flight=9) == pytest.approx(4.0)
    waiting = replace(FREE, cores=2, computing=0.1)
    assert schedule([(1.0, 0.0)] * 8, waiting, workers=8, in_flight=9) == pytest.approx(1.0)
    assert schedule([(1.0, 0.0)] * 40, waiting, workers=40, in_flight=99) == pytest.approx(2.0)


def test_workers_disturb_each_other_as_measured():
    costs = replace(FREE, workers=3, contention=1.5)
    assert [costs.slowdown(busy) for busy in (0, 1, 2, 3, 9)] == [1.0, 1.0, 1.25, 1.5, 1.5]
    assert replace(costs, cores=3).slowdown(6) == pytest.approx(3.0)


@given(st.lists(SECONDS, min_size=1, max_size=99), st.integers(1, 70), st.floats(1e-3, 1e3))
def test_tasks_hold_every_episode_once(lengths, workers, seconds):
    shares = Shares(workers)
    shares.took(len(lengths), seconds)
    assert [n for part in split(lengths, shares.of(len(lengths))) for n in part] == lengths


def test_a_prediction_adds_up():
    costs = replace(FREE, lock_step=2.0, step=0.5, episode=3.0, task=7.0, iteration=11.0, slots=2)
    work = Workload(lengths=(4, 4, 4, 4), bytes_per_step=8.0, updating=5.0)
    # One alone takes 7 + 4 * 2 + 4 / 2 + 3 = 20; two side by side, and two more after them, take
    # 7 + 8 * 2 + 16 / 2 + 12 = 43.
    one = predict(costs, work, workers=1, ahead=1)
    assert (one.tasks, one.collecting, one.seconds) == (1, 11 + 43, 11 + 43 + 5)
    four = predict(costs, work, workers=4, ahead=1)
    assert (four.tasks, four.collecting, four.shared_out) == (4, 11 + 20, 20)
    reading = predict(replace(costs, client_task=1.0, client_byte=0.25), work, 4, ahead=4)
    # Sent at 1, 2, 3, 4; done at 21 to 24; each answer of 32 bytes read in 8 seconds.
    assert reading.collecting == 11 + 21 + 4 * 8
    assert reading.client == 4 + 4 * 8


@pytest.mark.parametrize("workers", [5, 10, 20])
def test_many_waiting_episodes_are_shared_out_well(workers):
    """What upstream reports of so many executors and 100 episodes: 4x, 8x and 15x at the best."""
    costs = on_typical_cluster(replace(FREE, step=0.05))
    work = Workload(lengths=(20,) * 100, bytes_per_step=20.0, updating=0.1)
    one = predict(costs, work, 1, ahead=1)
    assert one.seconds / predict(costs, work, workers, ahead=workers).seconds > 0.9 * workers


def test_enough_workers_are_the_fewest_that_come_near_the_best():
    rows = [Prediction(n, 1, 10 / n, 1.0, 0.0, 0.0) for n in (1, 2, 4, 200, 400)]
    assert enough(rows).workers == 200
    assert enough(rows, within=3.0).workers == 4


@given(
    st.lists(st.floats(0.0, 2.0), min_size=4, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_costs_are_found_again(truth, seed):
    rows = np.random.default_rng(seed).uniform(1, 9, (30, 4))
    truth[0] += 0.1
    assert measuring.fit([(row, row @ truth) for row in rows]) == pytest.approx(truth, abs=1e-6)


def test_no_cost_is_below_0():
    rows = [((1, n), 10.0 - 0.1 * n) for n in range(20)]
    flat, slope = measuring.fit(rows)
    assert slope == 0.0 and 8 < flat < 10
    # Nothing better is near.
    errors = [
        sum(((a + b * n) / seconds - 1) ** 2 for (_, n), seconds in rows)
        for a, b in ((flat, 0), (flat + 0.01, 0), (flat - 0.01, 0), (flat, 0.001))
    ]
    assert min(errors) == errors[0]


# What is printed


def make_profile(cluster: Costs | None = None, executors: int = 0, **local) -> measuring.Profile:
    costs = replace(FREE, **({"step": 1e-3, "cores": 2} | local))
    work = Workload(lengths=(50,) * 100, bytes_per_step=20.0, updating=0.2)
    return measuring.Profile(TrainConfig(), "Some-v0", work, costs, cluster, executors)


def test_advice_names_flags_and_from_where_on_a_cluster_is_faster():
    slow = replace(on_typical_cluster(FREE), step=1e-3, task=0.1)
    measured = make_profile(slow, executors=12)
    local, cluster = predictions(measured)
    assert local[2].seconds == pytest.approx(2.7, rel=0.05)
    text = "\n".join(advice(measured, local, cluster))
    first = next(n for n in cluster if cluster[n].seconds < local[2].seconds)
    assert 3 <= first <= 4
    assert text.startswith("On this machine: 2 workers, ") and "an iteration (--local)." in text
    assert f"Local is faster below {first} executors." in text
    assert "The cluster now has 12: " in text and text.endswith("Use it (no flag needed).")
    rows = table(measured, local, cluster)
    assert [row.split()[0] for row in rows[2:]] == ["1", "2", "4", "8", "12", "16", "32", "64"]


def test_advice_where_a_cluster_would_not_help():
    hopeless = replace(on_typical_cluster(FREE), step=1e-3, task=50.0)
    measured = make_profile(hopeless, executors=2)
    text = "\n".join(advice(measured, *predictions(measured)))
    assert "Local is faster than a cluster of up to 64 executors." in text


def test_advice_where_simulators_wait():
    measured = make_profile(computing=0.01)
    text = "\n".join(advice(measured, *predictions(measured)))
    assert "workers, " in text and "(--workers " in text and "--local" not in text
    assert int(text.split("--workers ")[1].split(")")[0]) >= 16


def test_advice_where_executors_may_be_more_than_cores():
    costs = replace(on_typical_cluster(FREE), step=0.02)
    waiting = make_profile(costs, executors=4, step=0.02, computing=0.06)
    assert "--executors " in "\n".join(advice(waiting, *predictions(waiting)))
    computing = make_profile(costs, executors=4, step=0.02)
    assert "--executors " not in "\n".join(advice(computing, *predictions(computing)))


def test_the_document_shows_what_its_code_prints(capsys):
    text = (ROOT / "docs" / "scaling.md").read_text()
    code, printed = re.search(r"```python\n(.*?)```.*?```text\n(.*?)```", text, re.DOTALL).groups()
    exec(code, {})
    assert capsys.readouterr().out == printed


# Predictions against measured runs


def seconds_of_iterations(config: TrainConfig, iterations: int) -> float:
    """The median, without the first one, for which nothing is known of the episodes yet."""
    with Trainer(config) as trainer:
        timings = [trainer.train().timing for _ in range(iterations)]
    return median(timing.collecting + timing.updating for timing in timings[1:])


@pytest.mark.parametrize("workers", [(2, 8), pytest.param((1, 2, 4, 8, 16), marks=SLOW)])
def test_a_profile_predicts_an_environment_that_waits(workers, monkeypatch):
    monkeypatch.setattr(measuring, "LONG_SECONDS", 0.1)
    config = TrainConfig(env=environment_id("Waiting"), local=True, episodes_per_iter=32)
    measured = measuring.profile(config, threading.Event())
    assert measured.local.computing < 0.5
    assert measured.workload.lengths == (2,) * 32
    for count in workers:
        predicted = predict(measured.local, measured.workload, count, ahead=1)
        found = seconds_of_iterations(replace(config, workers=count), 3 if count < 8 else 5)
        assert predicted.seconds == pytest.approx(found, rel=0.2), count


@SLOW
@pytest.mark.parametrize("env", ["hopper", "halfcheetah", "Pendulum-v1"])
def test_a_profile_predicts_an_environment_that_computes(env):
    """The middle one of three, because the speed of a shared machine goes up and down."""
    config = TrainConfig(env=env, local=True, learning_rate=1e-9)
    ratios = {1: [], 2: []}
    for _ in range(3):
        measured = measuring.profile(config, threading.Event())
        for workers, found in ratios.items():
            predicted = predict(measured.local, measured.workload, workers, ahead=1)
            seconds = seconds_of_iterations(replace(config, workers=workers), 5)
            found.append(predicted.seconds / seconds)
    assert {workers: median(found) for workers, found in ratios.items()} == pytest.approx(
        {1: 1.0, 2: 1.0}, abs=0.2
    ), ratios


# The command


def test_the_command_measures_without_a_cluster(tmp_path):
    flags = ("--env", "cartpole", "--algorithm", "ppo", "--episodes-per-iter", "20")
    done = run_here("profile", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("CartPole-v1, ppo: 20 episodes an iteration, of ")
    assert "no cluster is configured" in done.stdout
    assert "\nOn this machine: " in done.stdout
    assert not any(tmp_path.iterdir())


def test_the_command_measures_a_run_as_it_has_become(tmp_path):
    flags = ("--env", "cartpole", "--iterations", "1", "--episodes-per-iter", "10")
    run_here(*flags, "--workers", "0", "--output", "run", cwd=tmp_path)
    before = (tmp_path / "run" / "metrics.csv").read_bytes()
    done = run_here("profile", "--resume", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["config"]["episodes_per_iter"] == 10 == len(answer["workload"]["lengths"])
    assert answer["cluster"] is None
    assert [row["workers"] for row in answer["predictions"]["cluster"]] == list(range(1, 65))
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == before


def test_the_command_measures_a_cluster(flame: Flame, project, tmp_path):
    flags = ("profile", "--env", "pace_env:Tiny-v0", "--episodes-per-iter", "30", "--json")
    finished = run(project, tmp_path, flame.environment, *flags)
    assert finished.code == 0, finished.err
    answer = json.loads(finished.out)
    assert answer["executors"] >= 1
    assert answer["cluster"]["task"] + answer["cluster"]["client_task"] > 0.0005
    assert sum(answer["workload"]["lengths"]) == 600
    flame.assert_nothing_left()
