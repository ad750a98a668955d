"""Networks that see pictures: which one is chosen, what it gives, and how it is differentiated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

import model
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
