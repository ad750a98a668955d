"""Minibatches that are drawn at once, and when they may be."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from flame_rl.wire.messages import EnvironmentSpec
from tests.learners import make_learner, random_episodes

SPEC = EnvironmentSpec("X-v0", spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(2))
OPTIONS = {"hidden_sizes": (8,), "warm_up_steps": 0, "batch_size": 10, "capacity": 100}


def drawing(**options):
    """An algorithm that has 17 steps in its replay memory, and took no gradient step."""
    options = OPTIONS | options
    learner = make_learner(SPEC, algorithm="dqn", **options)
    learner.algorithm.replay.add(random_episodes(continuous=False))
    return learner.algorithm


def test_each_minibatch_has_the_steps_of_its_own_positions():
    algorithm = drawing()
    drawn, positions = algorithm.minibatches.draw(4, 1.0, np.random.default_rng(0))
    assert positions.shape == (4, 10) and len(set(map(bytes, positions))) == 4
    for place in range(4):
        own = algorithm.inner.view(algorithm.replay.store, positions[place])
        assert own.keys() == drawn.keys()
        for name, column in own.items():
            np.testing.assert_array_equal(drawn[name][place], column)


@pytest.mark.parametrize("prioritized", [True, False])
def test_priorities_of_a_step_count_in_the_next_draw(prioritized, monkeypatch):
    algorithm, events = drawing(prioritized=prioritized), []
    replay = algorithm.replay
    draw, prioritize = replay.draw, replay.prioritize
    monkeypatch.setattr(replay, "draw", lambda *given: events.append("draw") or draw(*given))
    monkeypatch.setattr(
        replay, "prioritize", lambda *given: events.append("prioritize") or prioritize(*given)
    )
    steps = list(algorithm.gradient_steps(3, 1.0, np.random.default_rng(0)))
    assert len(steps) == 3
    apart, together = ["draw", "prioritize"] * 3, ["draw", *["prioritize"] * 3]
    assert events == (apart if prioritized else together)
