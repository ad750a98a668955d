"""Returns against slow, plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flame_rl.learner.returns import constant_value, discounted_returns, normalize

BATCHES = st.tuples(
    st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=12), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
    st.integers(0, 1000),
)


def slow_returns(episodes, discount, bootstrap):
    """The sum of the definition, term by term."""
    out = []
    for rewards, value in zip(episodes, bootstrap, strict=True):
        for t in range(len(rewards)):
            g = sum(discount ** (k - t) * rewards[k] for k in range(t, len(rewards)))
            out.append(g + discount ** (len(rewards) - t) * value)
    return np.array(out)


def flat(episodes):
    return np.concatenate([np.array(e, float) for e in episodes]), np.array(
        [len(e) for e in episodes]
    )


@settings(max_examples=200, deadline=None)
@given(BATCHES)
def test_discounted_returns_by_definition(batch):
    episodes, discount, seed = batch
    rewards, lengths = flat(episodes)
    bootstrap = np.random.default_rng(seed).standard_normal(len(episodes))
    np.testing.assert_allclose(
        discounted_returns(rewards, lengths, discount, bootstrap),
        slow_returns(episodes, discount, bootstrap),
        atol=1e-9,
    )


@settings(max_examples=100, deadline=None)
@given(BATCHES)
def test_constant_value_is_the_fixed_point(batch):
    episodes, discount, seed = batch
    if discount == 1.0:
        return
    rewards, lengths = flat(episodes)
    truncated = np.random.default_rng(seed).random(len(episodes)) < 0.5
    if not truncated.any():
        assert constant_value(rewards, lengths, truncated, discount) == 0
        return
    value = 0.0
    for _ in range(1500):  # a contraction: discount < 1
        value = slow_returns_mean(episodes, discount, truncated, value)
    assert constant_value(rewards, lengths, truncated, discount) == pytest.approx(value, abs=1e-6)


def slow_returns_mean(episodes, discount, truncated, value):
    rewards, lengths = flat(episodes)
    return discounted_returns(rewards, lengths, discount, np.where(truncated, value, 0.0)).mean()


def test_an_endless_task_of_1_per_step_is_worth_what_the_geometric_series_says():
    rewards, lengths = np.ones(7 * 3), np.array([7, 7, 7])
    value = constant_value(rewards, lengths, np.ones(3, bool), 0.9)
    assert value == pytest.approx(10)
    returns = discounted_returns(rewards, lengths, 0.9, np.full(3, value))
    np.testing.assert_allclose(returns, 10)


def test_nothing_is_bootstrapped_without_truncation_or_without_discount():
    rewards, lengths = np.ones(4), np.array([2, 2])
    assert constant_value(rewards, lengths, np.zeros(2, bool), 0.9) == 0
    assert constant_value(rewards, lengths, np.ones(2, bool), 1.0) == 0


def test_normalize():
    values = np.random.default_rng(0).standard_normal(1000) * 7 + 3
    normal = normalize(values)
    np.testing.assert_allclose(normal, (values - np.mean(values)) / np.std(values), atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0, 100.0, -1e12, 0.1])
def test_equal_returns_carry_no_preference(value):
    np.testing.assert_array_equal(normalize(np.full(12345, value)), 0)


def test_over_the_batch_and_not_per_episode():
    """An episode of 5 per step must weigh more than one of 1 per step."""
    rewards, lengths = np.array([1.0, 1, 1, 5, 5, 5]), np.array([3, 3])
    normal = normalize(discounted_returns(rewards, lengths, 1.0, np.zeros(2)))
    assert normal[3:].sum() > 0 > normal[:3].sum()


@pytest.mark.parametrize(
    ("rewards", "lengths", "bootstrap"),
    [
        (np.ones((2, 2)), np.array([2, 2]), np.zeros(2)),
        (np.ones(4), np.array([2, 3]), np.zeros(2)),
        (np.ones(4), np.array([4, 0]), np.zeros(2)),
        (np.ones(4), np.array([2, 2]), np.zeros(3)),
        (np.ones(0), np.array([], int), np.zeros(0)),
    ],
)
def test_what_does_not_fit_is_refused(rewards, lengths, bootstrap):
    with pytest.raises(ValueError, match=r"rewards|lengths|bootstrap"):
        discounted_returns(rewards, lengths, 0.9, bootstrap)
