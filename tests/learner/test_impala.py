"""V-trace on sequences, against its definition as sums and products."""

from __future__ import annotations

import numpy as np
import pytest

from flame_rl.learner.algorithms.impala import v_trace
from flame_rl.learner.on_policy.returns import generalized_advantages
from tests.helpers import spec_of
from tests.learners import make_learner, random_episodes


def by_definition(rewards, discounts, values, next_values, rho, length, trace_lambda):
    """Eq. 1 of the paper for one sequence of `length` steps."""
    deltas = rho * (rewards + discounts * next_values - values)
    errors = np.zeros(len(rewards))
    for s in range(length):
        for t in range(s, length):
            trace = np.prod(discounts[s:t] * trace_lambda * rho[s:t])
            errors[s] += trace * deltas[t]
    advantages = np.zeros(len(rewards))
    for s in range(length):
        following = next_values[s] + (errors[s + 1] if s + 1 < length else 0)
        advantages[s] = rho[s] * (rewards[s] + discounts[s] * following - values[s])
    return errors, advantages


@pytest.mark.parametrize("trace_lambda", [0.0, 0.7, 1.0])
def test_sequences_by_definition(trace_lambda):
    rng = np.random.default_rng(0)
    lengths = [6, 4, 1, 6]
    mask = (np.arange(6) < np.array(lengths)[:, None]).astype(float)
    # Beyond its end a sequence repeats an observation, whose value is not 0.
    rewards, values, next_values = rng.standard_normal((3, 4, 6))
    rewards, discounts = rewards * mask, 0.9 * mask
    discounts[1, 3] = 0.0  # an end; the sequence of one step was cut
    rho = rng.uniform(0.1, 1, (4, 6))
    samples = {"rewards": rewards, "discounts": discounts, "mask": mask}
    ours = v_trace(samples, values, next_values, rho, trace_lambda)
    for row, length in enumerate(lengths):
        columns = (x[row] for x in (rewards, discounts, values, next_values, rho))
        theirs = by_definition(*columns, length, trace_lambda)
        for own, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(own[row], other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("terminated", [True, False])
def test_on_policy_it_is_the_generalised_advantage(terminated):
    rng = np.random.default_rng(1)
    rewards, values = rng.standard_normal(7), rng.standard_normal(8)
    discounts = np.full((1, 7), 0.9)
    discounts[0, -1] = 0.0 if terminated else 0.9
    following, ones = values[None, 1:], np.ones((1, 7))
    samples = {"rewards": rewards[None], "discounts": discounts, "mask": ones}
    errors, _ = v_trace(samples, values[None, :-1], following, ones, 0.8)
    lengths, ends = np.array([7]), np.array([terminated])
    expected = generalized_advantages(rewards, values, lengths, ends, 0.9, 0.8)
    np.testing.assert_allclose(errors[0], expected, rtol=1e-9)


@pytest.mark.parametrize("continuous", [True, False])
def test_what_is_recorded_is_the_policy_that_acted(continuous):
    """Before its first update nothing has changed: every importance weight is 1."""
    learner = make_learner(
        spec_of(3, 2, continuous),
        algorithm="impala",
        warm_up_steps=0,
        sequence_length=4,
        updates_per_step=0.05,
        normalize_observations=False,
    )
    metrics = learner.update(random_episodes(continuous))
    assert metrics["gradient_steps"] == 1
    assert metrics["importance"] == pytest.approx(1, abs=1e-5)
    assert learner.algorithm.replay.store.columns[-1].name == "log_probs"
