"""Compiled networks against torch's autograd: outputs, gradients, losses and whole epochs."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from flame_rl.learner.algorithms.ppo import clipped_loss
from flame_rl.learner.compiled import network as compiled_module
from flame_rl.learner.compiled.network import CompiledNetwork
from flame_rl.learner.on_policy.losses import policy_gradient_loss, value_loss
from flame_rl.learner.training.autograd import AutogradNetwork
from flame_rl.learner.training.choose import in_training, network_of
from flame_rl.learner.training.epoch import Epoch, StepConfig, descend, descend_by, runs_alone
from flame_rl.learner.training.slices import mean_gradient
from flame_rl.modules.layers import Activation, Dense, LayerNorm, Select
from flame_rl.modules.networks import (
    CategoricalPolicy,
    GaussianPolicy,
    PolicyNetwork,
    ValueNetwork,
)
from flame_rl.modules.observations import ObservationNormalizer
from flame_rl.wire.messages import Layer

TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}
HEADS = ("raw", "value", "gaussian", "categorical", "factored")
WIDTHS = st.lists(st.integers(1, 40), min_size=0, max_size=3)


def make(head: str, sizes: list[int], activation: str, norm: bool, inputs: int, seed: int):
    """A network in training with layers of these sizes; some heads have another width at the
    end."""
    torch.manual_seed(seed)
    width = {"value": 1, "factored": 9}.get(head, 4)
    layers: list[nn.Module] = []
    before = inputs
    for size in sizes:
        layers += [Dense(before, size), *([LayerNorm(size)] if norm else [])]
        layers.append(Activation(activation))
        before = size
    layers.append(Dense(before, width))
    plain = nn.Identity(), nn.Identity()
    module = {
        "raw": lambda: PolicyNetwork(plain, layers, Layer("noisy", {})),
        "value": lambda: ValueNetwork(plain, layers),
        "gaussian": lambda: GaussianPolicy(plain, layers, width, -0.3),
        "categorical": lambda: CategoricalPolicy(plain, layers, (width,), False),
        "factored": lambda: CategoricalPolicy(plain, layers, (2, 3, 4), True),
    }[head]()
    for parameter in module.parameters():  # norms have weights and biases of their own, too
        parameter.data += 0.1 * torch.randn_like(parameter)
    if head == "value":
        module.scale.fill_(3.0)
    return in_training(module)


def samples_of(head: str, rows: int, inputs: int, masked: bool, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    samples = {"inputs": rng.standard_normal((rows, inputs)).astype(np.float32)}
    if head == "gaussian":
        samples["actions"] = rng.standard_normal((rows, 4)).astype(np.float32)
    if head in ("categorical", "factored"):
        choices = (4,) if head == "categorical" else (2, 3, 4)
        columns = [rng.integers(0, n, rows) for n in choices]
        samples["actions"] = np.stack(columns, 1).astype(np.int32)
        if masked:
            allowed = rng.random((rows, sum(choices))) < 0.5
            for start, column in zip(np.cumsum([0, *choices]), columns, strict=False):
                allowed[np.arange(rows), start + column] = True
            samples["action_masks"] = np.packbits(allowed, axis=1)
        if head == "categorical":
            samples["actions"] = samples["actions"][:, 0]
    samples["advantages"] = rng.standard_normal(rows).astype(np.float32)
    samples["log_probs"] = -np.abs(rng.standard_normal(rows)).astype(np.float32)
    samples["targets"] = rng.standard_normal(rows).astype(np.float32)
    samples["scale"] = np.full(rows, 3.0, np.float32)
    samples["weights"] = rng.random(rows).astype(np.float32)
    return samples


@settings(max_examples=60)
@given(
    st.sampled_from(HEADS),
    WIDTHS,
    st.sampled_from(["tanh", "relu", "silu"]),
    st.booleans(),
    st.integers(1, 20),
    st.integers(1, 70),
    st.booleans(),
    st.integers(0, 99),
)
def test_outputs_and_gradients(head, sizes, activation, norm, inputs, rows, masked, seed):
    if norm:  # of a few numbers, a normalisation enlarges rounding
        sizes, inputs = [size + 8 for size in sizes], inputs + 4
    trained = make(head, sizes, activation, norm, inputs, seed)
    assert type(trained.network) is CompiledNetwork
    samples = samples_of(head, rows, inputs, masked, seed)
    plain, results = AutogradNetwork(trained.module), []
    for network in (trained.network, plain):
        forward = network.forward(samples)
        rng = np.random.default_rng(seed + 1)
        gradients = tuple(rng.standard_normal(o.shape).astype(np.float32) for o in forward.outputs)
        gradient = np.full_like(trained.adam.gradient, np.nan)
        forward.backward(gradients, gradient)
        of_inputs = network.forward(samples).backward_inputs(gradients)
        results.append((*network.outputs(samples), *forward.outputs, gradient, of_inputs))
    for ours, theirs in zip(*results, strict=True):
        size = np.abs(theirs).max(initial=1.0)
        np.testing.assert_allclose(ours / size, theirs / size, **TOLERANCE)


LOSSES = {
    "clipped": clipped_loss(0.2, 0.01),
    "policy gradient": policy_gradient_loss(0.02),
    "value": value_loss,
}


def losses_of(head: str) -> list[str]:
    return ["value"] if head == "value" else ["clipped", "policy gradient"]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("head", HEADS[1:])
def test_losses_are_those_of_numpy(head, masked):
    trained = make(head, [13, 8], "tanh", False, 5, seed=2)
    samples = samples_of(head, 50, 5, masked, seed=3)
    for name in losses_of(head):
        found = []
        for network in (trained.network, AutogradNetwork(trained.module)):
            gradient = np.empty_like(trained.adam.gradient)
            found.append((network.differentiate(LOSSES[name], samples, gradient), gradient))
        (ours, our_gradient), (theirs, their_gradient) = found
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-4)
        np.testing.assert_allclose(our_gradient, their_gradient, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("slice_rows", [1 << 17, 16])
@pytest.mark.parametrize("head", HEADS[1:])
def test_an_epoch_is_its_minibatches_by_torch(head, slice_rows, monkeypatch):
    """The same steps as with torch's gradients one minibatch after another, also where a minibatch
    has several slices."""
    monkeypatch.setattr(compiled_module, "_WORKSPACE", 0)
    monkeypatch.setattr(compiled_module, "_LEAST_ROWS", slice_rows)
    rows, count = 150, 4
    samples = samples_of(head, rows, 5, masked=False, seed=3)
    inputs = samples.pop("inputs")
    order = np.random.default_rng(5).permutation(rows)
    epoch = Epoch(inputs, np.arange(rows), samples, order, count)
    step = StepConfig(3e-3, max_grad_norm=0.5)
    for name in losses_of(head):
        ours, theirs = (make(head, [12], "tanh", False, 5, seed=4) for _ in range(2))
        plain, loss = AutogradNetwork(theirs.module), LOSSES[name]
        assert runs_alone(ours.network, epoch, loss) and not runs_alone(plain, epoch, loss)
        our_steps = descend(ours.network, ours.adam, epoch, loss, step)

        def gradient_of(minibatch, plain=plain, loss=loss, adam=theirs.adam):
            return mean_gradient(plain, minibatch, loss, adam.gradient)

        their_steps = descend_by(gradient_of, theirs.adam, epoch, step)
        assert len(our_steps) == len(their_steps) == count and ours.adam.steps == count
        for one, other in zip(our_steps, their_steps, strict=True):
            assert one == pytest.approx(other, rel=1e-3, abs=1e-4)
        np.testing.assert_allclose(ours.adam.parameters, theirs.adam.parameters, atol=2e-4)


def test_an_epoch_ends_at_the_kl_limit():
    trained = make("gaussian", [8], "tanh", False, 3, seed=1)
    samples = samples_of("gaussian", 256, 3, masked=False, seed=1)
    inputs = samples.pop("inputs")
    (samples["log_probs"], _) = trained.network.outputs(samples | {"inputs": inputs})
    epoch = Epoch(inputs, np.arange(256), samples, np.arange(256), 4)
    before = trained.adam.parameters.copy()
    steps = descend(
        trained.network, trained.adam, epoch, LOSSES["clipped"], StepConfig(0.1, 1.0, 1e-3)
    )
    assert len(steps) == 2 and abs(steps[0]["kl"]) < 1e-6 and steps[1]["kl"] > 1e-3
    assert trained.adam.steps == 1 and np.abs(trained.adam.parameters - before).max() < 0.11
    # A divergence that is not a number exceeds the limit, too.
    samples["log_probs"][:] = math.nan
    assert (
        len(descend(trained.network, trained.adam, epoch, LOSSES["clipped"], StepConfig(0.1, 1.0)))
        == 1
    )
    assert trained.adam.steps == 1


def test_many_rows_are_computed_slice_by_slice_with_the_same_bits():
    trained = make("gaussian", [40, 40], "silu", True, 7, seed=1)
    samples = samples_of("gaussian", 5000, 7, masked=False, seed=1)
    whole = trained.network.outputs(samples)
    part = trained.network.outputs({name: column[4000:] for name, column in samples.items()})
    assert all(np.array_equal(w[4000:], p) for w, p in zip(whole, part, strict=True))


def test_observations_are_normalised_and_selected():
    normalizer = ObservationNormalizer(6)
    normalizer.set(np.arange(6.0), np.full(6, 2.0))
    layers = [Select(6, [4, 1]), Dense(2, 3)]
    module = PolicyNetwork((nn.Identity(), normalizer), layers, Layer("noisy", {}))
    trained = in_training(module)
    assert type(trained.network) is CompiledNetwork
    observations = 30 * np.random.default_rng(0).standard_normal((9, 6)).astype(np.float32)
    prepared = trained.network.prepare(observations)
    (ours,) = trained.network.outputs({"inputs": prepared})
    (theirs,) = AutogradNetwork(module).outputs({"inputs": observations})
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    # The inputs that were not selected have no gradient.
    one = (np.ones((9, 3), np.float32),)
    of_inputs = trained.network.forward({"inputs": prepared}).backward_inputs(one)
    assert (
        of_inputs.shape == (9, 6) and not of_inputs[:, [0, 2, 3, 5]].any() and of_inputs[:, 4].any()
    )


class Doubled(Dense):
    def forward(self, x):
        return 2 * super().forward(x)


def changed(how: str) -> nn.Module:
    module = PolicyNetwork((nn.Identity(), nn.Identity()), [Dense(3, 2)], Layer("noisy", {}))
    dense = module.network[0]
    if how == "subclass":
        module.network[0] = Doubled(3, 2)
    elif how == "hook":
        dense.register_forward_hook(lambda module, inputs, output: 2 * output)
    elif how == "method":
        dense.forward = lambda x: 2 * nn.functional.linear(x, dense.weight, dense.bias)
    elif how == "frozen":
        dense.bias.requires_grad_(False)
    elif how == "no bias":
        dense.bias = None
    elif how == "shared":
        module.network.append(Dense(2, 2))
        module.network.append(module.network[1])
    return module


@pytest.mark.parametrize("how", ["subclass", "hook", "method", "frozen", "no bias", "shared"])
def test_what_somebody_changed_is_torchs(how):
    assert type(in_training(changed(how)).network) is AutogradNetwork
    assert type(in_training(changed("not")).network) is CompiledNetwork


def test_a_copy_computes_on_its_own_parameters():
    trained = make("value", [5], "relu", False, 3, seed=1)
    twin = copy.deepcopy(trained.module)
    network = network_of(twin)
    samples = samples_of("value", 4, 3, masked=False, seed=1)
    before = network.outputs(samples)[0].copy()
    trained.adam.parameters += 1
    assert np.array_equal(network.outputs(samples)[0], before)
    assert type(network) is CompiledNetwork
