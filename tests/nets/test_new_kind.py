"""A kind of layer that is new takes a class in NumPy and a torch module, and nothing else knows it:
it acts, learns by hand and is exported."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from flame_rl.nets.by_hand import NetworkByHand
from gymnasium import spaces
from torch import Tensor, nn

import model
from flame_rl.learner.training.autograd import AutogradNetwork
from flame_rl.learner.training.choose import network_of
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.modules.layers import LayerModule
from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.kinds import LAYERS
from flame_rl.nets.layers import Kept, LayerByHand, Shapes, sum_rows
from flame_rl.wire.codec import decode_snapshot, encode_snapshot
from flame_rl.wire.messages import EnvironmentSpec
from tests.learners import by_hand_and_by_autograd, make_config


class GainLayer(LayerByHand):
    """y = x * gain."""

    kind = "gain"
    arrays: ClassVar[Shapes] = {"gain": ("in",)}
    learned = ("gain",)

    def act(self, x: np.ndarray) -> np.ndarray:
        x *= self.gain
        return x

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Kept]:
        return x * self.gain, (x,)

    def to_parameters(self, kept: Kept, slope: np.ndarray, *gradients: np.ndarray) -> None:
        sum_rows(kept[0] * slope, gradients[0])

    def to_inputs(self, kept: Kept, slope: np.ndarray) -> np.ndarray:
        return slope * self.gain


class Gain(LayerModule):
    kind = "gain"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain

    def arrays(self) -> dict[str, Tensor]:
        return {"gain": self.gain}


class OtherGain(Gain):
    """Not the kind's own twin: it does not say so."""


SPEC = EnvironmentSpec("X-v0", spaces.Box(-1, 1, (5,)), spaces.Discrete(3))
CONFIG = make_config("X-v0", hidden_sizes=(8, 6), activation="tanh", normalize_observations=True)


@pytest.fixture(autouse=True)
def _listed(monkeypatch):
    monkeypatch.setitem(LAYERS, "gain", GainLayer)


def trained(make=model.policy, gain=Gain) -> TrainedNetwork:
    """A network with the layer behind two activations, and weights of every size."""
    torch.manual_seed(0)
    module = make(SPEC, CONFIG)
    module.network.insert(4, gain(6))
    module.network.insert(2, gain(8))
    module.normalizer.set(np.arange(5.0), np.full(5, 2.0))
    network = TrainedNetwork(module, network_of)
    network.adam.parameters += np.random.default_rng(0).normal(
        0, 0.5, network.adam.parameters.shape
    )
    return network


def observations(rows: int = 64) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 3, (rows, 5)).astype(np.float32)


def test_it_acts_and_travels():
    snapshot = trained().module.snapshot()
    assert [layer.kind for layer in snapshot.layers].count("gain") == 2
    acting = ActingPolicy(decode_snapshot(encode_snapshot(snapshot)))
    with torch.no_grad():
        expected = trained().module(torch.from_numpy(observations()))
    np.testing.assert_allclose(acting.forward(observations()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [model.policy, model.value])
def test_it_learns_by_hand_as_by_autograd(make):
    network = trained(make)
    if make is model.value:
        network.module.scale.fill_(3.0)
    assert isinstance(network.network, NetworkByHand)
    assert type(trained(make, OtherGain).network) is AutogradNetwork
    rng = np.random.default_rng(2)
    columns = {"actions": rng.integers(0, 3, 64, np.int32)}
    for ours, theirs in by_hand_and_by_autograd(network, columns, observations()):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4 * np.abs(theirs).max())


def test_it_is_exported():
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from flame_rl.tools.onnx_file import ExportedPolicy, check_onnx, to_onnx

    policy = trained().module
    exported = ExportedPolicy(policy, policy.snapshot())
    assert check_onnx(to_onnx(exported, "X-v0"), exported.snapshot) < 1e-5
