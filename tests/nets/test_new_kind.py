"""A kind of layer that is new takes a class in NumPy and a torch module, and nothing else knows it:
it acts, learns by torch and is exported."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import model
from flame_rl.learner.training.autograd import AutogradNetwork
from flame_rl.learner.training.choose import in_training
from flame_rl.modules.layers import LayerModule
from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.kinds import LAYERS
from flame_rl.nets.layers import LayerKind, Shapes
from flame_rl.wire.codec import decode_snapshot, encode_snapshot
from flame_rl.wire.messages import EnvironmentSpec
from tests.learners import make_config


class GainLayer(LayerKind):
    """y = x * gain."""

    kind = "gain"
    arrays: ClassVar[Shapes] = {"gain": ("in",)}

    def act(self, x: np.ndarray) -> np.ndarray:
        x *= self.gain
        return x


class Gain(LayerModule):
    kind = "gain"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain

    def arrays(self) -> dict[str, Tensor]:
        return {"gain": self.gain}


SPEC = EnvironmentSpec("X-v0", spaces.Box(-1, 1, (5,)), spaces.Discrete(3))
CONFIG = make_config("X-v0", hidden_sizes=(8, 6), activation="tanh", normalize_observations=True)
OBSERVATIONS = np.random.default_rng(1).normal(0, 3, (64, 5)).astype(np.float32)


@pytest.fixture
def trained(monkeypatch):
    """A policy with the layer behind both activations, and weights of every size."""
    monkeypatch.setitem(LAYERS, "gain", GainLayer)
    torch.manual_seed(0)
    module = model.policy(SPEC, CONFIG)
    module.network.insert(4, Gain(6))
    module.network.insert(2, Gain(8))
    module.normalizer.set(np.arange(5.0), np.full(5, 2.0))
    made = in_training(module)
    made.adam.parameters += np.random.default_rng(0).normal(0, 0.5, made.adam.parameters.shape)
    return made


def test_it_acts_and_travels(trained):
    snapshot = trained.module.snapshot()
    assert [layer.kind for layer in snapshot.layers].count("gain") == 2
    acting = ActingPolicy(decode_snapshot(encode_snapshot(snapshot)))
    with torch.no_grad():
        expected = trained.module(torch.from_numpy(OBSERVATIONS))
    np.testing.assert_allclose(acting.forward(OBSERVATIONS), expected, rtol=1e-4, atol=1e-5)


def test_it_learns(trained):
    assert type(trained.network) is AutogradNetwork
    samples = {"inputs": OBSERVATIONS, "actions": np.arange(64, dtype=np.int32) % 3}
    before, gains = trained.network.outputs(samples)[0], trained.module.network[2].gain.clone()
    # Up the log-probabilities.
    trained.descend(trained.network.forward(samples), (np.full(64, -1, np.float32), 0.0), 1e-3)
    assert trained.network.outputs(samples)[0].mean() > before.mean()
    assert (trained.module.network[2].gain != gains).all()


def test_it_is_exported(trained):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from flame_rl.tools.onnx_file import ExportedPolicy, check_onnx, to_onnx

    exported = ExportedPolicy(trained.module, trained.module.snapshot())
    assert check_onnx(to_onnx(exported, "X-v0"), exported.snapshot) < 1e-5
