"""Learners from replay with normalised observations: the statistics against NumPy's, and no unit
that observations could be in matters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from flame_rl.learner.learner import Learner
from flame_rl.learner.training.normalize import RunningMoments
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


def test_outliers_of_a_sensor_do_not_hide_the_others():
    """Rare numbers that the others do not reach by far; but not rare events beside equal numbers,
    a change of scale, or tails that are only heavy."""
    rng = np.random.default_rng(0)
    usual = rng.standard_normal((5000, 6)) * (1, 1e-3, 10, 0, 1, 1) + (0, 5, 0, 0, 0, 0)
    usual[::400, 3] = 1  # events
    usual[4000:, 4] *= 1e4
    usual[:, 5] = rng.standard_cauchy(5000).clip(-50, 50)
    wild = usual.copy()
    wild[::500, :3] = 1e6
    wild[7, 0] = -1e30
    found = []
    for rows in (usual, wild):
        moments = RunningMoments(6)
        for start in range(0, 5000, 1000):
            moments.update(rows[start : start + 1000].astype(np.float32), outliers=False)
        found.append((moments.mean, moments.std))
    (mean, std), (near, spread) = found
    np.testing.assert_allclose(mean, usual.mean(axis=0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(std, usual.std(axis=0), rtol=1e-4)
    assert (np.abs(near - mean) <= 0.1 * std).all()
    np.testing.assert_allclose(spread, std, rtol=0.05)


def test_pictures_are_not_normalised():
    spec = replace(spec_of(3, 2, True), observation_space=spaces.Box(0, 255, (3,), np.uint8))
    learner = make_learner(spec, algorithm="sac", **SETTINGS)
    assert learner.algorithm.observations is None
    assert "normalizer" not in learner.parts
