"""What a person is told where networks train slowly, and nothing where that cannot be helped."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import model
from flame_rl.learner.training import choose
from flame_rl.modules.layers import Dense, LayerModule
from tests.helpers import spec_of
from tests.learners import make_learner


class Doubling(LayerModule):
    """Somebody's own layer, which compiled code does not know."""

    kind = "scale"

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x

    def arrays(self) -> dict[str, Tensor]:
        return {"factor": torch.full((1,), 2.0)}


class OwnDense(Dense):
    """A subclass, which may compute something else."""


def test_a_package_without_its_library_says_so_once(monkeypatch):
    monkeypatch.setattr(choose, "library", lambda: None)
    (notice,) = make_learner(spec_of(3, 2, True), algorithm="ppo").notices
    assert "about 16 times slower" in notice
    assert "`uv sync --reinstall-package flame-rl`" in notice


@pytest.mark.parametrize("layer", [Doubling, OwnDense])
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_a_layer_that_compiled_code_does_not_know_is_named_once(layer, algorithm, monkeypatch):
    dense_layers = model.dense_layers

    def with_own(inputs, outputs, config, *options, **others):
        layers = dense_layers(inputs, outputs, config, *options, **others)
        own = layer() if layer is Doubling else layer(layers[0].in_features, layers[0].out_features)
        return [own, *layers] if layer is Doubling else [own, *layers[1:]]

    monkeypatch.setattr(model, "dense_layers", with_own)
    notices = make_learner(spec_of(3, 2, True), algorithm=algorithm).notices
    (notice,) = (each for each in notices if "compiled" in each)
    assert notice.startswith(f"{layer.__name__} is a layer that compiled code does not know: torch")
    assert "about 16 times slower" in notice and notice.endswith("see docs/add-a-layer.md")


@pytest.mark.parametrize(
    "options", [{}, {"memory": "gru"}, {"frame_stack": 2}, {"shared_torso": True}]
)
def test_nothing_is_said_where_nothing_can_be_done(options):
    assert make_learner(spec_of(3, 2, True), algorithm="ppo", **options).notices == []


def test_another_device_trains_by_torch_anyway(monkeypatch):
    learner = make_learner(spec_of(3, 2, True), algorithm="ppo")
    monkeypatch.setattr(choose, "library", lambda: None)
    learner._device = "cuda"
    assert learner.notices == []
