"""Runs of a network that learns from a sum of losses, and what is done with what was trained."""

from __future__ import annotations

import csv
import json

import pytest

from flame_rl import Trainer
from tests.helpers import ROOT, run_here
from tests.laws.test_matrix import block_of
from tests.learners import ON_POLICY, make_config
from tests.runs import assert_same_run


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_cartpole_is_learned_with_shared_layers(algorithm):
    options = {"shared_torso": True, "steps_per_iter": 2000, "iterations": 25}
    with Trainer(make_config("cartpole", algorithm=algorithm, **options, local=True)) as trainer:
        means = [result.reward_mean for result in trainer]
    assert max(means) > 475
    # The other two often fall back after that.
    assert means[-1] > 400 or algorithm in ("reinforce", "a2c")


FLAGS = (
    *("--env", "cartpole", "--algorithm", "ppo", "--shared-torso", "--episodes-per-iter", "6"),
    *("--auxiliary", "prediction:NextObservation", "--auxiliary-weights", "0.1"),
    *("--hidden-sizes", "6", "--epochs", "2", "--learning-rate-decay", "False"),
)


def test_a_run_folder_is_resumed_plotted_and_evaluated(tmp_path, monkeypatch):
    (tmp_path / "prediction.py").write_text(block_of(ROOT / "docs" / "losses.md", "prediction.py"))
    monkeypatch.syspath_prepend(tmp_path)
    for folder, iterations in (("whole", "3"), ("half", "2")):
        (tmp_path / folder).mkdir()
        words = (*FLAGS, "--iterations", iterations, "--local", "--output", "run")
        done = run_here(*words, cwd=tmp_path / folder)
        assert done.returncode == 0, done.stderr
    half = tmp_path / "half"
    done = run_here("--resume", "run", "--iterations", "3", cwd=half)
    assert done.returncode == 0, done.stderr
    assert_same_run(half / "run", tmp_path / "whole" / "run")
    with (half / "run" / "metrics.csv").open() as file:
        *_, last = csv.DictReader(file)
    for name in ("policy", "value", "next_observation"):
        assert float(last[f"{name}_gradient_norm"]) > 0 and last[f"{name}_loss"]
    columns = ("policy_gradient_norm", "value_gradient_norm", "next_observation_gradient_norm")
    done = run_here("plot", "run", "--columns", *columns, "--output", "norms.png", cwd=half)
    assert done.returncode == 0 and (half / "norms.png").exists(), done.stderr
    done = run_here("evaluate", "run", "--episodes", "3", "--json", "--local", cwd=half)
    assert json.loads(done.stdout)["episodes"] == 3
    config = json.loads((half / "run" / "config.json").read_text())
    assert config["algorithm"]["auxiliary_weights"] == [0.1]
