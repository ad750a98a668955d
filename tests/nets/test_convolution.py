"""Convolutions in NumPy against torch's, and pictures that have the same bits in any company."""

import numpy as np
import pytest
import torch
from torch import nn

from flame_rl.modules.layers import Activation, Convolution, Dense, layers_of
from flame_rl.nets.acting import ActingPolicy
from flame_rl.wire.messages import Layer, PolicySnapshot
from tests.nets.test_company import assert_same_in_any_company

# Size of the pictures, and filters, width and stride of each layer.
NETWORKS = {
    "atari": ((84, 84, 4), [(32, 8, 4), (64, 4, 2), (64, 3, 1)]),
    "minatar": ((10, 10, 4), [(16, 3, 1)]),
    "one filter": ((5, 7, 1), [(1, 3, 1)]),
    "as large as the picture": ((4, 4, 2), [(3, 4, 1)]),
    "places are left over": ((11, 8, 3), [(5, 4, 3), (6, 2, 1)]),
    "of one number": ((1, 1, 1), [(2, 1, 1)]),
}


def network(size, layers, outputs: int = 0) -> nn.Sequential:
    """The convolutions, a relu after each, and a dense layer of so many outputs, if any."""
    torch.manual_seed(3)
    modules: list[nn.Module] = []
    for filters, width, stride in layers:
        modules += [Convolution(size, filters, width, stride), Activation("relu")]
        size = modules[-2].output_size
    if outputs:
        modules.append(Dense(int(np.prod(size)), outputs))
    for module in modules[::2]:
        nn.init.orthogonal_(module.weight, 2.0)
        nn.init.normal_(module.bias, std=0.1)
    return nn.Sequential(*modules)


def snapshot_of(*modules: nn.Module) -> PolicySnapshot:
    layers = (Layer("scale", {"factor": np.array([1 / 255], np.float32)}),)
    return PolicySnapshot(0, layers + layers_of(*modules), Layer("squashed_gaussian", {}))


def pictures(size, count: int) -> np.ndarray:
    rows = np.random.default_rng(0).integers(0, 256, (count, int(np.prod(size))))
    return rows.astype(np.uint8)


@pytest.mark.parametrize("name", NETWORKS)
def test_numpy_equals_torch(name):
    size, layers = NETWORKS[name]
    made, rows = network(size, layers, outputs=4), pictures(size, 16)
    got = ActingPolicy(snapshot_of(made)).forward(rows)
    # torch's own convolutions and their order of dimensions, in float64.
    x = torch.from_numpy(rows.reshape(-1, *size) / 255).permute(0, 3, 1, 2)
    with torch.no_grad():
        for module in made[:-1:2]:
            weight, bias = module.weight.double(), module.bias.double()
            x = torch.relu(nn.functional.conv2d(x, weight, bias, module.stride))
        x = x.permute(0, 2, 3, 1).flatten(1)
        expected = (x @ made[-1].weight.double().T + made[-1].bias.double()).numpy()
        own = made(torch.from_numpy(rows) / 255).numpy()
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(own, expected, rtol=0, atol=1e-5 * scale)
    assert np.abs(expected).min(axis=0).max() > 1e-3 * scale


@pytest.mark.parametrize("name", ["atari", "minatar"])
@pytest.mark.parametrize("outputs", [0, 6])
def test_a_picture_has_the_same_bits_in_any_company(name, outputs):
    """Convolutions alone, and with the dense layer behind them."""
    size, layers = NETWORKS[name]
    acting = ActingPolicy(snapshot_of(network(size, layers, outputs)))
    assert_same_in_any_company(acting.forward, pictures(size, 64))
