"""Probe environments: tiny, with a known answer, each failing for one kind of mistake."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import model
from flame_rl.actor.policy import ActingPolicy
from flame_rl.backends.inline import InlineBackend
from flame_rl.config import TrainConfig
from flame_rl.learner.reinforce import Reinforce
from flame_rl.train import Totals, train
from tests.helpers import environment_id


def solve(name: str, **options):
    values = {"iterations": 40, "episodes_per_iter": 50, "learning_rate": 0.05} | options
    config = TrainConfig(env=environment_id(name), hidden_sizes=(16,), **values)
    stop = threading.Event()
    backend = InlineBackend(stop)
    learner = Reinforce(config, model.make_policy(backend.describe(config.env, None), config))
    results = list(train(config, config.env, learner, backend, stop, Totals()))
    backend.close()
    return results, learner


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "best"), [("ActionReward", 1), ("ObservationAction", 4), ("DelayedReward", 1)]
)
def test_learns_the_known_answer(name, best, seed):
    results, _ = solve(name, seed=seed)
    assert results[0].reward_mean < 0.75 * best
    assert results[-1].reward_mean > 0.95 * best


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_finds_a_continuous_optimum(seed):
    _, learner = solve("Target", seed=seed, iterations=60)
    acting = ActingPolicy(learner.snapshot())
    assert acting.forward(np.ones((8, 1), np.float32))[0, 0] == pytest.approx(0.2, abs=0.1)


def test_a_constant_reward_teaches_nothing():
    results, learner = solve("Endless", iterations=3)
    # Every episode is cut at 7 steps: with the value of going on added, all returns are equal.
    assert all(result.losses["gradient_norm"] == 0 for result in results)
    assert learner.snapshot().version == 3
