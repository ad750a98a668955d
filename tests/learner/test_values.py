"""Targets and losses of action values against plain loops, and slopes against torch's autograd."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from flame_rl.learner.algorithms.successor import successor_loss
from flame_rl.learner.off_policy.values import (
    c51_loss,
    dueling_loss,
    project,
    q_loss,
    quantile_loss,
)
from flame_rl.learner.training.autograd import torch_loss

ROWS, ACTIONS, ATOMS = 40, 3, 5
SUPPORT = np.linspace(-2, 2, ATOMS)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, shape)


def distributions(rows: int, atoms: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(atoms), rows)


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


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 12),
    st.floats(-50, 50),
    st.floats(0.1, 30),
    st.lists(st.tuples(st.floats(-100, 100), st.floats(0, 1)), min_size=1, max_size=8),
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


def loss_of(name: str):
    """The loss, the width of its outputs, and targets."""
    if name == "q":
        return q_loss, ACTIONS, normal(ROWS, seed=3)
    if name == "c51":
        targets = distributions(ROWS, ATOMS, 4)
        targets[:10] = np.eye(ATOMS)[np.arange(10) % ATOMS]  # certain: 0 log 0 occurs
        return c51_loss(SUPPORT), ACTIONS * ATOMS, targets
    if name == "quantile":
        return quantile_loss(ATOMS), ACTIONS * ATOMS, normal(ROWS, ATOMS, seed=5, scale=2)
    if name == "successor":
        return successor_loss(SUPPORT), ACTIONS * ATOMS, normal(ROWS, ATOMS, seed=5, scale=2)
    loss, width, targets = loss_of(name.removeprefix("dueling "))
    atoms = width // ACTIONS
    return dueling_loss(loss, atoms), width + atoms, targets


def in_torch(name: str):
    """Torch's own losses, for `torch_loss`; with loops where torch has none."""

    def loss(samples: dict[str, torch.Tensor], outputs: torch.Tensor) -> torch.Tensor:
        actions, targets = samples["actions"], samples["targets"]
        if name.startswith("dueling "):
            by_action = outputs.reshape(ROWS, 1 + ACTIONS, -1)
            centred = by_action[:, 1:] - by_action[:, 1:].mean(1, keepdim=True)
            outputs = (by_action[:, :1] + centred).flatten(1)
            return in_torch(name.removeprefix("dueling "))(samples, outputs)
        rows = zip(outputs, actions, strict=True)
        chosen = torch.stack([o.reshape(ACTIONS, -1)[a] for o, a in rows])
        if name == "q":
            return functional.smooth_l1_loss(chosen[:, 0], targets, reduction="none")
        if name == "c51":
            return functional.cross_entropy(chosen, targets, reduction="none")
        if name == "successor":
            return functional.huber_loss(chosen, targets, reduction="none").sum(1)
        assert name == "quantile"
        return sum(
            abs((i + 0.5) / ATOMS - (targets[:, j] < chosen[:, i]).double())
            * functional.huber_loss(chosen[:, i], targets[:, j], reduction="none")
            / ATOMS
            for i in range(ATOMS)
            for j in range(ATOMS)
        )

    return loss


NAMES = ["q", "c51", "quantile", "successor", "dueling q", "dueling c51", "dueling quantile"]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_slopes_by_autograd(name, weighted):
    loss, width, targets = loss_of(name)
    outputs = normal(ROWS, width, seed=6, scale=2)
    actions = np.random.default_rng(1).integers(0, ACTIONS, ROWS).astype(np.int32)
    samples = {"actions": actions, "targets": targets}
    if weighted:
        samples["weights"] = np.random.default_rng(7).uniform(0.1, 1, ROWS)
    expected, (wanted,) = torch_loss(in_torch(name))(samples, outputs)
    numbers, (slope,) = loss(samples, outputs)
    np.testing.assert_allclose(numbers["loss"], expected["loss"], rtol=1e-9)
    np.testing.assert_allclose(slope, wanted, rtol=1e-9, atol=1e-12)
    # Transposed in memory, as a network may return it.
    _, (again,) = loss(samples, np.asfortranarray(outputs))
    np.testing.assert_array_equal(again, slope)


def test_c51_with_logits_that_no_exponential_holds():
    logits = np.array([[1000, -1000, 0, 0, 0]], np.float32)
    samples = {"actions": np.array([0]), "targets": np.eye(ATOMS, dtype=np.float32)[1:2]}
    numbers, (slope,) = c51_loss(SUPPORT)(samples, logits)
    assert numbers["loss"] == pytest.approx(2000) and numbers["value"] == -2
    np.testing.assert_allclose(slope, [[1, -1, 0, 0, 0]])
