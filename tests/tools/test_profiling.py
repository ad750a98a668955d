"""Two measurements, what follows from them, and the command."""

import json
import threading
from unittest import mock

import pytest

from flame_rl import TrainConfig
from flame_rl.commands import profile as command
from flame_rl.commands.profile import Measured, as_text, conclusions, measure_both
from flame_rl.run import checkpoint
from flame_rl.run.trainer import Trainer
from tests.flame_fixtures import run
from tests.helpers import environment_id, refusal, run_here, run_ok


def measured(workers: int, collecting: float, updating: float) -> Measured:
    return Measured(workers, 100, 5000, collecting, updating, 5000 / collecting)


def test_the_table_shows_both_measurements_and_what_follows():
    text = as_text("Some-v0, ppo", "workers", measured(1, 8.0, 2.0), measured(2, 4.5, 2.0))
    assert text.splitlines() == [
        "Some-v0, ppo: 100 episodes and 5,000 env steps an iteration",
        "",
        "  workers     collecting    updating   env steps/s",
        "  1                  8 s         2 s           625",
        "  2                4.5 s         2 s         1,111",
        "",
        "2 workers collect 1.78 times as fast as one.",
        "Collecting takes longer than updating: more workers may shorten an iteration, by at most "
        "69%.",
        "Worth it: --workers 2",
    ]


@pytest.mark.parametrize(
    ("one", "several", "updating", "learner", "number"),
    [
        (8.0, 4.5, 9.0, True, 8),
        (8.0, 7.9, 2.0, False, 1),
        (2.0, 1.5, 9.0, True, 1),
        (10.0, 1.0, 0.0, False, 8),
    ],
)
def test_sentences_say_when_the_learner_is_the_limit_and_what_is_worth_it(
    one, several, updating, learner, number
):
    both = measured(1, one, updating), measured(8, several, updating)
    text = as_text("Some-v0, ppo", "executors", *both)
    assert ("The learner is the limit" in text) == learner
    assert text.endswith(f"Worth it: --executors {number}")


def test_a_simulator_that_waits_gains_from_more_workers_than_cores():
    """As far as other tests on the same cores cannot change it: a wait never gets shorter."""
    config = TrainConfig(env=environment_id("Slow"), local=True, episodes_per_iter=8, workers=4)
    one, several = measure_both(config, threading.Event())
    assert (one.workers, several.workers) == (1, 4)
    assert one.env_steps == several.env_steps == 20 * 8
    # 10 ms a step, of one episode after another.
    assert one.collecting >= 8 * 20 * 0.01
    assert conclusions(one, several)["speedup"] > 2


def test_slow_iterations_are_measured_once(monkeypatch, capsys):
    counted = mock.Mock(side_effect=Trainer.do_iteration)
    monkeypatch.setattr(Trainer, "do_iteration", lambda *arguments: counted(*arguments))
    monkeypatch.setattr(command, "_SECONDS", 0.0)
    config = TrainConfig(env="cartpole", local=True, episodes_per_iter=8, workers=2)
    assert measure_both(config, threading.Event())[1].episodes == 8
    assert counted.call_count == 2  # one with each number, in which workers start, too
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("Measured with 1: ") and second.startswith("Measured with 2: ")


def test_a_profile_with_replay_has_an_update_that_learns(monkeypatch):
    """Its warm-up, in which no gradient step is taken, would last for thousands of env steps."""
    results, do_iteration = [], Trainer.do_iteration

    def kept(*arguments):
        results.append(do_iteration(*arguments))
        return results[-1]

    monkeypatch.setattr(Trainer, "do_iteration", kept)
    options = {"hidden_sizes": (8,), "steps_per_iter": 20, "updates_per_step": 0.1}
    config = TrainConfig(env="cartpole", algorithm="dqn", local=True, workers=2, **options)
    measure_both(config, threading.Event())
    one, several = results[:4], results[4:]
    assert [each.weights_digest for each in one] == [each.weights_digest for each in several]
    for result in several:
        assert result.metrics["gradient_steps"] >= 1 and "loss" in result.metrics


def test_the_command_measures_without_a_cluster(tmp_path):
    flags = ("--env", "cartpole", "--algorithm", "ppo", "--episodes-per-iter", "20")
    done = run_ok("profile", *flags, "--workers", "2", cwd=tmp_path)
    assert done.stdout.startswith("CartPole-v1, ppo: 20 episodes and ")
    assert "\nWorth it: --workers " in done.stdout
    assert not any(tmp_path.iterdir())


def test_the_command_measures_a_run_as_it_has_become(tmp_path, monkeypatch, capsys):
    flags = ("--env", "cartpole", "--iterations", "1", "--steps-per-iter", "400")
    run_here(*flags, "--workers", "0", "--output", "run", cwd=tmp_path)
    before = (tmp_path / "run" / "metrics.csv").read_bytes()
    monkeypatch.chdir(tmp_path)
    with mock.patch.object(checkpoint, "read_checkpoint", wraps=checkpoint.read_checkpoint) as read:
        assert command.profile(["--resume", "run", "--workers", "2", "--json"]) == 0
    assert read.call_count == 1
    answer = json.loads(capsys.readouterr().out)
    # As many episodes as have the steps of an iteration, not the 8 of a first one.
    assert answer["one"]["episodes"] > 8
    assert answer["one"]["env_steps"] == answer["several"]["env_steps"]
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == before
    said = refusal("profile", "--resume", "run", "--gamma", "0.9", cwd=tmp_path)
    assert "these flags would make it another run: --gamma 0.99" in said


def test_the_command_measures_a_cluster(flame, project, tmp_path):
    flags = ("profile", "--env", "my_env:Mine-v0", "--episodes-per-iter", "30", "--json")
    finished = run(project, tmp_path, flame.environment, *flags)
    assert finished.code == 0, finished.err
    answer = json.loads(finished.out)
    assert answer["one"]["workers"] == 1
    assert answer["several"]["workers"] >= 1
    assert answer["one"]["env_steps"] == 600
    flame.assert_nothing_left()
