"""A run that ends once its mean return is high enough."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from flame_rl import TrainConfig, Trainer
from flame_rl.system.errors import UsageError
from tests.helpers import run_here, run_ok
from tests.runs import assert_same_run

RUN = (
    *("--env", "cartpole", "--algorithm", "ppo", "--steps-per-iter", "300", "--iterations", "12"),
    *("--hidden-sizes", "16", "--workers", "0"),
)


def column(path: Path, name: str) -> list[float]:
    with path.open(newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run_ok(*RUN, "--output", "run", cwd=folder)
    return folder / "run"


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
    again = run_here("--resume", "run", cwd=tmp_path)
    assert again.returncode == 0
    assert f"finished, after {first + 1} iterations; the mean return" in again.stdout
    assert len(column(run / "metrics.csv", "reward_mean")) == first + 1
    longer = run_here("--resume", "run", "--stop-at", "none", cwd=tmp_path)
    assert longer.returncode == 0, longer.stderr
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
