"""The NumPy forward pass against torch, and the law that neighbours do not matter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

import model
from flame_rl.actor.policy.acting import ACTIVATIONS, ROW_BLOCK, ActingPolicy
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import EnvironmentSpec
from tests.helpers import random_snapshot


def policy_of(
    continuous: bool, activation: str, hidden=(32, 16), normalizes: bool = False
) -> torch.nn.Module:
    spec = EnvironmentSpec("X-v0", 5, 3, continuous)
    config = TrainConfig(
        activation=activation, hidden_sizes=hidden, normalize_observations=normalizes
    )
    policy, _ = model.make_networks(spec, config)
    if normalizes:
        policy.normalizer.set(np.array([0, 1, -2, 5, 0.5]), np.array([1, 0.1, 3, 9, 1e-4]))
    with torch.no_grad():  # away from the small first outputs
        for parameter in policy.parameters():
            parameter += 0.3 * torch.randn(parameter.shape)
    return policy


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("normalizes", [True, False])
def test_numpy_equals_torch(activation, continuous, normalizes):
    torch.manual_seed(1)
    policy = policy_of(continuous, activation, normalizes=normalizes).double()
    observations = np.random.default_rng(0).standard_normal((24, 5)).astype(np.float32)
    observations[0] *= 1000
    with torch.no_grad():
        rows = torch.from_numpy(observations).double()
        if normalizes:
            rows = ((rows - policy.normalizer.mean) / policy.normalizer.std).clip(-10, 10)
        expected = policy.network(rows).numpy()
    acting = ActingPolicy(policy.float().snapshot(version=0))
    np.testing.assert_allclose(acting.forward(observations), expected, rtol=1e-4, atol=1e-5)


def test_every_activation_has_both_twins():
    assert ACTIVATIONS.keys() == model.ACTIVATIONS.keys()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_sees_one_number_at_a_time(name):
    activation, torchs = ACTIVATIONS[name], model.ACTIVATIONS[name]()
    x = np.random.default_rng(5).standard_normal(10_000) * 4
    x[:6] = 0, 1e-30, -1e-30, 1e300, -1e300, 88
    expected = activation(x.copy())
    np.testing.assert_allclose(expected, torchs(torch.from_numpy(x)), rtol=1e-6, atol=1e-6)
    for first in range(40):
        for count in (1, 3, 8, 21):
            part = activation(x[first : first + count].copy())
            assert part.tobytes() == expected[first : first + count].tobytes()
    table = activation(np.concatenate([x, x]).reshape(-1, 8, 10))
    assert table.tobytes() == 2 * expected.tobytes()


def test_no_hidden_layer_is_a_linear_policy():
    policy = policy_of(False, "tanh", hidden=())
    observations = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    weight, bias = (p.detach().numpy() for p in policy.network.parameters())
    acting = ActingPolicy(policy.snapshot(0))
    np.testing.assert_allclose(
        acting.forward(observations), observations @ weight.T + bias, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("hidden", [(64, 64), (400, 300), (7,), (512, 512), ()])
@pytest.mark.parametrize("width", [4, 105, 11])
def test_a_row_has_the_same_bits_in_any_company(hidden, width):
    acting = ActingPolicy(random_snapshot(width, 3, True, hidden))
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((64, width)).astype(np.float32)
    with threadpool_limits(1, user_api="blas"):
        expected = acting.forward(rows)
        for block in (8, 16, 32):
            parts = [acting.forward(rows[i : i + block]) for i in range(0, 64, block)]
            assert np.concatenate(parts).tobytes() == expected.tobytes()
        order = rng.permutation(64)
        assert acting.forward(rows[order]).tobytes() == expected[order].tobytes()
        for i in range(10):
            alone = np.zeros((ROW_BLOCK, width), np.float32)
            alone[i % ROW_BLOCK] = rows[i]
            assert acting.forward(alone)[i % ROW_BLOCK].tobytes() == expected[i].tobytes()


def test_rows_that_are_no_multiple_are_refused():
    with pytest.raises(ValueError, match="multiple"):
        ActingPolicy(random_snapshot(3, 2, False)).forward(np.zeros((7, 3), np.float32))


def test_categorical_sampling_by_definition():
    """The action is the first whose cumulated probability exceeds the uniform number."""
    acting = ActingPolicy(random_snapshot(3, 4, False))
    rng = np.random.default_rng(2)
    observations = rng.standard_normal((64, 3)).astype(np.float32) * 3
    uniform = rng.random((64, 1))
    actions = acting.act(observations, uniform)
    logits = torch.from_numpy(acting.forward(observations))
    probabilities = torch.softmax(logits, dim=1).numpy()
    for row in range(64):
        total, expected = 0.0, 0
        for expected, p in enumerate(probabilities[row]):  # noqa: B007
            total += p
            if uniform[row, 0] < total:
                break
        assert actions[row] == expected
    assert actions.dtype == np.int32


def test_categorical_frequencies():
    acting = ActingPolicy(random_snapshot(3, 4, False))
    observation = np.tile(np.array([0.3, -1, 2], np.float32), (8000, 1))
    actions = acting.act(observation, np.random.default_rng(0).random((8000, 1)))
    expected = torch.softmax(torch.from_numpy(acting.forward(observation[:8])), dim=1)[0].numpy()
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / 8000, expected, atol=0.02)


def test_gaussian_sampling_by_definition():
    snapshot = random_snapshot(3, 2, True)
    acting = ActingPolicy(snapshot)
    noise = np.random.default_rng(0).standard_normal((8, 2))
    observations = np.ones((8, 3), np.float32)
    expected = acting.forward(observations) + np.exp(np.float64(snapshot.log_std)) * noise
    np.testing.assert_allclose(acting.act(observations, noise), expected, rtol=1e-6)


@pytest.mark.parametrize("continuous", [True, False])
def test_without_noise_the_likeliest_action_or_the_mean(continuous):
    torch.manual_seed(3)
    policy = policy_of(continuous, "tanh")
    observations = np.random.default_rng(4).standard_normal((64, 5)).astype(np.float32)
    with torch.no_grad():
        distribution = policy(torch.from_numpy(observations))
    actions = ActingPolicy(policy.snapshot(0)).act(observations, None)
    if continuous:
        assert actions.dtype == np.float32
        np.testing.assert_allclose(actions, distribution.mean, rtol=1e-4, atol=1e-5)
    else:
        assert actions.dtype == np.int32
        np.testing.assert_array_equal(actions, distribution.probs.argmax(dim=1))


def test_extreme_logits_do_not_overflow():
    snapshot = random_snapshot(3, 2, False, hidden=())
    acting = ActingPolicy(snapshot)
    actions = acting.act(np.full((8, 3), 1e30, np.float32), np.full((8, 1), 0.999999))
    assert set(actions) <= {0, 1}
