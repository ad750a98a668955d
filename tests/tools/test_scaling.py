"""Predictions against a plain simulation and against measured runs; and the command."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flame_rl import TrainConfig, Trainer
from flame_rl.commands.profile import advice, as_text, predictions
from flame_rl.run.results import Timing
from flame_rl.tools import profiling
from flame_rl.tools.profiling import Profile, profile
from flame_rl.tools.scaling import Costs, busiest_worker, collecting_seconds
from flame_rl.tools.scaling import iteration_seconds as predict
from tests.flame_fixtures import Flame, run
from tests.helpers import environment_id, run_here

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=40).map(tuple)


@given(LENGTHS, st.integers(1, 20))
def test_the_busiest_worker_is_that_of_a_queue_played_step_by_step(lengths, workers):
    waiting, playing, steps = list(lengths), [], 0
    while waiting or playing:
        while waiting and len(playing) < workers:
            playing.append(waiting.pop(0))
        playing = [left - 1 for left in playing if left > 1]
        steps += 1
    assert busiest_worker(lengths, workers) == steps


def test_a_prediction_adds_up():
    costs = Costs((4, 4, 4, 4), 0.5, 1.0, task=7.0, reading=3.0, updating=5.0, rest=1.0)
    assert collecting_seconds(costs, 1) == 16 * 0.5 + 7 + 3
    assert collecting_seconds(costs, 2) == 8 * 0.5 + 2 * 7 + 3
    # No episode is shorter than alone, and no more workers get a task than there are episodes.
    assert collecting_seconds(costs, 9) == 4 * 1.0 + 4 * 7 + 3
    assert predict(costs, 9) == collecting_seconds(costs, 9) + 5 + 1


def test_workers_share_cores_and_waiting_ones_do_not_need_them():
    computing = Costs((10,) * 40, 1.0, 1.0, cores=2, crowding=1.5)
    assert collecting_seconds(computing, 1) == 400
    assert collecting_seconds(computing, 2) == collecting_seconds(computing, 8) == 200 * 1.5
    waiting = replace(computing, computing=0.1)
    assert collecting_seconds(waiting, 20) == 20 * 1.5
    assert collecting_seconds(waiting, 40) == 10 * 2 * 1.5
    # Each executor has a core; what was measured there is all that is known of its speed.
    cluster = replace(computing, cores=None)
    assert [collecting_seconds(cluster, n) for n in (1, 40)] == [400 * 1.5, 10 * 1.5]


def measured(workers: int = 2, **costs) -> Profile:
    timing = Timing(2.5, 0.25, 1.0, 0.0, 2000.0, 40_000, 1_200_000, 0, 0)
    played = Costs((50,) * 100, step=1e-3, step_alone=1e-3, cores=2)
    return Profile("Some-v0", "ppo", workers, timing, replace(played, **costs))


def test_the_table_shows_phases_and_predictions():
    lines = as_text(measured(), predictions(measured())).splitlines()
    assert lines[0] == "Some-v0, ppo: 100 episodes an iteration, 50 steps each"
    assert "  collecting        2.5 s   100%" in lines
    assert "  episodes read  1,200 kB" in lines
    assert sum(line.endswith("x") for line in lines) == 7
    assert "  2                 2.500     2.0x" in lines
    assert lines[-1] == "Advice: keep 2 workers on this machine (2 cores), 2.5 s an iteration."


@pytest.mark.parametrize(
    ("costs", "text"),
    [
        ({"workers": 1}, "Advice: --workers 2, 2.5 s an iteration."),
        (
            {"workers": 1, "cores": 1},
            "Advice: keep 1 worker on this machine (1 core), 5 s an iteration.",
        ),
        ({"computing": 0.01}, "Advice: --workers 64, 100 ms an iteration."),
        ({"cores": None}, "Advice: --executors 64, 100 ms an iteration."),
        (
            {"updating": 60.0},
            "Advice: --workers 1, 65 s an iteration. The update is 92% of it, which more workers "
            "do not shorten.",
        ),
    ],
)
def test_advice_names_the_flag_and_what_it_gains(costs, text):
    assert advice(measured(**costs), predictions(measured(**costs))) == text


def fastest_iteration(config: TrainConfig) -> float:
    """Seconds. The first one, in which workers start, does not count."""
    with Trainer(config) as trainer:
        _, *timings = [trainer.train().timing for _ in range(4)]
    return min(timing.collecting + timing.updating for timing in timings)


@pytest.fixture(scope="module")
def waiting():
    """An environment that waits 20 ms a step, and its profile with two workers."""
    config = TrainConfig(env=environment_id("Waiting"), local=True, episodes_per_iter=32)
    return config, profile(config.changed(workers=2), threading.Event())


def test_a_profile_tells_waiting_from_computing(waiting):
    """As far as other tests on the same cores cannot change it: a wait never gets shorter."""
    _, found = waiting
    assert found.costs.computing < 0.5
    assert found.costs.lengths == (2,) * 32
    assert found.costs.step >= 0.02
    assert predict(found.costs, 1) >= 32 * 2 * 0.02


def test_a_profile_with_replay_has_an_update_that_learns(monkeypatch):
    """Its warm-up, in which no gradient step is taken, would last for thousands of env steps."""
    options = {"hidden_sizes": (8,), "steps_per_iter": 20, "updates_per_step": 0.1}
    config = TrainConfig(env="cartpole", algorithm="dqn", local=True, workers=0, **options)
    results, measure = [], profiling.fastest_iteration

    def measured(*arguments):
        results.append(measure(*arguments))
        return results[-1]

    monkeypatch.setattr(profiling, "fastest_iteration", measured)
    profile(config, threading.Event())
    ((_, result),) = results
    assert result.losses["gradient_steps"] >= 1 and "loss" in result.losses


@pytest.mark.slow
def test_a_profile_predicts_an_environment_that_waits(waiting):
    config, found = waiting
    for workers in (1, 2, 8):
        seconds = fastest_iteration(config.changed(workers=workers))
        assert predict(found.costs, workers) == pytest.approx(seconds, rel=0.2), workers


@pytest.mark.slow
@pytest.mark.parametrize("env", ["hopper", "halfcheetah"])
def test_a_profile_predicts_an_environment_that_computes(env):
    """The median of three ratios, because the speed of a shared machine varies."""
    config = TrainConfig(env=env, local=True, learning_rate=1e-9)
    ratios = []
    for _ in range(3):
        found = profile(config.changed(workers=2), threading.Event())
        ratios.append(predict(found.costs, 1) / fastest_iteration(config.changed(workers=1)))
    assert median(ratios) == pytest.approx(1.0, abs=0.2), ratios


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_command_measures_without_a_cluster(workers, tmp_path):
    flags = ("--env", "cartpole", "--algorithm", "ppo", "--episodes-per-iter", "20")
    done = run_here("profile", *flags, "--workers", workers, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("CartPole-v1, ppo: 20 episodes an iteration, ")
    assert "\nAdvice: " in done.stdout
    assert not any(tmp_path.iterdir())


def test_the_command_measures_a_run_as_it_has_become(tmp_path):
    flags = ("--env", "cartpole", "--iterations", "1", "--steps-per-iter", "400")
    run_here(*flags, "--workers", "0", "--output", "run", cwd=tmp_path)
    before = (tmp_path / "run" / "metrics.csv").read_bytes()
    done = run_here("profile", "--resume", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    # As many episodes as have the steps of an iteration, not the 8 of a first one.
    assert len(answer["costs"]["lengths"]) > 8
    assert list(answer["predicted_seconds"])[:2] == ["1", "2"]
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == before
    other = run_here("profile", "--resume", "run", "--gamma", "0.9", cwd=tmp_path)
    assert other.returncode == 2
    assert "these flags would make it another run: --gamma 0.99" in other.stderr


def test_the_command_measures_a_cluster(flame: Flame, project, tmp_path):
    flags = ("profile", "--env", "pace_env:Tiny-v0", "--episodes-per-iter", "30", "--json")
    finished = run(project, tmp_path, flame.environment, *flags)
    assert finished.code == 0, finished.err
    answer = json.loads(finished.out)
    assert answer["workers"] >= 1 and answer["costs"]["cores"] is None
    assert answer["costs"]["task"] > 0.0005
    assert sum(answer["costs"]["lengths"]) == 600
    flame.assert_nothing_left()
