"""Action values: what networks of them export, supports that are refused, and logits beyond what an
exponential holds; test_off_policy.py compares whole gradient steps."""

import itertools
import math

import numpy as np
import pytest
import torch

import model
from flame_rl.learner.off_policy.update import with_exploration
from flame_rl.learner.off_policy.values import c51_loss
from flame_rl.modules.networks import Returns
from flame_rl.nets.acting import ActingPolicy
from tests.helpers import spec_of
from tests.learners import make_config

A, Z, ROWS = 3, 5, 24
SUPPORT = np.linspace(-2, 2, Z)


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
    torch.manual_seed(0)
    config = make_config("X-v0", algorithm="dqn", hidden_sizes=(16, 8))
    made = Returns(**returns, dueling=dueling)
    module, atoms = model.action_values(spec_of(4, A, False), config, made), made.numbers
    observations = np.random.default_rng(0).normal(0, 2, (ROWS, 4)).astype(np.float32)
    with torch.no_grad():
        outputs = module(torch.from_numpy(observations)).numpy()
    assert outputs.shape == (ROWS, (A + dueling) * atoms)
    snapshot = with_exploration(module.snapshot(), {"epsilon": 0.25, "repeat": 0.5})
    values, support = slow_values(outputs, dueling, atoms), returns.get("support")
    values = values.mean(axis=2) if support is None else values.reshape(ROWS, A * Z)
    np.testing.assert_allclose(ActingPolicy(snapshot).forward(observations), values, atol=1e-5)
    kind = "epsilon_greedy" if support is None else "epsilon_greedy_distribution"
    expected = {"epsilon": [0.25], "repeat": [0.5]} | ({} if support is None else returns)
    assert snapshot.head.kind == kind and snapshot.head.arrays.keys() == expected.keys()
    for name, array in snapshot.head.arrays.items():
        np.testing.assert_array_equal(array, np.array(expected[name], np.float32))


@pytest.mark.parametrize("support", [[0.0, 1, 3], [2.0, 1, 0], [1.0], [1.0, 1], [0, math.nan]])
def test_a_support_that_is_not_equidistant_is_refused(support):
    support = np.array(support)
    with pytest.raises(ValueError, match="support"):
        c51_loss(support)


def test_a_wide_support_in_float32_is_equidistant():
    c51_loss(np.linspace(-1000, 1234.5, 501, dtype=np.float32))


def test_c51_with_logits_that_no_exponential_holds():
    logits = np.array([[1000, -1000, 0, 0, 0]], np.float32)
    samples = {"actions": np.array([0]), "targets": np.eye(Z, dtype=np.float32)[1:2]}
    numbers, (slope,) = c51_loss(SUPPORT)(samples, logits)
    assert numbers["loss"] == pytest.approx(2000) and numbers["value"] == -2
    np.testing.assert_allclose(slope, [[1, -1, 0, 0, 0]])
