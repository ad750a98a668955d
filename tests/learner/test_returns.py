"""Advantages against slow, plain formulas; tests/learner/test_learner.py compares whole updates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flame_rl.learner.on_policy.batch import Batch
from flame_rl.learner.on_policy.returns import (
    generalized_advantages,
    standardize,
    td_errors,
)

BATCHES = st.tuples(
    st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=12), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
    st.integers(0, 1000),
)


def flat(episodes):
    return np.concatenate([np.array(e, float) for e in episodes]), np.array(
        [len(e) for e in episodes]
    )


def test_standardize():
    values = np.random.default_rng(0).standard_normal(1000) * 7 + 3
    normal = standardize(values)
    np.testing.assert_allclose(normal, (values - np.mean(values)) / np.std(values), atol=1e-6)


def test_weighted_advantages_have_a_weighted_baseline():
    """A step that no longer counts is not learned from; all weights may be 0."""
    rng = np.random.default_rng(0)
    advantages, weights = rng.standard_normal(1000) + 3, rng.uniform(0, 1, 1000)
    weights[:100] = 0
    expected = weights * (advantages - np.average(advantages, weights=weights))
    lengths = np.array([1000])
    batch = Batch({}, np.arange(1000), lengths, np.array([True]), ratios=weights)
    found = standardize(weights * advantages, batch.importance_weights)
    np.testing.assert_allclose(found, expected / expected.std(), atol=1e-6)
    assert not found[:100].any()
    none = replace(batch, ratios=np.zeros(1000))
    np.testing.assert_array_equal(standardize(np.zeros(1000), none.importance_weights), 0)


@pytest.mark.parametrize("value", [0.0, 1.0, 100.0, -1e12, 0.1])
def test_equal_returns_carry_no_preference(value):
    np.testing.assert_array_equal(standardize(np.full(12345, value)), 0)


def split_values(values, episodes):
    """One list for each episode, of one more value than it has steps."""
    out, start = [], 0
    for rewards in episodes:
        out.append(values[start : start + len(rewards) + 1])
        start += len(rewards) + 1
    return out


def random_values(episodes, seed):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(sum(len(e) + 1 for e in episodes))
    return values, rng.random(len(episodes)) < 0.5, rng


@settings(max_examples=60, deadline=None)
@given(BATCHES, st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_weighted_advantages_are_v_trace_by_definition(batch, gae_lambda):
    """v_s - V_s = sum over t >= s of discount^(t-s) (c_s ... c_{t-1}) rho_t delta_t (Espeholt et
    al. 2018, eq. 1), with c = lambda min(1, ratio) and rho = min(1, ratio)."""
    episodes, discount, seed = batch
    rewards, lengths = flat(episodes)
    values, terminated, rng = random_values(episodes, seed)
    ratios = np.exp(rng.normal(0, 1, len(rewards)))
    expected, start = [], 0
    for r, v, ended in zip(episodes, split_values(values, episodes), terminated, strict=True):
        v = [*v[:-1], 0.0 if ended else v[-1]]
        ratio = ratios[start : start + len(r)]
        start += len(r)
        for s in range(len(r)):
            total = 0.0
            for t in range(s, len(r)):
                product = np.prod([gae_lambda * min(1.0, ratio[i]) for i in range(s, t)])
                delta = min(1.0, ratio[t]) * (r[t] + discount * v[t + 1] - v[t])
                total += discount ** (t - s) * product * delta
            expected.append(total)
    weights = np.minimum(ratios, 1.0)
    errors = td_errors(rewards, values, lengths, terminated, discount)
    common = errors, lengths, discount * gae_lambda
    np.testing.assert_allclose(generalized_advantages(*common, weights), expected, atol=1e-9)
    ones = generalized_advantages(*common, np.ones_like(weights))
    np.testing.assert_array_equal(ones, generalized_advantages(*common))
