"""Whole runs with masks: nothing forbidden is ever done, and the best of what is allowed is
learned."""

import numpy as np
import pytest

from flame_rl import Policy, Trainer
from flame_rl.settings.algorithms import ALGORITHMS
from flame_rl.system.errors import UsageError
from tests.helpers import described, run_here
from tests.learners import OF_CONTINUOUS_ACTIONS, demonstrations_for, make_config
from tests.masked import STEPS
from tests.runs import SMALL

OPTIONS = SMALL | {"minibatches": 1}


def config_of(algorithm: str, kind: str, **options):
    env = f"tests.masked:Masked{kind}-v0"
    if algorithm == "bc":
        spec = described(env)
        name = demonstrations_for(spec.action_space, spec.observation_space)
        options = {"demonstrations": name} | options
    return make_config(env, algorithm=algorithm, **OPTIONS | {"workers": 0} | options)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.keys() - {*OF_CONTINUOUS_ACTIONS}))
def test_nothing_forbidden_is_done_in_a_million_steps(algorithm):
    options = {"episodes_per_iter": 2000, "iterations": 84, "updates_per_step": 0.01}
    memory = {"memory": "gru"} if algorithm == "r2d2" else {}
    with Trainer(config_of(algorithm, "Choice", **options, **memory)) as trainer:
        *_, last = trainer
    assert last.env_steps > 1_000_000


@pytest.mark.parametrize(
    ("algorithm", "rate", "iterations"), [("ppo", 0.03, 12), ("pqn", 0.02, 40), ("dqn", 0.003, 12)]
)
def test_the_best_of_what_is_allowed_is_learned(algorithm, rate, iterations):
    """The greatest allowed choice pays, and a policy that does not see the mask learns it by an
    order of preference alone."""
    options = {"iterations": iterations, "episodes_per_iter": 60, "learning_rate": rate}
    options |= {"gamma": 0.0, "learning_rate_decay": algorithm != "dqn"}
    options |= {"epsilon_steps": 2000, "updates_per_step": 0.2, "minibatches": 4, "max_kl": 1.0}
    with Trainer(config_of(algorithm, "Choice", **options, capacity=5000)) as trainer:
        first, *_ = trainer
        mean = trainer.evaluate(100).reward_mean / STEPS
    assert first.reward_mean / STEPS < 0.6 and mean > 0.99


@pytest.mark.parametrize("last", [None, (0, 0, 0), (0, 1, 0)])
@pytest.mark.parametrize("algorithm", ["ppo", "impala", "pqn", "dqn", "sarsa", "successor", "r2d2"])
def test_a_mask_missing_where_a_time_limit_cuts(algorithm, last):
    """Action values go on there, of what is allowed; after an end they do not."""
    for terminates in (True, False):
        options = {"env_kwargs": {"last": last, "terminates": terminates}, "warm_up_steps": 1}
        memory = {"memory": "gru"} if algorithm == "r2d2" else {}
        with Trainer(config_of(algorithm, "Cut", **options, **memory)) as trainer:
            unknown = not any(last or ()) and not terminates
            if unknown and algorithm not in ("ppo", "impala"):
                with pytest.raises(UsageError, match=r"^action_mask: episode 0 was cut by a time"):
                    trainer.train()
            else:
                assert all(map(np.isfinite, trainer.train().metrics.values()))


def test_ignored_masks_are_said(tmp_path):
    flags = ("--env", "tests.masked:MaskedBeside-v0", "--no-action-mask", "--local")
    done = run_here(*flags, "--workers", "0", "--iterations", "1", cwd=tmp_path)
    assert done.returncode == 1 and "is forbidden" in done.stderr
    assert "  Observation: 7 numbers: " in done.stdout and "Action masks: ignored" in done.stdout


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_policy_outside_needs_the_mask(algorithm, tmp_path):
    """Step by step it acts as an evaluation does."""
    with Trainer(config_of(algorithm, "Choice")) as trainer:
        list(trainer)
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
    with pytest.raises(ValueError, match="action_mask: 0 for 1 observations; this policy"):
        policy.act(observation)
    with pytest.raises(ValueError, match="allows nothing"):
        policy.act(observation, action_mask=np.zeros(5, np.int8))
    plain = make_config("cartpole", **OPTIONS | {"workers": 0})
    with Trainer(plain) as trainer, pytest.raises(ValueError, match="trained without masks"):
        trainer.compute_action(np.zeros(4, np.float32), action_mask=np.ones(2))
