"""Gradients by hand against torch's autograd, and losses' slopes against autograd of their
formulas."""

from __future__ import annotations

import copy
from unittest.mock import patch

import numpy as np
import pytest
import torch
from flame_rl.nets.by_hand import NetworkByHand
from gymnasium import spaces
from torch import nn

import model
from flame_rl.learner.algorithms.ppo import clipped_loss
from flame_rl.learner.on_policy.losses import policy_gradient_loss, value_loss
from flame_rl.learner.on_policy.update import log_probs_of
from flame_rl.learner.training import choose, minibatches, slices
from flame_rl.learner.training.autograd import AutogradNetwork
from flame_rl.learner.training.choose import network_of
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.modules.layers import Activation, Dense, LayerNorm
from flame_rl.modules.networks import CriticNetwork, Returns
from flame_rl.nets.kinds import LAYERS
from flame_rl.nets.layers import LayerByHand
from flame_rl.wire.masks import ACTION_MASKS, pack_masks
from flame_rl.wire.messages import EnvironmentSpec
from tests.learners import (
    ON_POLICY,
    learner_of,
    make_config,
    policy_and_value,
    random_episodes,
    step_down,
)

ACTIONS = {
    "gaussian": spaces.Box(-1, 1, (3,)),
    "categorical": spaces.Discrete(5),
    "many": spaces.Discrete(35),  # more than two vectors
    "factored": spaces.MultiDiscrete([2, 4, 3]),
    "one factor": spaces.MultiDiscrete([4]),
}
LOSSES = {
    "policy gradient": policy_gradient_loss(0.0),
    "with entropy": policy_gradient_loss(0.3),
    "clipped": clipped_loss(0.2, 0.0),
    "clipped with entropy": clipped_loss(0.2, 0.3),
}


def networks(actions: str, activation: str, sizes: tuple[int, ...], normalize: bool):
    """Policy and value network with weights of every size, and a normaliser that has seen much."""
    spec = EnvironmentSpec("X-v0", spaces.Box(-10, 10, (4,)), ACTIONS[actions])
    config = make_config(
        "X-v0", hidden_sizes=sizes, activation=activation, normalize_observations=normalize
    )
    torch.manual_seed(0)
    made = policy_and_value(spec, config)
    with torch.no_grad():
        for module in made:
            for parameter in module.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
            if normalize:
                module.normalizer.set(np.array([1.0, -2, 0, 3]), np.array([0.5, 2, 1, 0.1]))
        made[1].scale.fill_(7.0)
    return made


def policy_samples(actions: str, rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    taken = {
        "gaussian": rng.standard_normal((rows, 3)).astype(np.float32),
        "categorical": rng.integers(0, 5, rows).astype(np.int32),
        "many": np.random.default_rng(6).integers(0, 35, rows).astype(np.int32),
        "factored": rng.integers(0, [2, 4, 3], (rows, 3)).astype(np.int32),
        "one factor": rng.integers(0, 4, (rows, 1)).astype(np.int32),
    }
    return {
        "actions": taken[actions],
        "log_probs": rng.normal(-3, 1, rows).astype(np.float32),
        "advantages": rng.standard_normal(rows).astype(np.float32),
    }


def step_by(trained: TrainedNetwork, network, observations, columns, loss):
    """One step with that network; its numbers, its gradient and the weights after it."""
    trained.network = network
    samples = columns | {"inputs": network.prepare(observations)}
    numbers = step_down(trained, samples, loss, 0.01)
    return numbers, trained.adam.gradient.copy(), trained.adam.parameters.copy()


def compare(module, columns, loss, rows):
    compare_with_autograd(module, columns, loss, rows)
    with patch.object(choose, "compiled_layers", lambda layers: None):
        compare_with_autograd(module, columns, loss, rows)


def compare_with_autograd(module, columns, loss, rows):
    observations = np.random.default_rng(0).normal(0, 3, (rows, 4)).astype(np.float32)
    results = []
    for by_hand in (True, False):
        trained = TrainedNetwork(module(), network_of)
        assert isinstance(trained.network, NetworkByHand)
        network = trained.network if by_hand else AutogradNetwork(trained.module)
        # Of a policy near this one, as they are in training.
        if by_hand and "log_probs" in columns:
            now = log_probs_of(network, columns | {"inputs": observations})
            noise = np.random.default_rng(5).normal(0, 0.3, rows).astype(np.float32)
            columns = columns | {"log_probs": now.round(2) + noise}
        results.append(step_by(trained, network, observations, columns, loss))
    (ours, our_gradient, _), (theirs, gradient, _) = results
    assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    # Rounded as torch rounds: about as far from the gradient in float64 as autograd's.
    exact = np.zeros(len(gradient))
    network = AutogradNetwork(module().double())
    samples = columns | {"inputs": observations}
    doubled = {n: c.astype(float) if c.dtype == np.float32 else c for n, c in samples.items()}
    network.differentiate(loss, doubled, exact)
    exact /= rows
    scale = np.abs(exact).max()
    assert scale > 1e-4
    error = np.abs(our_gradient - exact).max() / scale
    assert error < 5e-6 + 4 * np.abs(gradient - exact).max() / scale < 1e-3


# Some heads and their losses become machine code together; another sees the slopes of any loss.
POLICIES = [(actions, loss) for actions in ("gaussian", "categorical", "many") for loss in LOSSES]
POLICIES += [(actions, "clipped with entropy") for actions in ("factored", "one factor")]


@pytest.mark.parametrize(("actions", "loss"), POLICIES)
@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
def test_a_policy_by_hand_is_the_policy_by_autograd(actions, activation, loss):
    for sizes, normalize, rows in [((16,), True, 61), ((8, 12, 6), False, 200)]:
        compare(
            lambda sizes=sizes, n=normalize: networks(actions, activation, sizes, n)[0],
            policy_samples(actions, rows),
            LOSSES[loss],
            rows,
        )


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("sizes", [(16,), (8, 12, 6), (300, 20), (256, 128)])
def test_a_value_network_by_hand_is_that_by_autograd(activation, sizes):
    targets = np.random.default_rng(2).normal(0, 5, 1500).astype(np.float32)
    compare(
        lambda: networks("gaussian", activation, sizes, True)[1],
        {"targets": targets, "scale": np.full(1500, 7, np.float32)},
        value_loss,
        1500,
    )


def torch_loss(name: str, log_probs, entropies, samples):
    """The formulas in torch, on the outputs alone."""
    old, advantages = (torch.from_numpy(samples[n]).double() for n in ("log_probs", "advantages"))
    c = 0.3 if "entropy" in name else 0.0
    if "clipped" not in name:
        return -(log_probs * advantages) - c * entropies
    ratio = (log_probs - old).exp()
    clipped = ratio.clamp(0.8, 1.2)
    return -torch.minimum(ratio * advantages, clipped * advantages) - c * entropies


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 61, 200])
@pytest.mark.parametrize("activation", ["tanh", "silu"])
def test_a_gradient_in_halves_is_the_gradient(activation, rows, compiled, monkeypatch):
    """Whatever is in new memory."""
    if not compiled:
        monkeypatch.setattr(choose, "compiled_layers", lambda layers: None)
    network = network_of(networks("gaussian", activation, (8, 12), False)[0])
    samples = policy_samples("gaussian", rows)
    samples["inputs"] = np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)
    slopes = samples["advantages"], 0.5
    # Of three dense layers, and of log std.
    whole, halves = np.empty((2, (4 + 1) * 8 + (8 + 1) * 12 + (12 + 1) * 3 + 3), np.float32)
    network.forward(samples).to_parameters(slopes, whole)
    monkeypatch.setattr(np, "empty_like", lambda array: np.full_like(array, 1e6))
    network.forward(samples).to_parameters(slopes, halves, halves=True)
    np.testing.assert_allclose(halves, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("by", ["machine code", "NumPy", "torch"])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("rows", [[], [3], [5, 0, 5, 59], list(range(60))])
def test_the_slope_for_some_inputs_is_that_for_all(rows, norm, by, monkeypatch):
    if by == "NumPy":
        monkeypatch.setattr(choose, "compiled_layers", lambda layers: None)
    layers = [Dense(7, 20), *([LayerNorm(20)] if norm else []), Activation("silu"), Dense(20, 1)]
    module = CriticNetwork(4, nn.Identity(), [], layers)
    network = AutogradNetwork(module) if by == "torch" else network_of(module)
    assert isinstance(network, NetworkByHand) == (by != "torch")
    inputs = np.random.default_rng(0).standard_normal((60, 7)).astype(np.float32)
    rows, slopes = np.array(rows, np.int64), np.random.default_rng(1).standard_normal((60, 1))
    slopes = slopes.astype(np.float32)
    slopes[5] = 2
    whole = network.forward({"inputs": inputs}).to_inputs((slopes,))
    some = network.forward({"inputs": inputs}).to_inputs((slopes[rows],), rows)
    np.testing.assert_allclose(some, whole[rows], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_slopes_of_policy_losses(name):
    samples = policy_samples("gaussian", 500)
    rng = np.random.default_rng(3)
    # Far from the old policy and near it: both sides of the clip range.
    log_probs = samples["log_probs"] + rng.normal(0, 0.3, 500).astype(np.float32)
    entropies = rng.standard_normal(500).astype(np.float32)
    leaves = [torch.from_numpy(x).double().requires_grad_() for x in (log_probs, entropies)]
    expected = torch_loss(name, *leaves, samples)
    wanted = torch.autograd.grad(expected.sum(), leaves, materialize_grads=True)
    numbers, slopes = LOSSES[name](samples, log_probs, entropies)
    np.testing.assert_allclose(numbers["loss"], expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(slopes, wanted, strict=True):
        ours = np.broadcast_to(ours, 500)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-5)


def test_the_slope_of_the_value_loss():
    rng = np.random.default_rng(0)
    values, targets = rng.normal(0, 3, (2, 50)).astype(np.float32)
    numbers, (slope,) = value_loss({"targets": targets, "scale": np.float32(4)}, values)
    np.testing.assert_allclose(numbers["loss"], 0.5 * ((values - targets) / 4) ** 2, rtol=1e-6)
    np.testing.assert_allclose(slope, (values - targets) / 16, rtol=1e-6)


BOX, DISCRETE = (
    EnvironmentSpec("X-v0", spaces.Box(-10, 10, (4,)), ACTIONS[name])
    for name in ("gaussian", "categorical")
)


def of_replay(make, algorithm: str, spec: EnvironmentSpec, *arguments, **options):
    """A function from an activation to a new network of an algorithm with replay."""
    return lambda activation: make(
        spec, make_config("X-v0", algorithm=algorithm, activation=activation, **options), *arguments
    )


PARTS = EnvironmentSpec(
    "X-v0",
    spaces.Dict(a=spaces.Box(-10, 10, (3,)), b=spaces.Box(-10, 10, (1,))),
    ACTIONS["gaussian"],
)
DUELLING = Returns(dueling=True, support=np.linspace(-1, 1, 6))
RAW = {
    "values": of_replay(model.action_values, "dqn", DISCRETE, hidden_sizes=(8, 12)),
    "duelling": of_replay(model.action_values, "dqn", DISCRETE, DUELLING, hidden_sizes=(8,)),
    "deterministic": of_replay(model.deterministic_policy, "td3", BOX, hidden_sizes=(8, 12)),
    "squashed": of_replay(model.squashed_policy, "sac", BOX, hidden_sizes=(12,)),
    "of a part": of_replay(
        model.squashed_policy, "sac", PARTS, hidden_sizes=(8, 12), policy_observations=("a",)
    ),
    "critic": of_replay(model.critic, "td3", BOX, hidden_sizes=(8, 12), layer_norm=False),
    "normalised critic": of_replay(model.critic, "td3", BOX, hidden_sizes=(8, 12), layer_norm=True),
}


def test_every_network_and_every_layer_is_compared():
    """In the tests of this file."""
    made = [make("tanh") for make in RAW.values()]
    made += networks("gaussian", "relu", (8,), True)
    made += networks("categorical", "silu", (8,), True)
    assert {type(module) for module in made} == set(choose.OUTPUTS)
    learned = {name for name, kind in LAYERS.items() if issubclass(kind, LayerByHand)}
    layers = [layer.kind for module in made for layer in module.network]
    assert set(layers) == learned


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("kind", RAW)
def test_networks_of_learners_with_replay(kind, activation):
    """Outputs, gradients, and slopes for the inputs, against torch in float64."""
    torch.manual_seed(0)
    module = RAW[kind](activation)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    critic = "critic" in kind
    trained = TrainedNetwork(module, network_of)
    assert isinstance(trained.network, NetworkByHand)
    rng = np.random.default_rng(0)
    inputs = rng.normal(0, 2, (50, 4 + 3 * critic)).astype(np.float32)
    exact = copy.deepcopy(module).double()
    leaf = torch.from_numpy(inputs).double().requires_grad_()
    (wanted,) = exact.outputs({"inputs": leaf})
    slope = rng.standard_normal(wanted.shape).astype(np.float32)
    kept = slope.copy()
    leaves = [*exact.parameters(), leaf]
    *gradients, slopes = torch.autograd.grad((wanted * torch.from_numpy(slope)).sum(), leaves)
    gradient = np.zeros_like(trained.adam.gradient)
    forward = trained.network.forward({"inputs": inputs})
    (output,) = forward.outputs
    forward.to_parameters((slope,), gradient)
    ours = forward.to_inputs((slope,))
    np.testing.assert_array_equal(slope, kept)
    np.testing.assert_array_equal(output, trained.network.outputs({"inputs": inputs})[0])
    flat = torch.cat([g.reshape(-1) for g in gradients])
    for own, other in ((output, wanted), (gradient, flat), (ours, slopes)):
        other = other.detach().numpy()
        assert own.shape == other.shape and own.dtype == np.float32
        assert np.abs(own - other).max() < 2e-5 * np.abs(other).max()


@pytest.mark.parametrize("actions", ["gaussian", "categorical", "factored"])
def test_slopes_of_several_outputs_for_the_inputs(actions):
    """Of policies' log-probabilities and entropies, and of values."""
    policy, value = networks(actions, "tanh", (8, 12), False)
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((30, 4)).astype(np.float32)
    samples = policy_samples(actions, 30) | {"inputs": inputs}
    taken = torch.from_numpy(samples["actions"])
    taken = taken.double() if taken.is_floating_point() else taken.long()
    for module in (policy, value):
        network = network_of(module)
        assert isinstance(network, NetworkByHand)
        forward = network.forward(samples)
        slopes = tuple(rng.standard_normal(o.shape).astype(np.float32) for o in forward.outputs)
        leaf = torch.from_numpy(inputs).double().requires_grad_()
        exact = copy.deepcopy(module).double()
        outputs = exact.outputs({"inputs": leaf, "actions": taken})
        total = sum((o * torch.from_numpy(s)).sum() for o, s in zip(outputs, slopes, strict=True))
        (expected,) = torch.autograd.grad(total, [leaf])
        ours = forward.to_inputs(slopes)
        assert np.abs(ours - expected.numpy()).max() < 2e-5 * expected.abs().max().item()


@pytest.mark.parametrize("rows", [1, 40, 100])
@pytest.mark.parametrize("actions", ["gaussian", "categorical"])
def test_outputs_slice_by_slice(actions, rows, monkeypatch):
    policy, value = networks(actions, "tanh", (8, 12), False)
    inputs = np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)
    samples = policy_samples(actions, rows) | {"inputs": inputs}
    taken = torch.from_numpy(samples["actions"])
    taken = taken.double() if taken.is_floating_point() else taken.long()
    for module in (policy, value):
        network = network_of(module)
        whole = network.outputs(samples)
        network.slice_rows = 40
        ours = network.outputs(samples)
        exact = copy.deepcopy(module).double()
        theirs = exact.outputs({"inputs": torch.from_numpy(inputs).double(), "actions": taken})
        for own, same, other in zip(ours, whole, theirs, strict=True):
            np.testing.assert_array_equal(own, same)
            np.testing.assert_allclose(own, other.detach().numpy(), rtol=1e-5, atol=1e-5)
        for cores in (1, 3):
            monkeypatch.setattr(slices, "available_cores", lambda cores=cores: cores)
            network.slice_rows = 7
            for own, same in zip(slices.outputs(network, samples), whole, strict=True):
                np.testing.assert_array_equal(own, same)


def test_masked_outputs_slice_by_slice():
    """Where each row allows its own action and the next choice."""
    policy, _ = networks("categorical", "tanh", (8,), False)
    network, rows = network_of(policy), np.arange(100)
    inputs = np.random.default_rng(0).standard_normal((100, 4)).astype(np.float32)
    samples = policy_samples("categorical", 100) | {"inputs": inputs}
    actions = samples["actions"].astype(int)
    allowed = np.zeros((100, 5), bool)
    allowed[rows, actions] = allowed[rows, (actions + 1) % 5] = True
    network.slice_rows = 40
    log_probs, _ = network.outputs(samples | {ACTION_MASKS: pack_masks(allowed)})
    with torch.no_grad():
        logits = copy.deepcopy(policy).double()(torch.from_numpy(inputs).double()).numpy()
    own, other = logits[rows, actions], logits[rows, (actions + 1) % 5]
    np.testing.assert_allclose(log_probs, -np.log1p(np.exp(other - own)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_whole_updates_agree(algorithm, continuous, monkeypatch):
    options = {"algorithm": algorithm, "normalize_observations": True, "epochs": 3}
    monkeypatch.setattr(minibatches, "LEAST_MINIBATCH", 3)
    results = []
    for by_hand in (True, False):
        if not by_hand:
            monkeypatch.setattr(choose, "network_by_hand", lambda module: None)
        learner = learner_of(continuous, **options, minibatches=3)
        kind = type(learner.algorithm.networks.policy.network)
        assert issubclass(kind, NetworkByHand) is by_hand
        metrics = [learner.update(random_episodes(continuous)) for _ in range(3)]
        weights = np.concatenate(
            [learner.parts[f"{name}_adam"].parameters.copy() for name in ("policy", "value")]
        )
        results.append((metrics, weights))
    (ours, our_weights), (theirs, weights) = results
    np.testing.assert_allclose(our_weights, weights, rtol=1e-3, atol=1e-4)
    for own, other in zip(ours, theirs, strict=True):
        assert own == pytest.approx(other, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("actions", "sizes", "activation"),
    [
        *((actions, (8,), "tanh") for actions in ACTIONS),
        *(("gaussian", (64, 64), activation) for activation in ("tanh", "relu", "silu")),
        *(("gaussian", sizes, "relu") for sizes in ((), (256, 256))),
    ],
)
def test_new_networks_are_by_hand(actions, sizes, activation):
    spec = EnvironmentSpec("X-v0", spaces.Box(-10, 10, (4,)), ACTIONS[actions])
    config = make_config("X-v0", hidden_sizes=sizes, activation=activation)
    for module in policy_and_value(spec, config):
        assert isinstance(network_of(module), NetworkByHand)


def test_by_hand_reads_the_module_itself():
    """Weights and statistics that are set later, as at a resume, count."""
    first, second = (networks("gaussian", "tanh", (8,), True)[0] for _ in range(2))
    trained = TrainedNetwork(first, network_of)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.mul_(1.5)
        second.normalizer.set(np.zeros(4), np.full(4, 3.0))
    first.load_state_dict(second.state_dict())
    observations = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    actions = policy_samples("gaussian", 10)["actions"]
    inputs = trained.network.prepare(observations)
    ours = trained.network.outputs({"inputs": inputs, "actions": actions})
    samples = {"inputs": torch.from_numpy(observations), "actions": torch.from_numpy(actions)}
    with torch.no_grad():
        theirs = second.outputs(samples)
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own, other.numpy(), rtol=1e-5, atol=1e-5)
