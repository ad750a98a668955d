"""The update against an oracle that goes episode by episode and step by step."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

import model
from flame_rl.config import TrainConfig
from flame_rl.learner import slices
from flame_rl.learner.adam import Adam
from flame_rl.learner.reinforce import Reinforce
from flame_rl.messages import EnvironmentSpec, Episode


def make_learner(continuous: bool, **options) -> Reinforce:
    spec = EnvironmentSpec("X-v0", 3, 2, continuous)
    config = TrainConfig(hidden_sizes=(8,), max_grad_norm=1e9, **options)
    return Reinforce(config, model.make_policy(spec, config))


def random_episodes(continuous: bool) -> list[Episode]:
    rng = np.random.default_rng(0)
    episodes = []
    for index, length in enumerate([4, 1, 9, 3]):
        actions = rng.standard_normal((length, 2)).astype(np.float32)
        episodes.append(
            Episode(
                index=index,
                observations=rng.standard_normal((length + 1, 3)).astype(np.float32),
                actions=actions if continuous else rng.integers(0, 2, length).astype(np.int32),
                rewards=rng.standard_normal(length),
                terminated=index != 2,
                truncated=index == 2,
            )
        )
    return episodes


def oracle_loss(policy, episodes, gamma, entropy_coefficient):
    """-mean over all steps of log pi(a|s) * normalised return, minus the entropy bonus."""
    # The constant value: mean return when it bootstraps the one truncated episode.
    value = 0.0
    for _ in range(5000):
        returns = []
        for episode in episodes:
            g = value if episode.truncated else 0.0
            reversed_returns = []
            for reward in episode.rewards[::-1]:
                g = reward + gamma * g
                reversed_returns.append(g)
            returns += reversed_returns[::-1]
        value = sum(returns) / len(returns)
    mean = sum(returns) / len(returns)
    std = math.sqrt(sum((g - mean) ** 2 for g in returns) / len(returns))
    total = 0.0
    step = 0
    for episode in episodes:
        for t in range(episode.length):
            output = policy.network(torch.from_numpy(episode.observations[t]))
            if episode.actions.dtype == np.int32:
                log_probs = torch.log_softmax(output, dim=0)
                log_prob = log_probs[int(episode.actions[t])]
                entropy = -(log_probs.exp() * log_probs).sum()
            else:
                std_t = policy.log_std.exp()
                z = (torch.from_numpy(episode.actions[t]) - output) / std_t
                log_prob = (-0.5 * z**2 - policy.log_std - 0.5 * math.log(2 * math.pi)).sum()
                entropy = (policy.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
            total = total - log_prob * (returns[step] - mean) / std - entropy_coefficient * entropy
            step += 1
    return total / step


@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("slice_steps", [8192, 5, 1])
def test_loss_and_gradient(continuous, slice_steps, monkeypatch):
    monkeypatch.setattr(slices, "SLICE_STEPS", slice_steps)
    learner = make_learner(continuous, gamma=0.9, entropy_coefficient=0.1)
    policy = copy.deepcopy(learner._policy)
    expected = oracle_loss(policy, random_episodes(continuous), 0.9, 0.1)
    expected.backward()
    metrics = learner.update(random_episodes(continuous))
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    norm = math.sqrt(sum((p.grad**2).sum().item() for p in policy.parameters()))
    assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    for ours, theirs in zip(learner._policy.parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_the_number_of_cores_changes_no_bit(monkeypatch):
    monkeypatch.setattr(slices, "SLICE_STEPS", 3)
    digests = set()
    for cores in (1, 2, 7):
        monkeypatch.setattr(slices, "available_cores", lambda cores=cores: cores)
        learner = make_learner(True)
        metrics = [learner.update(random_episodes(True)) for _ in range(3)]
        digests.add((learner.weights_digest(), str(metrics)))
    assert len(digests) == 1


def test_adam_equals_torch():
    torch.manual_seed(0)
    ours = torch.nn.Linear(4, 3)
    theirs = copy.deepcopy(ours)
    adam = Adam(ours, learning_rate=0.03)
    reference = torch.optim.Adam(theirs.parameters(), lr=0.03, foreach=False)
    for step in range(50):
        for module in (ours, theirs):
            module.zero_grad()
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
            (module(x) ** 2).sum().backward()
        if step == 20:  # what a checkpoint does
            resumed = Adam(ours, learning_rate=0.03)
            resumed.load_state_dict(adam.state_dict())
            adam = resumed
        adam.step()
        reference.step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.bias, theirs.bias, rtol=1e-5, atol=1e-6)


def test_a_large_gradient_is_clipped():
    learner = make_learner(True, learning_rate=1.0)
    clipped = Reinforce(
        TrainConfig(hidden_sizes=(8,), max_grad_norm=1e-3), copy.deepcopy(learner._policy)
    )
    metrics = clipped.update(random_episodes(True))
    total = math.sqrt(sum((p.grad**2).sum().item() for p in clipped._policy.parameters()))
    assert metrics["gradient_norm"] > 1e-3 and total == pytest.approx(1e-3, rel=1e-3)


def test_versions_count_updates_and_the_digest_follows_the_weights():
    learner = make_learner(False)
    assert learner.snapshot().version == 0
    before = learner.weights_digest()
    assert before == make_learner(False).weights_digest()
    learner.update(random_episodes(False))
    assert learner.snapshot().version == 1
    assert learner.weights_digest() != before
    assert make_learner(False, seed=1).weights_digest() != before


def test_a_snapshot_is_a_copy():
    learner = make_learner(True)
    snapshot = learner.snapshot()
    kept = snapshot.weights[0].copy(), snapshot.log_std.copy()
    learner.update(random_episodes(True))
    np.testing.assert_array_equal(snapshot.weights[0], kept[0])
    np.testing.assert_array_equal(snapshot.log_std, kept[1])
    assert (learner.snapshot().weights[0] != kept[0]).any()
