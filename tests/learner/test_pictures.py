"""Networks that see pictures: which one is chosen, what it gives, and how it is differentiated."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from gymnasium import spaces

import model
from flame_rl.learner.on_policy.losses import policy_gradient_loss
from flame_rl.learner.training import slices
from flame_rl.learner.training.autograd import AutogradNetwork
from flame_rl.learner.training.choose import network_of
from flame_rl.learner.training.device import reproducible
from flame_rl.learner.training.slices import mean_gradient
from flame_rl.modules.layers import Convolution
from flame_rl.wire.messages import EnvironmentSpec
from tests.learners import (
    make_config,
    policy_and_value,
)

pytestmark = pytest.mark.usefixtures("one_thread")
ACTIONS = {
    "categorical": spaces.Discrete(5),
    "factored": spaces.MultiDiscrete([2, 4]),
    "gaussian": spaces.Box(-1, 1, (3,)),
}


def spec_of(shape: tuple[int, ...], actions: str = "categorical", dtype=np.uint8):
    high = 1 if dtype is bool else 255
    return EnvironmentSpec("X-v0", spaces.Box(0, high, shape, dtype), ACTIONS[actions])


def networks(spec: EnvironmentSpec, **options):
    """Policy and value network, away from the policy's small first outputs."""
    settings = {"hidden_sizes": (12,), "algorithm": "ppo", "activation": "relu"} | options
    torch.manual_seed(0)
    made = policy_and_value(spec, make_config("X-v0", **settings))
    with torch.no_grad():
        for module in made:
            for parameter in module.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        made[1].scale.fill_(3.0)
    return made


def samples_of(spec: EnvironmentSpec, rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    space = spec.observation_space
    pictures = rng.integers(0, int(space.high.max()) + 1, (rows, spec.observation_dim))
    taken = {
        "categorical": rng.integers(0, 5, rows).astype(np.int32),
        "factored": rng.integers(0, [2, 4], (rows, 2)).astype(np.int32),
        "gaussian": rng.standard_normal((rows, 3)).astype(np.float32),
    }
    (kind,) = [name for name, actions in ACTIONS.items() if actions is spec.action_space]
    return {
        "inputs": pictures.astype(np.uint8),
        "actions": taken[kind],
        "log_probs": rng.normal(-3, 1, rows).astype(np.float32),
        "advantages": rng.standard_normal(rows).astype(np.float32),
    }


@pytest.mark.parametrize(
    ("shape", "filters"),
    [
        ((10, 10, 4), [(3, 3, 4, 16)]),
        ((10, 5), [(3, 3, 1, 16)]),
        ((35, 80, 3), [(3, 3, 3, 16)]),
        ((36, 36), [(8, 8, 1, 32), (4, 4, 32, 64), (3, 3, 64, 64)]),
        ((84, 84), [(8, 8, 1, 32), (4, 4, 32, 64), (3, 3, 64, 64)]),
        ((210, 160, 3), [(8, 8, 3, 32), (4, 4, 32, 64), (3, 3, 64, 64)]),
        ((3, 40, 60), [(8, 8, 3, 32), (4, 4, 32, 64), (3, 3, 64, 64)]),  # channels first
        ((4, 10, 8), [(3, 3, 4, 16)]),
        ((5, 8, 8), [(3, 3, 8, 16)]),  # a low board of eight channels
        ((2, 9, 3), []),  # too few rows
        ((128,), []),
        ((3, 4, 5, 6), []),
    ],
)
def test_the_network_follows_from_the_picture(shape, filters):
    for dtype in (np.uint8, bool):
        spec = spec_of(shape, dtype=dtype)
        layers = networks(spec)[0].snapshot().layers
        found = [layer.arrays["weight"].shape for layer in layers if layer.kind == "convolution"]
        assert found == filters
        large = len(filters) == len(model.LARGE_PICTURES)
        assert layers[0].kind == ("center" if large else "scale")
        plain = networks(spec, normalize_observations=False)[0].snapshot().layers[0]
        assert plain.kind == "scale"
        assert plain.arrays["factor"] == pytest.approx(1 if dtype is bool else 1 / 255)
        dense = [layer.arrays["weight"].shape for layer in layers if layer.kind == "dense"]
        assert [outputs for _, outputs in dense] == [12, 5]


def test_slices_are_the_whole_and_the_same_on_any_number_of_cores(monkeypatch):
    spec = spec_of((10, 10, 4))
    policy, _ = networks(spec)
    network, samples = network_of(policy), samples_of(spec, 160)
    assert type(network) is AutogradNetwork
    gradients = {}
    monkeypatch.setattr(slices, "_LEAST_SLICES", 2)
    # Threads keep torch's number from when they began.
    slices._threads.cache_clear()
    for rows, cores in ((10_000, 1), (9, 1), (9, 3)):
        monkeypatch.setattr(network, "slice_rows", rows)
        monkeypatch.setattr(slices, "available_cores", lambda cores=cores: cores)
        gradient = np.zeros(sum(p.numel() for p in policy.parameters()), np.float32)
        with reproducible("cpu"):
            (log_prob, _) = slices.outputs(network, samples)
            numbers = mean_gradient(network, samples, policy_gradient_loss(0.3), gradient)
        gradients[rows, cores] = gradient, log_prob, numbers["loss"]
    assert gradients[9, 1][0].tobytes() == gradients[9, 3][0].tobytes()
    assert gradients[9, 1][1].tobytes() == gradients[9, 3][1].tobytes()
    for ours, theirs in zip(gradients[10_000, 1], gradients[9, 1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-6)
    assert (gradient != 0).mean() > 0.3


def test_memory_is_bounded_by_the_size_of_pictures():
    rows = {}
    for side in (10, 84, 210):
        for made in networks(spec_of((side, side, 3))):
            network = network_of(made)
            numbers = sum(
                int(np.prod(layer.size)) + int(np.prod(layer.output_size))
                for layer in made.modules()
                if isinstance(layer, Convolution)
            )
            assert 4 * numbers * network.slice_rows <= 1 << 25
            rows[side] = network.slice_rows
    assert all(left > 4 * right > 0 for left, right in pairwise(rows.values()))
