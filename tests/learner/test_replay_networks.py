"""Networks of learners with replay, and what they export, against plain products."""

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
@pytest.mark.parametrize("returns", [{"quantiles": 1}, {"quantiles": Z}, {"support": SUPPORT}])
def test_exported_values(returns, dueling):
    module, atoms = discrete(**returns, dueling=dueling), returns.get("quantiles", Z)
    outputs = output_of(module, OBSERVATIONS)
    assert outputs.shape == (ROWS, (A + dueling) * atoms)
    exploring = {"epsilon": 0.25, "repeat": 0.5}
    snapshot, expected = with_exploration(module.snapshot(), exploring), returns.get("support")
    values = slow_values(outputs, dueling, atoms)
    values = values.mean(axis=2) if expected is None else values.reshape(ROWS, A * Z)
    np.testing.assert_allclose(by_numpy(snapshot), values, atol=1e-5)
    kind = "epsilon_greedy" if expected is None else "epsilon_greedy_distribution"
    assert snapshot.head.kind == kind
    support = {} if expected is None else {"support": expected}
    check_float32(snapshot, {"epsilon": [0.25], "repeat": [0.5]} | support)


def check_float32(snapshot: PolicySnapshot, head: dict) -> None:
    """All arrays are float32 and contiguous, and the head has exactly these."""
    assert snapshot.head.arrays.keys() == head.keys()
    for name, array in snapshot.head.arrays.items():
        np.testing.assert_array_equal(array, np.array(head[name], np.float32))
    for layer in (*snapshot.layers, snapshot.head):
        for array in layer.arrays.values():
            assert array.dtype == np.float32 and array.flags.c_contiguous


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
