"""Remember what was observed first: a probe that no policy without memory can solve."""

from __future__ import annotations

import numpy as np
import pytest

from tests.probes.test_probe import solve

PPO = {
    "algorithm": "ppo",
    "epochs": 3,
    "learning_rate": 0.005,
    "value_learning_rate": 0.005,
    "memory_size": 16,
}


def mean_return(results, iterations: int) -> float:
    """Of the last iterations."""
    return float(np.mean([result.reward_mean for result in results[-iterations:]]))


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_five_steps_are_remembered(memory):
    results, _ = solve("Recall", memory=memory, **PPO | {"iterations": 25})
    assert results[0].reward_mean < 0.75
    assert mean_return(results, 3) > 0.95


def test_without_a_memory_half_of_the_episodes_are_paid():
    """The last observation is always 0: whatever it does then is right with probability 1/2."""
    results, _ = solve("Recall", memory="none", **PPO | {"iterations": 25})
    assert mean_return(results, 15) == pytest.approx(0.5, abs=0.08)
