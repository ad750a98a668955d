"""A solved task stays solved: CartPole by its presets, in 60,000 env steps."""

import numpy as np
import pytest

from flame_rl import TrainConfig, Trainer

SIZE = {"env_steps": 60_000, "steps_per_iter": 2_000, "workers": 0, "local": True}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["reinforce", "a2c", "ppo"])
@pytest.mark.parametrize("shared", [False, True])
def test_cartpole_stays_solved(algorithm, shared):
    """Mean returns of the last tenth, of three seeds that no setting was chosen by."""
    last = []
    for seed in (10, 11, 12):
        config = TrainConfig("cartpole", algorithm=algorithm, shared_torso=shared, seed=seed)
        with Trainer(config.changed(**SIZE)) as trainer:
            returns = [result.reward_mean for result in trainer]
        last.append(np.mean(returns[-len(returns) // 10 :]))
    assert min(last) > 475, last
