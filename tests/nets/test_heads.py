"""The heads of value-based and deterministic policies against torch, plain loops and statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.kinds import HEADS
from flame_rl.wire.messages import Layer, PolicySnapshot
from tests.helpers import snapshot_with


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


EPSILON = {"epsilon": floats(0.3), "repeat": floats(0)}
SUPPORT = floats(-10, -2.5, 0, 1, 30)


def test_the_value_of_a_distribution_is_its_mean():
    rng = np.random.default_rng(1)
    actions, atoms = 3, len(SUPPORT)
    logits = rng.standard_normal((200, actions * atoms)) * 4
    logits[0] *= 1000  # no overflow
    head = HEADS["epsilon_greedy_distribution"](actions * atoms, support=SUPPORT, **EPSILON)
    expected = np.zeros((200, actions))
    for action in range(actions):
        first = action * atoms
        chances = torch.softmax(torch.from_numpy(logits[:, first : first + atoms]), dim=1)
        expected[:, action] = (chances @ torch.from_numpy(SUPPORT).double()).numpy()
    np.testing.assert_allclose(head.values(logits), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(head.greedy(logits), expected.argmax(axis=1))
    noise = rng.random((200, 2))
    plain = HEADS["epsilon_greedy"](actions, **EPSILON)
    np.testing.assert_array_equal(head.sample(logits, noise), plain.sample(expected, noise))


def test_squashed_gaussian_is_torchs():
    rng = np.random.default_rng(2)
    output = rng.standard_normal((100, 6)) * 3
    output[:10, 3:] = [-50.0, 5.0, 700.0]  # logarithms of standard deviations beyond the range
    noise = rng.standard_normal((100, 3))
    head = HEADS["squashed_gaussian"](6)
    assert (head.noise, head.noise_width, head.shape) == ("normal", 3, (3,))
    mean, log_std = torch.from_numpy(output).split(3, dim=1)
    gaussian = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    squash = torch.distributions.TanhTransform()
    expected = squash(gaussian.loc + gaussian.scale * torch.from_numpy(noise))
    np.testing.assert_allclose(head.sample(output, noise), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(head.greedy(output), squash(mean), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("theta", [1.0, 0.15])
def test_noise_is_added_to_a_deterministic_action_and_clipped(theta):
    std = floats(0.1, 0.0, 2.0)
    head = HEADS["noisy"](3, std=std, theta=floats(theta))
    rng = np.random.default_rng(3)
    output, noise = rng.uniform(-1.2, 1.2, (100, 3)), rng.standard_normal((100, 3))
    actions, greedy = head.sample(output, noise), head.greedy(output)
    for row in range(100):
        for i in range(3):
            wanted = output[row, i] + float(std[i]) * noise[row, i]
            assert actions[row, i] == np.float32(max(-1.0, min(1.0, wanted)))
            assert greedy[row, i] == np.float32(max(-1.0, min(1.0, output[row, i])))
    assert abs(actions).max() == abs(greedy).max() == 1


def ornstein_uhlenbeck(theta: float, std: np.ndarray) -> ActingPolicy:
    """A policy whose action without noise is 0."""
    weight, bias = np.zeros((1, len(std)), np.float32), np.zeros(len(std), np.float32)
    head = Layer("noisy", {"std": std, "theta": floats(theta)})
    layer = Layer("dense", {"weight": weight, "bias": bias})
    return ActingPolicy(PolicySnapshot(0, (layer,), head))


def test_ornstein_uhlenbeck_by_definition():
    std = floats(0.02, 0.05)
    policy = ornstein_uhlenbeck(0.15, std)
    noise = policy.draw_noise(np.random.default_rng(4), 200)
    actions = policy.act(np.zeros((200, 1), np.float32), noise)
    generator = np.random.default_rng(4)
    x = [0.0, 0.0]
    for step in range(200):
        for i in range(2):
            theta = float(np.float32(0.15))
            x[i] = (1 - theta) * x[i] + float(std[i]) * generator.standard_normal()
        np.testing.assert_allclose(actions[step], x, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", HEADS)
def test_noise_has_the_same_bits_however_many_steps_are_drawn_at_a_time(kind):
    policy = ActingPolicy(snapshot_with(kind, 4, 3))
    expected = policy.draw_noise(np.random.default_rng(6), 60)
    assert expected.shape == (60, policy.head.noise_width)
    for size in (1, 2, 7, 59):
        generator = np.random.default_rng(6)
        before, parts = None, []
        for first in range(0, 60, size):
            parts.append(policy.draw_noise(generator, min(size, 60 - first), before))
            before = parts[-1][-1]
        assert np.concatenate(parts).tobytes() == expected.tobytes()


@pytest.mark.parametrize("repeat", [0.3, 0.95])
def test_exploration_is_repeated(repeat):
    layer = Layer("dense", {"weight": np.zeros((1, 3), np.float32), "bias": floats(0, 0, 0)})
    head = Layer("epsilon_greedy", {"epsilon": floats(0.3), "repeat": floats(repeat)})
    policy = ActingPolicy(PolicySnapshot(0, (layer,), head))
    noise = policy.draw_noise(np.random.default_rng(8), 1_000)
    generator, expected = np.random.default_rng(8), []
    for step in range(1_000):
        own, decides = [generator.random(), generator.random()], generator.random()
        repeats = step > 0 and decides < float(np.float32(repeat))
        expected.append(expected[-1] if repeats else own)
    np.testing.assert_array_equal(noise, expected)


def test_the_first_step_of_an_episode_never_repeats():
    policy = ActingPolicy(snapshot_with("epsilon_greedy", 4, 3))
    firsts = {policy.draw_noise(np.random.default_rng(n), 1)[0, 0] for n in range(50)}
    assert len(firsts) == 50
