"""Learners from replay with normalised observations: the statistics against NumPy's, and no unit
that observations could be in matters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from flame_rl.learner.learner import Learner
from flame_rl.wire.messages import Episodes
from tests.helpers import spec_of
from tests.learners import OF_CONTINUOUS_ACTIONS, make_learner, random_episodes

SETTINGS = {
    "hidden_sizes": (16,),
    "normalize_observations": True,
    "warm_up_steps": 10,
    "capacity": 100,
    "batch_size": 8,
    "n_step": 3,
    "layer_norm": False,
}


def learned(algorithm: str, *parts: Episodes, **options) -> Learner:
    learner = make_learner(spec_of(3, 2, True), algorithm=algorithm, **(SETTINGS | options))
    for episodes in parts:
        learner.update(episodes)
    return learner


def moved(episodes: Episodes, factor: float, shift: float = 0.0) -> Episodes:
    observations = (episodes.observations * factor + shift).astype(np.float32)
    return replace(episodes, columns=episodes.columns | {"observations": observations})


@pytest.mark.parametrize("algorithm", OF_CONTINUOUS_ACTIONS)
def test_the_unit_of_observations_does_not_matter(algorithm):
    """A power of 2 is exact in floating point, so that everything is the same to the bit."""
    episodes = random_episodes(continuous=True)
    plain, scaled = (learned(algorithm, *2 * [moved(episodes, f)]) for f in (1.0, 1024.0))
    for name, weights in plain.weights().items():
        same = np.array_equal(weights, scaled.weights()[name])
        assert same == (not name.startswith("normalizer")), name
    without = (
        learned(algorithm, *2 * [moved(episodes, f)], normalize_observations=False)
        for f in (1.0, 1024.0)
    )
    first, second = (learner.weights()["policy.network.0.weight"] for learner in without)
    assert not np.array_equal(first, second)


def test_pictures_are_not_normalised():
    spec = replace(spec_of(3, 2, True), observation_space=spaces.Box(0, 255, (3,), np.uint8))
    learner = make_learner(spec, algorithm="sac", **SETTINGS)
    assert learner.algorithm.observations is None
    assert "normalizer" not in learner.parts
