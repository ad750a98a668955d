"""When a run ends, and of how many env steps and episodes an iteration consists."""

from dataclasses import replace
from pathlib import Path

import pytest

from flame_rl import TrainConfig, Trainer
from flame_rl.run.iteration import training_request
from flame_rl.run.results import Totals
from flame_rl.system.errors import UsageError
from tests.helpers import finished_run, run_ok, spec_of, table
from tests.runs import assert_same_run

RUN = (
    *("--env", "cartpole", "--algorithm", "ppo", "--steps-per-iter", "300", "--iterations", "12"),
    *("--hidden-sizes", "16", "--workers", "0"),
)


def column(path: Path, name: str) -> list[float]:
    return [float(row[name]) for row in table(path)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return finished_run(tmp_path_factory, *RUN)


def test_it_ends_with_the_first_iteration_that_is_good_enough_and_can_go_on(whole, tmp_path):
    returns = column(whole / "metrics.csv", "reward_mean")
    wanted = sorted(returns)[len(returns) // 2]
    first = next(i for i, value in enumerate(returns) if value >= wanted)
    assert 0 < first < 11
    done = run_ok(*RUN, "--stop-at", f"{wanted}", "--output", "run", cwd=tmp_path)
    run = tmp_path / "run"
    assert column(run / "metrics.csv", "reward_mean") == returns[: first + 1]
    assert f"Stopped early: the mean return {returns[first]:.1f} reached --stop-at" in done.stdout
    assert f"Stops at: a mean return of {wanted:g} in an iteration" in done.stdout
    assert "--resume run --stop-at none" in done.stdout
    again = run_ok("--resume", "run", cwd=tmp_path)
    assert f"finished, after {first + 1} iterations; the mean return" in again.stdout
    assert len(column(run / "metrics.csv", "reward_mean")) == first + 1
    run_ok("--resume", "run", "--stop-at", "none", cwd=tmp_path)
    assert_same_run(run, whole)


def test_where_there_are_evaluations_it_is_theirs_and_collecting_ahead_ends_too(tmp_path):
    words = (*RUN, "--evaluate-every", "2", "--evaluate-episodes", "3", "--overlap")
    done = run_ok(*words, "--stop-at", "1", "--output", "run", cwd=tmp_path)
    # The first iteration has a return above 1, but no evaluation.
    assert column(tmp_path / "run" / "metrics.csv", "iteration") == [0, 1]
    assert "a mean return of 1 in an evaluation" in done.stdout


def test_in_python_the_loop_ends_and_a_saved_trainer_remembers_it(tmp_path):
    config = TrainConfig(stop_at=1, iterations=5, episodes_per_iter=2, local=True, workers=0)
    with Trainer(config) as trainer:
        assert [result.iteration for result in trainer] == [0]
        trainer.save(tmp_path / "saved")
        with pytest.raises(UsageError, match=r"--stop-at: the mean return has reached 1\.0"):
            trainer.train()
    with Trainer.load(tmp_path / "saved") as trainer:
        assert list(trainer) == []
    with Trainer.load(tmp_path / "saved", stop_at=1e6) as trainer:
        assert len(list(trainer)) == 4


SPEC = spec_of(1, 2, False)


def episodes(limit: int | None, agents: int = 0, done: Totals | None = None) -> int:
    spec = replace(SPEC, time_limit=limit, agents=tuple(map(str, range(agents))))
    config = TrainConfig("my_env:Mine-v0", "ppo")
    return len(training_request(config, spec, done or Totals(), 0).indices)


@pytest.mark.parametrize(
    ("limit", "agents", "expected"),
    [
        (4000, 0, 1),
        (1000, 0, 3),
        (200, 0, 11),
        (9, 0, 228),
        (1000, 2, 2),
        (4000, 3, 1),
        (None, 0, 1),
        (None, 2, 1),
    ],
)
def test_as_few_episodes_as_have_the_steps_if_each_lasts_to_its_limit(limit, agents, expected):
    assert episodes(limit, agents) == expected


def test_later_the_last_iteration_says_how_long_they_are():
    assert episodes(1000, done=Totals(1, 3, 90, 30.0)) == 69
    assert episodes(1000, done=Totals(1, 3, 90_000, 30_000.0)) == 1


def test_the_last_iteration_has_what_is_left_of_the_steps():
    spec, begun = replace(SPEC, time_limit=1000), Totals(3, 9, 6_000, 100.0)
    config = TrainConfig("my_env:Mine-v0", "ppo", env_steps=7_000)
    request = training_request(config, spec, begun, 0)
    assert (request.steps, len(request.indices)) == (1_000, 10)
    assert training_request(config, spec, Totals(), 0).steps == 2048


def test_an_environment_without_a_limit_is_learned_from_at_once():
    options = {"hidden_sizes": (8,), "local": True, "workers": 0, "epochs": 1}
    with Trainer(TrainConfig("CliffWalking-v1", "ppo", **options)) as trainer:
        assert trainer.spec.time_limit == 1000
        assert trainer.train().env_steps <= 2048 + 1000
