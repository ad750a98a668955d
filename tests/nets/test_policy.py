"""The NumPy forward pass against torch."""

from typing import ClassVar

import numpy as np
import pytest
import torch

import model
from flame_rl.modules.layers import MEMORIES, LayerNorm
from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.kinds import LAYERS
from flame_rl.nets.layers import LayerKind
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec, Layer, PolicySnapshot
from tests.helpers import collect, environment_id, plain, random_snapshot, spec_of

ACTIVATIONS = ["tanh", "relu", "silu"]


def policy_of(
    continuous: bool, activation: str, hidden=(32, 16), normalizes: bool = False, action_space=None
) -> torch.nn.Module:
    spec = spec_of(5, 3, continuous)
    if action_space is not None:
        spec = EnvironmentSpec("X-v0", spec.observation_space, action_space)
    config = TrainConfig(
        activation=activation, hidden_sizes=hidden, normalize_observations=normalizes
    )
    policy = model.policy(spec, config)
    if normalizes:
        policy.normalizer.set(np.array([0, 1, -2, 5, 0.5]), np.array([1, 0.1, 3, 9, 1e-4]))
    with torch.no_grad():  # away from the small first outputs
        for parameter in policy.parameters():
            parameter += 0.3 * torch.randn(parameter.shape)
    return policy


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("continuous", "normalizes"), [(True, False), (False, True)])
def test_numpy_equals_torch(activation, continuous, normalizes):
    torch.manual_seed(1)
    policy = policy_of(continuous, activation, normalizes=normalizes).double()
    if continuous:
        policy.network.insert(1, norm := LayerNorm(32).double())
        for parameter in norm.parameters():
            parameter.data += torch.randn(parameter.shape)
    observations = np.random.default_rng(0).standard_normal((24, 5)).astype(np.float32)
    observations[0] *= 1000
    with torch.no_grad():
        rows = torch.from_numpy(observations).double()
        if normalizes:
            rows = ((rows - policy.normalizer.mean) / policy.normalizer.std).clip(-10, 10)
        expected = policy.network(rows).numpy()
    acting = ActingPolicy(policy.float().snapshot())
    np.testing.assert_allclose(acting.forward(observations), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", MEMORIES)
def test_numpy_equals_torch_step_by_step(kind):
    """Over 40 steps of 8 episodes: one product at a time here, whole sequences there."""
    torch.manual_seed(4)
    memory = MEMORIES[kind](5, 7)
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter += 0.4 * torch.randn(parameter.shape)
    head = Layer("gaussian", {"log_std": np.zeros(7, np.float32)})
    acting = ActingPolicy(PolicySnapshot(0, (memory.layer(),), head))
    observations = np.random.default_rng(0).standard_normal((40, 8, 5)).astype(np.float32) * 2
    with torch.no_grad():
        expected = memory.double()(torch.from_numpy(observations).double()).numpy()
    states = acting.states(8)
    for observation, output in zip(observations, expected, strict=True):
        got = acting.forward(observation, states)
        np.testing.assert_allclose(got, output, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kind", MEMORIES)
def test_a_new_memory_keeps_three_quarters_of_its_state(kind):
    memory = MEMORIES[kind](3, 16)
    with torch.no_grad():  # nothing else comes in, and the gates have their biases alone
        memory.weight_hh_l0.zero_()
    head = Layer("gaussian", {"log_std": np.zeros(16, np.float32)})
    acting = ActingPolicy(PolicySnapshot(0, (memory.layer(),), head))
    states = acting.states(8)
    # Cells of an LSTM, the output of a GRU.
    kept = states.arrays[0].reshape(8, -1, 16)[:, -1]
    kept[:] = 1e-3
    acting.forward(np.zeros((8, 3), np.float32), states)
    np.testing.assert_allclose(kept, 1e-3 / (1 + np.exp(-1.0)), rtol=1e-5)


def test_a_module_without_a_counterpart_is_refused():
    policy = policy_of(False, "tanh")
    policy.network.append(torch.nn.Dropout())
    with pytest.raises(UsageError, match="Dropout is no `LayerModule`"):
        policy.snapshot()


def test_rows_that_are_no_multiple_are_refused():
    with pytest.raises(ValueError, match="multiple"):
        ActingPolicy(random_snapshot(3, 2, False)).forward(np.zeros((7, 3), np.float32))


def test_categorical_sampling_by_definition():
    """The action is the first whose cumulated probability exceeds the uniform number."""
    rng = np.random.default_rng(2)
    observations = rng.standard_normal((64, 3)).astype(np.float32) * 3
    for choices in ((4,), (2, 4, 1, 3)):
        factored = choices if len(choices) > 1 else ()
        acting = ActingPolicy(random_snapshot(3, sum(choices), False, choices=factored))
        uniform = rng.random((64, len(choices)))
        actions = acting.act(observations, uniform)
        assert actions.dtype == np.int32
        logits = torch.from_numpy(acting.forward(observations)).split(choices, dim=1)
        for factor, part in enumerate(logits):
            probabilities = torch.softmax(part, dim=1).numpy()
            for row in range(64):
                total, expected = 0.0, 0
                for expected, p in enumerate(probabilities[row]):  # noqa: B007
                    total += p
                    if uniform[row, factor] < total:
                        break
                assert actions.reshape(64, -1)[row, factor] == expected


def test_gaussian_sampling_by_definition():
    snapshot = random_snapshot(3, 2, True)
    acting = ActingPolicy(snapshot)
    noise = np.random.default_rng(0).standard_normal((8, 2))
    observations = np.ones((8, 3), np.float32)
    expected = (
        acting.forward(observations) + np.exp(np.float64(snapshot.head.arrays["log_std"])) * noise
    )
    np.testing.assert_allclose(acting.act(observations, noise), expected, rtol=1e-6)


WANDERING = environment_id("Wandering")


class SumLayer(LayerKind):
    """The scaled sum of the episode's inputs so far."""

    arrays: ClassVar = {"scale": ("in",)}
    state = ("in",)

    def act(self, x: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total = state + x * self.scale
        return total, total


@pytest.fixture
def summing(monkeypatch) -> PolicySnapshot:
    """A policy whose action is the scaled sum of the episode's observations so far."""
    monkeypatch.setitem(LAYERS, "sum", SumLayer)
    layer = Layer("sum", {"scale": np.array([0.1], np.float32)})
    return PolicySnapshot(0, (layer,), Layer("gaussian", {"log_std": np.zeros(1, np.float32)}))


def sums(observations: np.ndarray) -> np.ndarray:
    """What `summing` does, one step after another, rounded to float32 at each."""
    total, found = np.float32(0), []
    for observation in observations[:, 0]:
        total = np.float32(float(total) + float(observation) * float(np.float32(0.1)))
        found.append(total)
    return np.array(found)


def test_an_episode_remembers_its_own_steps_from_its_first(summing):
    """More episodes than slots, which end at different times: slots are used again and again, and
    towards the end there are fewer of them than rows of a block."""
    count = 3 * plain(WANDERING).slots + 5
    episodes = collect(WANDERING, range(count), summing, explore=False)
    assert len(set(episodes.lengths.tolist())) > 5
    for episode in episodes:
        np.testing.assert_array_equal(episode.actions[:, 0], sums(episode.observations[:-1]))
