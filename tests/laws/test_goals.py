"""Whole runs with hindsight: the same bytes on any number of workers, whoever dies, and after a
kill and a resume; beside whatever else changes a minibatch."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest

from flame_rl import Trainer
from flame_rl.settings.algorithms import ALGORITHMS, settings_class
from flame_rl.settings.groups import Hindsight
from flame_rl.system.errors import UsageError
from tests.helpers import clean_environment, run_here
from tests.learners import make_config
from tests.runs import assert_same_run, rows

ITERATIONS = 4
OPTIONS = {
    "hidden_sizes": (6,),
    "steps_per_iter": None,
    "episodes_per_iter": 6,
    "iterations": ITERATIONS,
    "learning_rate": 0.01,
    "warm_up_steps": 30,
    "batch_size": 16,
    "updates_per_step": 0.2,
    "capacity": 150,
    "hindsight": "future",
    "outcomes": ("is_success",),
    "workers": 0,
    "local": True,
}
RUNS = [
    ("dqn", "Bits", {"prioritized": True, "n_step": 3, "distribution": "quantiles", "atoms": 5}),
    ("dqn", "Bits", {"hindsight": "final", "frame_stack": 3, "demonstrations": "bits.npz"}),
    ("dqn", "MaskedGoals", {"n_step": 2, "dueling": True}),
    ("ddpg", "Point", {"n_step": 2}),
    (
        "td3",
        "Maze",
        {
            "normalize_observations": True,
            "n_step": 3,
            "reward_scale": 0.1,
            "policy_observations": ("observation", "desired_goal"),
        },
    ),
    ("sac", "Panda", {"n_step": 3}),
]
# The others draw and read as these do.
ORDINARY = (RUNS[0], RUNS[1], RUNS[4])
NAMED = [
    pytest.param(
        *run,
        id=f"{run[0]} {run[1]} {' '.join(run[2])}",
        marks=() if run in ORDINARY else pytest.mark.slow,
    )
    for run in RUNS
]


def config_of(algorithm: str, kind: str, **options):
    return make_config(f"tests.goals:{kind}-v0", algorithm=algorithm, **OPTIONS | options)


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Episodes in Bits, in a file that a run names as if it were there."""
    monkeypatch.chdir(tmp_path)
    with Trainer(config_of("ppo", "Bits")) as trainer:
        trainer.evaluate(6, explore=True, record="bits.npz")


def test_every_algorithm_that_has_hindsight_is_here():
    assert {name for name, *_ in RUNS} == {
        name for name in ALGORITHMS if issubclass(settings_class(name), Hindsight)
    }


@pytest.mark.parametrize(("algorithm", "kind", "options"), NAMED)
@pytest.mark.usefixtures("recorded")
def test_a_saved_run_goes_on(algorithm, kind, options, tmp_path):
    with Trainer(config_of(algorithm, kind, **options)) as trainer:
        expected = [result.weights_digest for result in trainer]
        trainer.evaluate(5)
    assert len(set(expected)) == ITERATIONS
    with Trainer(config_of(algorithm, kind, **options)) as trainer:
        trainer.train()
        trainer.train()
        trainer.save(tmp_path / "half.ckpt")
    with Trainer.load(tmp_path / "half.ckpt", workers=0) as trainer:
        assert [result.weights_digest for result in trainer] == expected[2:]


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_a_share_of_none_is_no_hindsight_but_for_its_draws(algorithm):
    """The views of stored steps are the same; what is drawn after them is not."""
    kind = {"dqn": "Bits", "sac": "Point"}[algorithm]
    digests = []
    for options in ({"hindsight": "none"}, {"hindsight_share": 0.0}, {"hindsight_share": 1.0}):
        one = {"iterations": 1, "updates_per_step": 0.001, "warm_up_steps": 10} | options
        with Trainer(config_of(algorithm, kind, **one)) as trainer:
            result = trainer.train()
            assert result.losses["gradient_steps"] == 1
            digests.append(result.weights_digest)
    # Of one gradient step of dqn, which draws nothing itself.
    assert (digests[0] == digests[1]) == (algorithm == "dqn") and digests[1] != digests[2]


FLAGS = ("--env", "tests.goals:Bits-v0", "--algorithm", "dqn", "--hindsight", "future", "--local")
FLAGS += ("--hidden-sizes", "6", "--episodes-per-iter", "6", "--iterations", "4")
FLAGS += (
    "--warm-up-steps",
    "30",
    "--batch-size",
    "8",
    "--updates-per-step",
    "0.2",
    "--n-step",
    "2",
)
FLAGS += ("--outcomes", "is_success", "--checkpoint-every", "1")

KILLED = """
import os, signal, sys
from flame_rl.learner.algorithms.dqn import DQN
import main

step, steps = DQN.step, 0

def counted(self, samples, generator, decay):
    global steps
    steps += 1
    if steps == 30:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, samples, generator, decay)

DQN.step = counted
sys.argv[0] = "main.py"
main.main()
"""


@pytest.mark.usefixtures("recorded")
def test_demonstrations_of_other_rewards_are_refused(tmp_path):
    with np.load("bits.npz") as file:
        arrays = dict(file)
    np.savez("others.npz", **arrays | {"rewards": arrays["rewards"] + 0.5})
    with (
        Trainer(config_of("dqn", "Bits", demonstrations="others.npz")) as trainer,
        pytest.raises(UsageError, match=r"compute_reward of .* gives -1.0 where a step gave -0.5"),
    ):
        for _ in trainer:
            pass


@pytest.mark.parametrize("numbers", [(0, 2), pytest.param((0, 1), marks=pytest.mark.slow)])
def test_workers_and_one_that_dies_change_no_byte(numbers, tmp_path):
    for workers in numbers:
        died = tmp_path / f"died{workers}"
        environment = {"GOALS_DIES": str(died)} if workers == 2 else {}
        words = (*FLAGS, "--workers", str(workers), "--output", f"run{workers}")
        done = run_here(*words, cwd=tmp_path, environment=environment)
        assert done.returncode == 0, done.stderr
        assert died.exists() == (workers == 2)
        assert_same_run(tmp_path / f"run{workers}", tmp_path / "run0")
    header = (tmp_path / "run0" / "metrics.csv").read_text().splitlines()[0]
    assert "is_success" in header.split(",")


@pytest.mark.slow
def test_a_kill_changes_no_byte(tmp_path):
    done = run_here(*FLAGS, "--workers", "0", "--output", "run0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = (*FLAGS, "--workers", "0", "--output", "killed")
    environment = clean_environment(tmp_path)
    command = [sys.executable, "-c", KILLED, *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert 1 < rows(tmp_path / "killed") <= ITERATIONS
    done = run_here("--resume", "killed", "--workers", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same_run(tmp_path / "killed", tmp_path / "run0")
