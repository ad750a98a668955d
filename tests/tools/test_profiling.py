"""What follows from two measurements; and the command."""

from __future__ import annotations

import json
import math
import threading
from unittest import mock

import pytest

from flame_rl import TrainConfig
from flame_rl.commands import profile as command
from flame_rl.commands.profile import as_text, conclusions
from flame_rl.run import checkpoint
from flame_rl.tools import profiling
from flame_rl.tools.profiling import Measured, Profile, measure_profile
from tests.flame_fixtures import Flame, run
from tests.helpers import environment_id, run_here


def measured(workers: int, collecting: float, updating: float) -> Measured:
    steps = 5000
    return Measured(workers, 100, steps, collecting, updating, steps / collecting)


def found(one=8.0, several=4.5, updating=2.0, workers=2, cores: int | None = 2) -> Profile:
    """Of 8 seconds with one worker, by default, 7 are shared and 1 is fixed."""
    measurements = measured(1, one, updating), measured(workers, several, updating)
    return Profile("Some-v0", "ppo", cores, *measurements)


def test_two_measurements_say_what_workers_share():
    assert found().speedup == 8 / 4.5
    assert found().shared == 7
    # With 7 workers collecting takes 1 + 7 / 7 seconds, as long as updating.
    assert found().balance == 7
    assert found(updating=1.0).balance == math.inf
    # Whatever was measured, nobody shares more than all or less than nothing.
    assert (found(several=3.0).shared, found(several=9.0).shared) == (8, 0)
    assert found(several=8.0, workers=1).shared == 0


def test_workers_are_worth_it_up_to_the_cores_or_to_those_measured():
    assert found().worth == 2
    assert found(cores=1).worth == 2
    assert found(several=7.9).worth == 1
    waiting = {"one": 10.0, "several": 1.0, "workers": 10, "updating": 0.0}
    # 10 seconds / 10 workers, and at most 10 % more.
    assert found(**waiting).worth == 10
    # Executors have a core each, and no more than one for every episode has something to do.
    assert found(**waiting, cores=None).worth == 91
    # The update is the same with any number: 1 + 10 / w at most 1.1 * (1 + 10 / 100).
    assert found(**waiting | {"updating": 1.0}, cores=None).worth == 48


def test_the_table_shows_both_measurements():
    lines = as_text(found()).splitlines()
    assert lines[0] == "Some-v0, ppo: 100 episodes and 5,000 env steps an iteration"
    assert lines[2:5] == [
        "  workers     collecting    updating   env steps/s",
        "  1                  8 s         2 s           625",
        "  2                4.5 s         2 s         1,111",
    ]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({}, "From about 7 workers on the learner is the limit"),
        ({"updating": 0.5}, "longer than updating with any number: workers share 88% of it"),
        ({"updating": 9.0}, "More workers shorten an iteration by at most 41%"),
        ({"cores": None, "workers": 8, "several": 1.875}, "From about 7 executors on"),
    ],
)
def test_sentences_say_when_the_learner_is_the_limit(numbers, words):
    assert words in conclusions(found(**numbers))[1]


def test_sentences_name_the_flag():
    assert conclusions(found())[0] == "2 workers collect 1.78 times as fast as one."
    assert conclusions(found())[2:] == [
        "Worth it: --workers 2",
        "More workers than cores help where a simulator waits and does not compute: --workers 16 "
        "measures that.",
    ]
    assert conclusions(found(workers=4, several=2.75))[2:] == ["Worth it: --workers 4"]
    assert conclusions(found(cores=None))[2:] == ["Worth it: --executors 19"]


def test_a_simulator_that_waits_gains_from_more_workers_than_cores():
    """As far as other tests on the same cores cannot change it: a wait never gets shorter."""
    config = TrainConfig(env=environment_id("Waiting"), local=True, episodes_per_iter=24, workers=8)
    profile = measure_profile(config, threading.Event())
    assert (profile.one.workers, profile.several.workers) == (1, 8)
    assert profile.one.env_steps == profile.several.env_steps == 2 * 24
    # 20 ms a step, of one episode after another.
    assert profile.one.collecting >= 24 * 2 * 0.02
    assert profile.speedup > 3


def test_a_profile_with_replay_has_an_update_that_learns(monkeypatch):
    """Its warm-up, in which no gradient step is taken, would last for thousands of env steps."""
    results, iterate = [], profiling.Trainer.iterate

    def kept(*arguments):
        results.append(iterate(*arguments))
        return results[-1]

    monkeypatch.setattr(profiling.Trainer, "iterate", kept)
    options = {"hidden_sizes": (8,), "steps_per_iter": 20, "updates_per_step": 0.1}
    config = TrainConfig(env="cartpole", algorithm="dqn", local=True, workers=2, **options)
    measure_profile(config, threading.Event())
    one, several = results[:4], results[4:]
    assert [each.weights_digest for each in one] == [each.weights_digest for each in several]
    for result in several:
        assert result.losses["gradient_steps"] >= 1 and "loss" in result.losses


def test_the_command_measures_without_a_cluster(tmp_path):
    flags = ("--env", "cartpole", "--algorithm", "ppo", "--episodes-per-iter", "20")
    done = run_here("profile", *flags, "--workers", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("CartPole-v1, ppo: 20 episodes and ")
    assert "\nWorth it: --workers " in done.stdout
    assert not any(tmp_path.iterdir())


def test_the_command_measures_a_run_as_it_has_become(tmp_path, monkeypatch, capsys):
    flags = ("--env", "cartpole", "--iterations", "1", "--steps-per-iter", "400")
    run_here(*flags, "--workers", "0", "--output", "run", cwd=tmp_path)
    before = (tmp_path / "run" / "metrics.csv").read_bytes()
    monkeypatch.chdir(tmp_path)
    with mock.patch.object(checkpoint, "read_checkpoint", wraps=checkpoint.read_checkpoint) as read:
        assert command.profile(["--resume", "run", "--json"]) == 0
    assert read.call_count == 1
    answer = json.loads(capsys.readouterr().out)
    # As many episodes as have the steps of an iteration, not the 8 of a first one.
    assert answer["one"]["episodes"] > 8
    assert answer["one"]["env_steps"] == answer["several"]["env_steps"]
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == before
    other = run_here("profile", "--resume", "run", "--gamma", "0.9", cwd=tmp_path)
    assert other.returncode == 2
    assert "these flags would make it another run: --gamma 0.99" in other.stderr


def test_the_command_measures_a_cluster(flame: Flame, project, tmp_path):
    flags = ("profile", "--env", "pace_env:Tiny-v0", "--episodes-per-iter", "30", "--json")
    finished = run(project, tmp_path, flame.environment, *flags)
    assert finished.code == 0, finished.err
    answer = json.loads(finished.out)
    assert answer["cores"] is None and answer["one"]["workers"] == 1
    assert answer["several"]["workers"] >= 1
    assert answer["one"]["env_steps"] == 600
    flame.assert_nothing_left()
