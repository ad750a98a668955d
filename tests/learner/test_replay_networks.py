"""Networks of learners with replay, and what they export, against plain products."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import model
from flame_rl.learner.off_policy.update import with_exploration
from flame_rl.modules.networks import ActionValueNetwork, Returns
from flame_rl.wire.messages import PolicySnapshot
from tests.helpers import spec_of
from tests.learners import make_config

D, A, Z, ROWS = 4, 3, 5, 20
HIDDEN = (16, 8)
SUPPORT = np.linspace(-2, 2, Z)
OBSERVATIONS = np.random.default_rng(0).normal(0, 2, (ROWS, D)).astype(np.float32)


def discrete(**returns) -> ActionValueNetwork:
    torch.manual_seed(0)
    config = make_config("X-v0", algorithm="dqn", hidden_sizes=HIDDEN)
    return model.action_values(spec_of(D, A, continuous=False), config, Returns(**returns))


def continuous(make, algorithm: str, **options) -> nn.Module:
    torch.manual_seed(0)
    config = make_config("X-v0", algorithm=algorithm, hidden_sizes=HIDDEN, **options)
    return make(spec_of(D, A, continuous=True), config)


def output_of(module: nn.Module, *inputs: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return module(*map(torch.from_numpy, inputs)).numpy()


def by_numpy(snapshot: PolicySnapshot) -> np.ndarray:
    """The output of the exported layers."""
    x = OBSERVATIONS.astype(np.float64)
    for layer in snapshot.layers:
        if layer.kind == "dense":
            x = x @ layer.arrays["weight"] + layer.arrays["bias"]
        elif layer.kind == "relu":
            x = np.where(x > 0, x, 0)
        else:
            assert layer.kind == "tanh"
            x = np.tanh(x)
    return x


def slow_values(outputs: np.ndarray, dueling: bool, atoms: int) -> np.ndarray:
    """What a network gives for each action, [B, A, Z], one number after another."""
    values = np.zeros((ROWS, A, atoms))
    for b, a, z in itertools.product(range(ROWS), range(A), range(atoms)):
        if not dueling:
            values[b, a, z] = outputs[b, a * atoms + z]
            continue
        advantages = [outputs[b, (1 + k) * atoms + z] for k in range(A)]
        values[b, a, z] = outputs[b, z] + advantages[a] - sum(advantages) / A
    return values


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("quantiles", [1, Z])
def test_exported_values(quantiles, dueling):
    module = discrete(quantiles=quantiles, dueling=dueling)
    outputs = output_of(module, OBSERVATIONS)
    assert outputs.shape == (ROWS, (A + dueling) * quantiles)
    snapshot = with_exploration(module.snapshot(), {"epsilon": 0.25, "repeat": 0.5})
    expected = slow_values(outputs, dueling, quantiles).mean(axis=2)
    np.testing.assert_allclose(by_numpy(snapshot), expected, atol=1e-5)
    assert snapshot.head.kind == "epsilon_greedy"
    assert snapshot.head.arrays.keys() == {"epsilon", "repeat"}
    check_float32(snapshot, {"epsilon": [0.25], "repeat": [0.5]})


@pytest.mark.parametrize("dueling", [False, True])
def test_exported_distributions(dueling):
    module = discrete(support=SUPPORT, dueling=dueling)
    outputs = output_of(module, OBSERVATIONS)
    assert outputs.shape == (ROWS, (A + dueling) * Z)
    snapshot = with_exploration(module.snapshot(), {"epsilon": 0.25, "repeat": 0.5})
    expected = slow_values(outputs, dueling, Z).reshape(ROWS, A * Z)
    np.testing.assert_allclose(by_numpy(snapshot), expected, atol=1e-5)
    assert snapshot.head.kind == "epsilon_greedy_distribution"
    check_float32(snapshot, {"epsilon": [0.25], "repeat": [0.5], "support": SUPPORT})


def check_float32(snapshot: PolicySnapshot, head: dict) -> None:
    """All arrays are float32 and contiguous, and the head has exactly these."""
    assert snapshot.head.arrays.keys() == head.keys()
    for name, array in snapshot.head.arrays.items():
        np.testing.assert_array_equal(array, np.array(head[name], np.float32))
    for layer in (*snapshot.layers, snapshot.head):
        for array in layer.arrays.values():
            assert array.dtype == np.float32 and array.flags.c_contiguous


def test_a_network_has_quantiles_or_a_support():
    with pytest.raises(ValueError, match="quantiles"):
        discrete(quantiles=2, support=SUPPORT)


def test_a_deterministic_policy():
    module = continuous(model.deterministic_policy, "td3")
    with torch.no_grad():
        module.network[-2].weight.mul_(30)
    actions = output_of(module, OBSERVATIONS)
    assert actions.shape == (ROWS, A) and 0.9 < np.abs(actions).max() <= 1
    snapshot = with_exploration(module.snapshot(), {"std": 0.1})
    np.testing.assert_allclose(by_numpy(snapshot), actions, atol=1e-5)
    assert snapshot.head.kind == "noisy"
    check_float32(snapshot, {"std": [0.1] * A, "theta": [1]})
    check_float32(with_exploration(snapshot, {"theta": 0.15}), {"std": [0.1] * A, "theta": [0.15]})


def test_a_squashed_gaussian_policy():
    module = continuous(model.squashed_policy, "sac", initial_std=1.0)
    outputs = output_of(module, OBSERVATIONS)
    assert outputs.shape == (ROWS, 2 * A)
    snapshot = module.snapshot()
    np.testing.assert_allclose(by_numpy(snapshot), outputs, atol=1e-5)
    assert snapshot.head.kind == "squashed_gaussian"
    check_float32(snapshot, {})


def test_the_first_standard_deviations_of_a_squashed_gaussian_policy():
    usual = output_of(continuous(model.squashed_policy, "sac", initial_std=1.0), OBSERVATIONS)
    small = output_of(continuous(model.squashed_policy, "sac", initial_std=0.2), OBSERVATIONS)
    np.testing.assert_array_equal(small[:, :A], usual[:, :A])
    np.testing.assert_allclose(np.exp(small[:, A:]), 0.2 * np.exp(usual[:, A:]), rtol=1e-5)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_an_action_critic(layer_norm):
    module = continuous(model.critic, "td3", layer_norm=layer_norm)
    actions = np.random.default_rng(1).uniform(-1, 1, (ROWS, A)).astype(np.float32)
    x = np.concatenate([OBSERVATIONS, actions], axis=1).astype(np.float64)
    *hidden, last = [layer for layer in module.network if isinstance(layer, nn.Linear)]
    for dense in hidden:
        x = x @ dense.weight.detach().numpy().T + dense.bias.detach().numpy()
        if layer_norm:
            deviations = x - x.mean(axis=1, keepdims=True)
            x = deviations / np.sqrt((deviations**2).mean(axis=1, keepdims=True) + 1e-5)
        x = np.maximum(x, 0)
    expected = x @ last.weight.detach().numpy()[0] + last.bias.item()
    np.testing.assert_allclose(output_of(module, OBSERVATIONS, actions), expected, atol=1e-5)


def test_first_weights_are_torchs_own():
    torch.manual_seed(5)
    network = model.action_values(
        spec_of(D, A, continuous=False), make_config("X-v0", algorithm="dqn", hidden_sizes=HIDDEN)
    )
    torch.manual_seed(5)
    plain = nn.Sequential(nn.Linear(D, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, A))
    for ours, theirs in zip(network.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
