"""Advantages, PPO's objective and epochs, and losses in torch, against slow, plain formulas."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flame_rl.learner.algorithms.ppo import clipped_loss
from flame_rl.learner.on_policy.actor_critic import policy_epoch
from flame_rl.learner.on_policy.batch import Batch, make_batch
from flame_rl.learner.on_policy.losses import kl_terms, policy_gradient_loss
from flame_rl.learner.on_policy.returns import standardize, trust
from flame_rl.learner.training.autograd import torch_loss
from flame_rl.learner.training.frames import step_rows
from tests.helpers import episode_of, together
from tests.learner.test_impala import by_definition
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
    parts = policy_epoch(batch, columns, wanted, rng).minibatches()
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
    epoch = policy_epoch(batch, {"advantages": np.ones(4)}, 1, np.random.default_rng(0))
    (minibatch,) = epoch.minibatches()
    ratio = np.array([0.5, 1.5, 9.0, 1.1])
    numbers, _ = loss(minibatch, np.log(ratio), np.zeros(4))
    expected = np.average(ratio - 1 - np.log(ratio), weights=ratios)
    assert numbers["kl"].mean() == pytest.approx(expected, rel=1e-6)


ROWS, CLIP, C = 200, 0.2, 0.3
RNG = np.random.default_rng(0)
SAMPLES = {
    "advantages": RNG.standard_normal(ROWS),
    "log_probs": RNG.standard_normal(ROWS),
    "actions": RNG.integers(0, 3, ROWS).astype(np.int32),
}
# Half of the ratios are beyond the clip range.
LOG_PROBS = SAMPLES["log_probs"] + RNG.uniform(-2 * CLIP, 2 * CLIP, ROWS)
ENTROPIES = RNG.uniform(0, 1, ROWS)


@torch.no_grad()
def test_the_gradients_of_several_outputs():
    """Within a block in which torch differentiates nothing, and of an output that is not used."""

    @torch_loss
    def loss(samples, first, second, unused):
        assert samples["actions"].dtype == torch.int64
        value = first.gather(1, samples["actions"][:, None])[:, 0]
        return {"loss": value * second.sum(dim=(1, 2)), "value": value}

    shapes = (ROWS, 3), (ROWS, 2, 5), (ROWS,)
    outputs = tuple(RNG.standard_normal(shape).astype(np.float32) for shape in shapes)
    before = [output.copy() for output in outputs]
    numbers, gradients = loss(SAMPLES, *outputs)
    value = outputs[0][np.arange(ROWS), SAMPLES["actions"]]
    sums = outputs[1].sum(axis=(1, 2))
    np.testing.assert_array_equal(numbers["value"], value)
    np.testing.assert_allclose(numbers["loss"], value * sums, rtol=1e-4, atol=1e-5)
    expected = [np.zeros(shape) for shape in shapes]
    expected[0][np.arange(ROWS), SAMPLES["actions"]] = sums
    expected[1][:] = value[:, None, None]
    for gradient, wanted, output, old in zip(gradients, expected, outputs, before, strict=True):
        np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-5)
        assert gradient.dtype == np.float32
        np.testing.assert_array_equal(output, old)
    assert {number.dtype for number in numbers.values()} == {np.dtype(np.float32)}


def test_importance_weights():
    """The function does not get them, so that it cannot multiply by them again."""

    @torch_loss
    def loss(samples, values):
        assert "weights" not in samples
        return {"loss": values**2, "value": values}

    weights = RNG.uniform(0, 1, ROWS)
    numbers, (gradient,) = loss({"weights": weights}, ENTROPIES)
    np.testing.assert_allclose(numbers["loss"], weights * ENTROPIES**2)
    np.testing.assert_array_equal(numbers["value"], ENTROPIES)
    np.testing.assert_allclose(gradient, weights * 2 * ENTROPIES)


@pytest.mark.parametrize("wrong", [lambda x: x.mean(), lambda x: x[:, None], lambda x: x[1:]])
def test_a_loss_is_one_number_for_each_sample(wrong):
    @torch_loss
    def mean_loss(samples, values):
        return wrong(values)

    with pytest.raises(ValueError, match=r"mean_loss: a loss of shape .* for 200 samples; return"):
        mean_loss({}, ENTROPIES)


BATCHES = st.tuples(
    st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=12), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
    st.integers(0, 1000),
)


def flat(episodes):
    return np.concatenate([np.array(e, float) for e in episodes]), np.array(
        [len(e) for e in episodes]
    )


def test_weighted_advantages_have_a_weighted_baseline():
    """A step that no longer counts is not learned from; all weights may be 0."""
    rng = np.random.default_rng(0)
    advantages, weights = rng.standard_normal(1000) + 3, rng.uniform(0, 1, 1000)
    weights[:100] = 0
    expected = weights * (advantages - np.average(advantages, weights=weights))
    lengths = np.array([1000])
    batch = Batch({}, np.arange(1000), lengths, np.array([True]), ratios=weights)
    found = standardize(weights * advantages, batch.self_normalized_weights)
    np.testing.assert_allclose(found, expected / expected.std(), atol=1e-6)
    assert not found[:100].any()
    none = replace(batch, ratios=np.zeros(1000))
    np.testing.assert_array_equal(standardize(np.zeros(1000), none.self_normalized_weights), 0)


@pytest.mark.parametrize("value", [0.0, 1.0, 100.0, -1e12, 0.1])
def test_equal_returns_carry_no_preference(value):
    np.testing.assert_array_equal(standardize(np.full(12345, value)), 0)


def test_a_baseline_that_errs_moves_a_policy_less():
    """By the explained variance: at -1 or above the factor is 1, at -7 a half, at -199 a tenth."""
    rng = np.random.default_rng(5)
    targets, errors = rng.normal(100, 2, 50_000), rng.normal(0, 1, 50_000)
    for spread in (0.0, 1.0, 1.9, 2.1, 5.0, 30.0):
        advantages = targets - (100 + spread * errors)
        explained = 1 - np.var(advantages) / np.var(targets)
        expected = 1.0 if explained >= -1 else np.sqrt(2 / (1 - explained))
        assert trust(advantages, targets) == pytest.approx(expected, rel=1e-6)
    for equal in (np.zeros(9), np.ones(9)):
        assert trust(equal, equal) == 1
    assert trust(rng.normal(0, 1, 9), np.ones(9)) == 0


@settings(max_examples=60, deadline=None)
@given(BATCHES, st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_weighted_advantages_are_v_trace_by_definition(batch, gae_lambda):
    """With c = lambda min(1, ratio) and rho = min(1, ratio)."""
    episodes, discount, seed = batch
    rewards, lengths = flat(episodes)
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(sum(len(rewards) + 1 for rewards in episodes))
    terminated = rng.random(len(episodes)) < 0.5
    ratios = np.exp(rng.normal(0, 1, len(rewards)))
    expected, start = [], 0
    for place, (length, ended) in enumerate(zip(lengths, terminated, strict=True)):
        steps = slice(start, start + length)
        v = values[start + place :][: length + 1]
        discounts = np.full(length, discount)
        discounts[-1] *= not ended
        columns = rewards[steps], discounts, v[:-1], v[1:], np.minimum(1, ratios[steps])
        expected += by_definition(*columns, length, gae_lambda)[0].tolist()
        start += length
    plain = Batch({"rewards": rewards}, step_rows(lengths), lengths, terminated)
    found, ones, without = (
        replace(plain, ratios=each).advantages(values, discount, gae_lambda)
        for each in (ratios, np.ones_like(ratios), None)
    )
    np.testing.assert_allclose(found, expected, atol=1e-9)
    np.testing.assert_array_equal(ones, without)
