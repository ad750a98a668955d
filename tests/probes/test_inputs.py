"""A probe that cannot be solved without both of its inputs, a picture and numbers."""

import numpy as np
import pytest

from flame_rl import Trainer
from flame_rl.nets.acting import ActingPolicy
from tests import runs
from tests.helpers import environment_id
from tests.learners import make_config

QUICK = runs.QUICK | {
    "iterations": 40,
    "episodes_per_iter": 50,
    "learning_rate": 0.01,
    "value_learning_rate": 0.01,
    "minibatches": 2,
    "activation": "relu",
    "gamma": 0.0,
    "updates_per_step": 0.2,
    "epsilon_steps": 1000,
    "tau": 0.1,
    "capacity": 10_000,
}


SAC = {"learning_rate": 0.003, "value_learning_rate": 0.003, "initial_temperature": 0.05}


@pytest.mark.parametrize(
    ("name", "options", "alone"),
    [
        ("TwoInputs", {"algorithm": "ppo"}, 2.0),
        ("TwoInputsAndNumbers", {"algorithm": "sac"} | SAC, 3.0),
    ],
)
def test_it_learns_from_both(name, options, alone):
    """`alone` is the greatest mean return of four steps without the camera, or without the arm."""
    with Trainer(make_config(environment_id(name), **QUICK | options)) as trainer:
        means = [trainer.train().reward_mean]
        while means[-1] < alone + 0.2:
            means.append(trainer.train().reward_mean)
    assert means[0] < alone - 0.5


def probability_of_right(observed: dict, seed: int) -> float:
    """Of the actions that pay, after ten iterations."""
    options = QUICK | {"algorithm": "ppo", "iterations": 10, "seed": seed} | observed
    with Trainer(make_config(environment_id("HiddenReward"), **options)) as trainer:
        list(trainer)
        policy = ActingPolicy(trainer.learner.snapshot())
    seen = np.array([-1, 1] * 4, np.float32)
    columns = [seen] if policy.observation_dim == 1 else [9 * np.sign(seen[::-1]), seen]
    logits = policy.forward(np.stack(columns, axis=1).astype(np.float32))
    of_one = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    return float(np.where(seen > 0, of_one, 1 - of_one).mean())


def test_it_learns_quicker_where_the_critic_alone_sees_what_is_hidden():
    seeds = range(2)
    whole = [probability_of_right({"policy_observations": ("seen",)}, seed) for seed in seeds]
    part = [probability_of_right({"observe": ("seen",)}, seed) for seed in seeds]
    assert min(whole) > max(part)
