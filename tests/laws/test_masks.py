"""Whole runs with masks: nothing forbidden is ever done, and the same bytes on any number of
workers, on a cluster, whoever dies, and after a resume."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from flame_rl import Policy, Trainer
from flame_rl.settings.algorithms import ALGORITHMS
from tests.flame_fixtures import run as run_on
from tests.helpers import ROOT, described, run_here
from tests.learners import OF_CONTINUOUS_ACTIONS, demonstrations_for, make_config
from tests.masked import STEPS

ITERATIONS = 3
OPTIONS = {
    "hidden_sizes": (6,),
    "steps_per_iter": None,
    "episodes_per_iter": 12,
    "iterations": ITERATIONS,
    "minibatches": 1,
    "learning_rate": 0.01,
    "warm_up_steps": 20,
    "batch_size": 16,
    "updates_per_step": 0.1,
    "capacity": 300,
    "sequence_length": 4,
    "burn_in": 2,
    "epsilon_steps": 100,
    "local": True,
}
RUNS = [
    ("reinforce", "Choices", {}),
    ("a2c", "Choices", {"memory": "gru"}),
    ("ppo", "Bits", {"shared_torso": True}),
    ("impala", "Choice", {"frame_stack": 2}),
    ("dqn", "Beside", {"distribution": "c51", "dueling": True, "n_step": 3, "prioritized": True}),
    ("dqn", "Choice", {"epsilon_repeat": 0.5, "frame_stack": 3}),
    ("sarsa", "Choice", {"expected": False}),
    ("successor", "Choice", {}),
    ("r2d2", "Choice", {"memory": "gru", "frame_stack": 2}),
    ("bc", "Choices", {"clone_epochs": 2}),
]
NAMED = [pytest.param(*run, id=f"{run[0]} {run[1]} {' '.join(run[2])}".strip()) for run in RUNS]


def config_of(algorithm: str, kind: str, **options):
    env = f"tests.masked:Masked{kind}-v0"
    if algorithm == "bc":
        spec = described(env)
        name = demonstrations_for(spec.action_space, spec.observation_space)
        options = {"demonstrations": name} | options
    return make_config(env, algorithm=algorithm, **OPTIONS | {"workers": 0} | options)


def digests(trainer: Trainer) -> list[str]:
    return [trainer.learner.weights_digest() for _ in trainer]


@pytest.mark.parametrize(("algorithm", "kind", "options"), NAMED)
def test_nothing_forbidden_is_done_and_a_saved_run_goes_on(algorithm, kind, options, tmp_path):
    with Trainer(config_of(algorithm, kind, **options)) as trainer:
        expected = digests(trainer)
        trainer.evaluate(20)
    assert len(set(expected)) == ITERATIONS
    with Trainer(config_of(algorithm, kind, **options)) as trainer:
        trainer.train()
        trainer.save(tmp_path / "half.ckpt")
    with Trainer.load(tmp_path / "half.ckpt", workers=0) as trainer:
        assert digests(trainer) == expected[1:]


def test_every_algorithm_that_has_such_actions_is_here():
    assert {name for name, *_ in RUNS} == ALGORITHMS.keys() - {*OF_CONTINUOUS_ACTIONS}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", sorted({name for name, *_ in RUNS}))
def test_nothing_forbidden_is_done_in_a_million_steps(algorithm):
    options = {"episodes_per_iter": 2000, "iterations": 84, "updates_per_step": 0.01}
    memory = {"memory": "gru"} if algorithm == "r2d2" else {}
    with Trainer(config_of(algorithm, "Choice", **options, **memory)) as trainer:
        *_, last = trainer
    assert last.env_steps > 1_000_000


@pytest.mark.parametrize(("algorithm", "rate"), [("ppo", 0.03), ("dqn", 0.003)])
def test_the_best_of_what_is_allowed_is_learned(algorithm, rate):
    """The greatest allowed choice pays, and a policy that does not see the mask learns it by an
    order of preference alone."""
    options = {"iterations": 12, "episodes_per_iter": 60, "learning_rate": rate, "gamma": 0.0}
    options |= {"epsilon_steps": 2000, "updates_per_step": 0.2, "minibatches": 4, "max_kl": 1.0}
    with Trainer(config_of(algorithm, "Choice", **options, capacity=5000)) as trainer:
        first, *_ = trainer
        mean = trainer.evaluate(100).reward_mean / STEPS
    assert first.reward_mean / STEPS < 0.6 and mean > 0.99


@pytest.mark.parametrize(("algorithm", "kind"), [("ppo", "Choices"), ("dqn", "Beside")])
def test_workers_and_one_that_dies_change_no_byte(algorithm, kind, tmp_path):
    runs = []
    for workers in (0, 1, 2):
        flags = ("--env", f"tests.masked:Masked{kind}-v0", "--algorithm", algorithm, "--local")
        flags += ("--hidden-sizes", "6", "--episodes-per-iter", "12", "--iterations", "3")
        if algorithm == "dqn":
            flags += ("--warm-up-steps", "20", "--batch-size", "8", "--updates-per-step", "0.1")
        died = tmp_path / f"died{workers}"
        environment = {"MASKED_DIES": str(died)} if workers == 2 else {}
        words = (*flags, "--workers", str(workers), "--output", f"run{workers}")
        done = run_here(*words, cwd=tmp_path, environment=environment)
        assert done.returncode == 0, done.stderr
        assert died.exists() == (workers == 2)
        place = "observation" if kind == "Beside" else "info"
        assert f'  Action masks: {place}["action_mask"]; what they forbid is never' in done.stdout
        runs.append((tmp_path / f"run{workers}" / "metrics.csv").read_bytes())
    assert runs[0] == runs[1] == runs[2]


def test_flame_gives_the_same_bytes(memory, project, local, tmp_path):
    shutil.copy(ROOT / "tests" / "masked.py", project)
    flags = ("--env", "masked:MaskedChoices-v0", "--algorithm", "ppo", "--hidden-sizes", "6")
    flags += ("--episodes-per-iter", "12", "--iterations", "2")
    finished = run_on(project, tmp_path, memory.environment, *flags)
    assert finished.code == 0, finished.err
    assert 'Action masks: info["action_mask"]' in finished.out
    assert finished.metrics == local(*flags)
    memory.assert_nothing_left()


def test_ignored_masks_are_said(tmp_path):
    flags = ("--env", "tests.masked:MaskedBeside-v0", "--no-action-mask", "--local")
    done = run_here(*flags, "--workers", "0", "--iterations", "1", cwd=tmp_path)
    assert done.returncode == 1 and "is forbidden" in done.stderr
    assert "  Observation: 7 numbers: " in done.stdout and "Action masks: ignored" in done.stdout


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_policy_outside_needs_the_mask(algorithm, tmp_path):
    """Step by step it acts as an evaluation does."""
    with Trainer(config_of(algorithm, "Choice")) as trainer:
        digests(trainer)
        trainer.save(tmp_path / "some.ckpt")
        request = trainer.evaluation_request(5, explore=False, seed=3)
        episodes = trainer._backend.collect(trainer.learner.snapshot(), request).episodes
        observation, mask = np.ones(2, np.float32), np.ones(5, np.int8)
        action = trainer.compute_action(observation, action_mask=mask)
    policy = Policy.load(tmp_path / "some.ckpt")
    assert policy.act(observation, action_mask=mask) == action
    for episode in episodes:
        for step in range(episode.length):
            row = np.unpackbits(episode.columns["action_masks"][step])[:5]
            seen = episode.observations[step]
            assert policy.act(seen, action_mask=row) == episode.actions[step]
            alone = np.arange(5) == step % 5
            assert policy.act(seen, explore=True, action_mask=alone) == step % 5
    with pytest.raises(ValueError, match="action_mask: none for 1 observations, and this policy"):
        policy.act(observation)
    with pytest.raises(ValueError, match="allows nothing"):
        policy.act(observation, action_mask=np.zeros(5, np.int8))
    plain = make_config("cartpole", **OPTIONS | {"workers": 0})
    with Trainer(plain) as trainer, pytest.raises(ValueError, match="trained without masks"):
        trainer.compute_action(np.zeros(4, np.float32), action_mask=np.ones(2))


def test_a_run_from_before_masks_goes_on_without_them(tmp_path):
    """Its configuration does not name them."""
    flags = ("--env", "Taxi-v4", "--episodes-per-iter", "2", "--hidden-sizes", "4", "--local")
    flags += ("--max-episode-steps", "20", "--workers", "0", "--output", "run")
    done = run_here(*flags, "--no-action-mask", "--iterations", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for path in tmp_path.glob("run/config.json"):
        saved = json.loads(path.read_text())
        del saved["experiment"]["action_mask"]
        path.write_text(json.dumps(saved))
    done = run_here("--resume", "run", "--iterations", "2", "--local", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Action masks: ignored" in done.stdout
