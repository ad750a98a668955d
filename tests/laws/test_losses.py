"""Runs of a network that learns from a sum of losses: the same bytes on any number of workers and
on Flame, and after a resume; and what is done with what was trained."""

from __future__ import annotations

import csv
import json

import pytest

from flame_rl import Trainer
from tests.flame_fixtures import run as run_on
from tests.helpers import ROOT, environment_id, run_here
from tests.learners import ON_POLICY, make_config
from tests.runs import assert_same_run

AUXILIARY = {
    "auxiliary": ("tests.learner.test_losses:NextObservation",),
    "auxiliary_weights": (0.1,),
}
OPTIONS = {
    "shared_torso": True,
    "hidden_sizes": (6,),
    "episodes_per_iter": 14,
    "iterations": 4,
    "minibatches": 3,
    "epochs": 2,
    "learning_rate": 0.01,
    "local": True,
    "workers": 0,
}


def config_of(algorithm: str, **options):
    chosen = OPTIONS | AUXILIARY | options
    return make_config(environment_id("Wandering"), algorithm=algorithm, **chosen)


def digests(trainer: Trainer) -> list[str]:
    return [trainer.learner.weights_digest() for _ in trainer]


def whole(algorithm: str, **options) -> list[str]:
    with Trainer(config_of(algorithm, **options)) as trainer:
        found = digests(trainer)
    assert len(set(found)) == 4
    return found


@pytest.mark.parametrize("overlap", [False, True])
def test_the_number_of_workers_changes_no_byte(overlap):
    options = {"overlap": overlap}
    expected = whole("ppo", **options)
    assert whole("ppo", workers=2, **options) == expected
    assert overlap or whole("ppo", workers=1) == expected


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [*((name, {}) for name in ON_POLICY), ("ppo", {"memory": "gru"}), ("a2c", {"overlap": True})],
)
def test_a_run_that_was_saved_goes_on(algorithm, options, tmp_path):
    expected = whole(algorithm, **options)
    with Trainer(config_of(algorithm, **options)) as trainer:
        trainer.train()
        trainer.train()
        trainer.save(tmp_path / "half.ckpt")
    with Trainer.load(tmp_path / "half.ckpt") as trainer:
        assert digests(trainer) == expected[2:]


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
    (tmp_path / "prediction.py").write_text(module_of_the_page())
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


def module_of_the_page() -> str:
    """The worked example of docs/losses.md."""
    text = (ROOT / "docs" / "losses.md").read_text()
    return text.split("```python\n# prediction.py\n")[1].split("```")[0]


@pytest.mark.slow
def test_flame_gives_the_same_bytes_and_its_executors_get_no_loss(memory, project, local, tmp_path):
    (project / "prediction.py").write_text(module_of_the_page())
    flags = (*FLAGS, "--iterations", "2")
    finished = run_on(project, tmp_path, memory.environment, *flags)
    assert finished.code == 0, finished.err
    assert finished.metrics == local(*flags)
    assert "prediction.py" not in memory.memory.uploaded_package()
