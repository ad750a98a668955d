"""Catch a ball that falls down a picture: a probe of all that sees."""

from __future__ import annotations

import numpy as np
import pytest

from tests.probes.test_probe import QUICK_REPLAY, solve

PPO = {
    "algorithm": "ppo",
    "iterations": 18,
    "episodes_per_iter": 60,
    "epochs": 6,
    "minibatches": 4,
    "learning_rate": 0.007,
    "value_learning_rate": 0.007,
    "hidden_sizes": (32,),
    "activation": "relu",
}
DQN = QUICK_REPLAY | {
    "algorithm": "dqn",
    "iterations": 22,
    "gamma": 0.95,
    "n_step": 3,
    "updates_per_step": 0.3,
    "epsilon_steps": 2000,
    "learning_rate": 0.003,
    "tau": 0.05,
    "hidden_sizes": (32,),
    "lowest_return": -1.0,
}
OPTIONS = [pytest.param(PPO, id="ppo"), pytest.param(DQN, id="dqn")]


def mean_return(results, iterations: int) -> float:
    """Of the last iterations."""
    return float(np.mean([result.reward_mean for result in results[-iterations:]]))


@pytest.mark.parametrize("options", OPTIONS)
def test_the_ball_is_caught(options):
    results, learner = solve("Catch", **options)
    assert results[0].reward_mean < 0
    assert mean_return(results, 4) > 0.8
    assert "convolution" in {layer.kind for layer in learner.snapshot().layers}


BRIGHT = PPO | {"learning_rate": 0.002, "value_learning_rate": 0.002, "iterations": 14}


@pytest.mark.slow
def test_a_bright_background_does_not_drown_the_ball():
    results, learner = solve("BrightCatch", **BRIGHT)
    assert mean_return(results, 4) > 0.3
    layer = learner.snapshot().layers[0]
    # The uppermost corner is ball in a fifth of the first pictures, and never later.
    assert layer.kind == "center" and 199 < layer.arrays["mean"][0] < 203
