"""The projection of a distribution of returns against a plain loop; test_off_policy.py compares
whole steps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flame_rl.learner.off_policy.values import (
    c51_loss,
    project,
)

ATOMS = 5
SUPPORT = np.linspace(-2, 2, ATOMS)


def distributions(rows: int, atoms: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(atoms), rows)


# C51's projection


def slow_projection(support, rewards, discounts, probabilities):
    """Algorithm 1 as the paper's loop, but for an atom hit exactly, whose probability the paper's
    two shares, (u - b) and (b - l), both lose."""
    low, high, gap = support[0], support[-1], support[1] - support[0]
    projected = np.zeros_like(probabilities)
    for i in range(len(rewards)):
        for j in range(len(support)):
            value = max(low, min(high, rewards[i] + discounts[i] * support[j]))
            place = min((value - low) / gap, len(support) - 1)  # which rounding may exceed
            below, above = math.floor(place), math.ceil(place)
            if below == above:
                projected[i, below] += probabilities[i, j]
                continue
            projected[i, below] += probabilities[i, j] * (above - place)
            projected[i, above] += probabilities[i, j] * (place - below)
    return projected


@settings(max_examples=200, deadline=None)
@given(
    st.integers(2, 12),
    st.floats(-50, 50),
    st.floats(0.1, 30),
    st.lists(
        st.tuples(st.floats(-100, 100), st.floats(0, 1)),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 1000),
)
def test_projection_by_algorithm_1(atoms, low, width, steps, seed):
    support = np.linspace(low, low + width, atoms)
    rewards, discounts = np.array(steps).T
    probabilities = distributions(len(steps), atoms, seed)
    projected = project(support, rewards, discounts, probabilities)
    expected = slow_projection(support, rewards, discounts, probabilities)
    np.testing.assert_allclose(projected, expected, atol=1e-9)
    np.testing.assert_allclose(projected.sum(axis=1), 1)


@pytest.mark.parametrize("support", [[0.0, 1, 3], [2.0, 1, 0], [1.0], [1.0, 1], [0, math.nan]])
def test_a_support_that_is_not_equidistant_is_refused(support):
    support = np.array(support)
    with pytest.raises(ValueError, match="support"):
        c51_loss(support)


def test_a_wide_support_in_float32_is_equidistant():
    c51_loss(np.linspace(-1000, 1234.5, 501, dtype=np.float32))


# Losses


def test_c51_with_logits_that_no_exponential_holds():
    logits = np.array([[1000, -1000, 0, 0, 0]], np.float32)
    samples = {"actions": np.array([0]), "targets": np.eye(ATOMS, dtype=np.float32)[1:2]}
    numbers, (slope,) = c51_loss(SUPPORT)(samples, logits)
    assert numbers["loss"] == pytest.approx(2000) and numbers["value"] == -2
    np.testing.assert_allclose(slope, [[1, -1, 0, 0, 0]])
