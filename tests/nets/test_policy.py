"""The NumPy forward pass against torch."""

import numpy as np
import pytest
import torch

import model
from flame_rl.modules.layers import MEMORIES, LayerNorm
from flame_rl.nets.acting import ActingPolicy
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import Layer, PolicySnapshot
from tests.helpers import random_snapshot, spec_of
from tests.learners import shaken

ACTIVATIONS = ["tanh", "relu", "silu"]


def policy_of(continuous: bool, activation: str, normalizes: bool = False) -> torch.nn.Module:
    options = {"activation": activation, "normalize_observations": normalizes}
    policy = model.policy(spec_of(5, 3, continuous), TrainConfig(hidden_sizes=(32, 16), **options))
    if normalizes:
        policy.normalizer.set(np.array([0, 1, -2, 5, 0.5]), np.array([1, 0.1, 3, 9, 1e-4]))
    return shaken(policy)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("continuous", "normalizes"), [(True, False), (False, True)])
def test_numpy_equals_torch(activation, continuous, normalizes):
    torch.manual_seed(1)
    policy = policy_of(continuous, activation, normalizes=normalizes).double()
    if continuous:
        policy.network.insert(1, shaken(LayerNorm(32), 1.0).double())
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
    memory = shaken(MEMORIES[kind](5, 7), 0.4)
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
