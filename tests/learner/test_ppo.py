"""The clipped objective and its epochs against plain formulas."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from flame_rl.learner.algorithms.ppo import clipped_loss
from flame_rl.learner.on_policy.actor_critic import shuffle
from flame_rl.learner.on_policy.batch import Batch, make_batch
from flame_rl.learner.on_policy.losses import kl_terms, policy_gradient_loss
from tests.helpers import episode_of, together
from tests.learners import learner_of, random_episodes


def test_the_kl_estimate_is_unbiased():
    old, new = torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.3, 1.2)
    torch.manual_seed(0)
    actions = old.sample((200_000,))
    terms = kl_terms((new.log_prob(actions) - old.log_prob(actions)).numpy())
    assert (terms >= 0).all()
    exact = torch.distributions.kl_divergence(old, new).item()
    assert terms.mean().item() == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize(
    ("steps", "wanted", "count"), [(1, 4, 1), (640, 1, 1), (640, 4, 4), (130, 4, 2), (9999, 32, 32)]
)
def test_minibatches_take_every_step_once(steps, wanted, count):
    observations = np.arange(3 * (steps + 1), dtype=np.float32).reshape(-1, 3)
    actions = np.zeros((steps, 2), np.float32)
    episode = episode_of(0, observations, actions, np.zeros(steps), True, False)
    columns = {"number": np.arange(steps)}
    rng = np.random.default_rng(0)
    batch = make_batch(together([episode]))
    batch = replace(batch, policy_inputs=observations, log_probs=np.zeros(steps))
    parts = shuffle(batch, columns, wanted, rng).minibatches()
    for part in parts:
        np.testing.assert_array_equal(part["inputs"], observations[part["number"]])
    assert len(parts) == count
    assert min(len(part["number"]) for part in parts) >= min(64, steps)
    numbers = np.concatenate([part["number"] for part in parts])
    assert sorted(numbers) == list(range(steps))
    assert (count == 1) == (numbers == np.arange(steps)).all()
    # Each observation stays with its step.
    inputs = np.concatenate([part["inputs"] for part in parts])
    np.testing.assert_array_equal(inputs, observations[numbers])


@pytest.mark.parametrize("recompute", [False, True])
def test_advantages_are_computed_once_or_before_every_epoch(recompute, monkeypatch):
    calls = []
    original = Batch.advantages

    def counted(*arguments):
        calls.append(original(*arguments))
        return calls[-1]

    monkeypatch.setattr(Batch, "advantages", counted)
    learner_of(True, algorithm="ppo", epochs=4, recompute_advantages=recompute).update(
        random_episodes(True)
    )
    assert len(calls) == (4 if recompute else 1)
    assert all((a != b).any() for a, b in pairwise(calls))


@pytest.mark.parametrize("loss", [clipped_loss(0.2, 0.0), policy_gradient_loss(0.0)])
def test_the_divergence_counts_a_step_as_much_as_the_older_policy_has_played_it(loss):
    """The one that ends the epochs, of a minibatch."""
    episode = episode_of(
        0, np.zeros((5, 3), np.float32), np.zeros((4, 2)), np.zeros(4), True, False
    )
    batch = make_batch(together([episode]))
    ratios, log_probs = np.array([3.0, 0.5, 0.0, 0.1]), np.zeros(4)
    inputs = batch.observations
    batch = replace(batch, policy_inputs=inputs, log_probs=log_probs, ratios=ratios)
    epoch = shuffle(batch, {"advantages": np.ones(4)}, 1, np.random.default_rng(0))
    (minibatch,) = epoch.minibatches()
    ratio = np.array([0.5, 1.5, 9.0, 1.1])
    numbers, _ = loss(minibatch, np.log(ratio), np.zeros(4))
    expected = np.average(ratio - 1 - np.log(ratio), weights=ratios)
    assert numbers["kl"].mean() == pytest.approx(expected, rel=1e-6)
