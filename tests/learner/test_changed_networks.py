"""Networks that somebody changed in model.py: they train, deterministically, or are refused with a
reason."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn

import model
from flame_rl.learner.training.autograd import AutogradNetwork
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.run.checkpoint import WEIGHTS_NAME, save_weights
from flame_rl.system.errors import UsageError
from tests.learners import learner_of, random_episodes

OPTIONS = {"normalize_observations": False, "hidden_sizes": (8,)}


def learner_with(change, monkeypatch):
    """A learner of A2C whose networks `change(policy, value)` has changed."""
    make = model.make_networks

    def changed(spec, config):
        policy, value = make(spec, config)
        change(policy, value)
        return policy, value

    monkeypatch.setattr(model, "make_networks", changed)
    return learner_of(True, algorithm="a2c", **OPTIONS)


def test_random_numbers_in_an_update_are_refused(monkeypatch):
    learner = learner_with(
        lambda policy, value: value.network.insert(1, nn.Dropout(0.5)), monkeypatch
    )
    with pytest.raises(UsageError, match="draws random numbers"):
        learner.update(random_episodes(True))


def test_parameters_of_another_type_are_refused(monkeypatch):
    with pytest.raises(UsageError, match=r"network.0.weight of ValueNetwork is torch.float64"):
        learner_with(lambda policy, value: value.double(), monkeypatch)


def test_a_layer_in_two_networks_is_refused(monkeypatch):
    def share(policy, value):
        value.network[0] = policy.network[0]

    with pytest.raises(UsageError, match=r"'policy' and 'value' have the parameter .* in common"):
        learner_with(share, monkeypatch)


@pytest.mark.parametrize("layer", [0, 2])
def test_a_frozen_layer_stays_as_it_is(layer, monkeypatch):
    def freeze(policy, value):
        value.network[layer].requires_grad_(False)

    learner = learner_with(freeze, monkeypatch)
    value = learner.parts["value"]
    before = {name: tensor.clone() for name, tensor in value.state_dict().items()}
    learner.update(random_episodes(True))
    for name, tensor in value.state_dict().items():
        if name.startswith("network."):
            assert torch.equal(tensor, before[name]) == name.startswith(f"network.{layer}.")


def test_a_network_that_is_frozen_as_a_whole_stays_as_it_is(monkeypatch):
    learner = learner_with(lambda policy, value: value.requires_grad_(False), monkeypatch)
    before = learner.parts["value"].network[0].weight.clone()
    learner.update(random_episodes(True))
    assert torch.equal(learner.parts["value"].network[0].weight, before)


def test_weights_that_two_layers_share_are_written_twice(tmp_path):
    weight = np.arange(4.0).reshape(2, 2)
    save_weights(tmp_path, {"first": weight, "second": weight.T})
    read = safetensors.numpy.load_file(tmp_path / WEIGHTS_NAME)
    np.testing.assert_array_equal(read["first"], weight)
    np.testing.assert_array_equal(read["second"], weight.T)


@pytest.mark.parametrize(
    ("layer", "parallel"), [(nn.BatchNorm1d(2), False), (nn.Linear(2, 2), True)]
)
def test_a_module_that_counts_is_computed_by_one_core(layer, parallel):
    module = nn.Sequential(nn.Linear(3, 2), layer)
    network = TrainedNetwork(
        module, lambda m: AutogradNetwork(m, lambda own, samples: (own(samples["inputs"]),))
    ).network
    assert network.parallel == parallel
    assert np.isfinite(network.outputs({"inputs": np.ones((4, 3), np.float32)})[0]).all()
