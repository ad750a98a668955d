"""Compiled networks against torch's autograd: outputs, gradients, losses and whole epochs."""

import copy
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import flame_rl.learner.compiled as targets
import model
from flame_rl.learner.algorithms.ppo import clipped_loss
from flame_rl.learner.compiled import library as compiled_library
from flame_rl.learner.compiled import network as compiled_module
from flame_rl.learner.compiled.network import CompiledNetwork
from flame_rl.learner.on_policy import batch
from flame_rl.learner.on_policy.losses import policy_gradient_loss, value_loss
from flame_rl.learner.training import choose, slices, trained
from flame_rl.learner.training.autograd import AutogradNetwork
from flame_rl.learner.training.choose import in_training, network_of
from flame_rl.learner.training.epoch import (
    Epoch,
    StepConfig,
    runs_compiled,
    train_epoch,
    train_minibatches,
)
from flame_rl.learner.training.slices import mean_gradient
from flame_rl.learner.training.trained import flat_parameters
from flame_rl.modules.layers import Activation, Dense, LayerNorm, Select
from flame_rl.modules.networks import (
    CategoricalPolicy,
    GaussianPolicy,
    PolicyNetwork,
    Returns,
    ValueNetwork,
)
from flame_rl.modules.observations import ObservationNormalizer
from flame_rl.wire.messages import EnvironmentSpec, Layer
from tests.learners import (
    ON_POLICY,
    compiled_and_by_autograd,
    learner_of,
    make_config,
    random_episodes,
    shaken,
)

TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}
# Choices of each factor; "many" are more than two vectors.
CHOICES = {"categorical": (4,), "many": (35,), "factored": (2, 3, 4), "one factor": (4,)}
HEADS = ("raw", "value", "gaussian", *CHOICES)
WIDTHS = st.lists(st.integers(1, 40), min_size=0, max_size=3)


def make(head: str, sizes: list[int], activation: str, norm: bool, inputs: int, seed: int):
    """A network in training with layers of these sizes; some heads have another width at the
    end."""
    torch.manual_seed(seed)
    choices = CHOICES.get(head, ())
    width = 1 if head == "value" else sum(choices) or 4
    layers: list[nn.Module] = []
    before = inputs
    for size in sizes:
        layers += [Dense(before, size), *([LayerNorm(size)] if norm else [])]
        layers.append(Activation(activation))
        before = size
    layers.append(Dense(before, width))
    plain = nn.Identity(), nn.Identity()
    policy = plain, layers, choices, "factor" in head
    modules = {
        "raw": lambda: PolicyNetwork(plain, layers, Layer("noisy", {})),
        "value": lambda: ValueNetwork(plain, layers),
        "gaussian": lambda: GaussianPolicy(plain, layers, width, -0.3),
    }
    module = modules[head]() if head in modules else CategoricalPolicy(*policy)
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
    if head in CHOICES:
        choices = CHOICES[head]
        columns = [rng.integers(0, n, rows) for n in choices]
        samples["actions"] = np.stack(columns, 1).astype(np.int32)
        if masked:
            allowed = rng.random((rows, sum(choices))) < 0.5
            for start, column in zip(np.cumsum([0, *choices]), columns, strict=False):
                allowed[np.arange(rows), start + column] = True
            samples["action_masks"] = np.packbits(allowed, axis=1)
        if "factor" not in head:
            samples["actions"] = samples["actions"][:, 0]
    samples["advantages"] = rng.standard_normal(rows).astype(np.float32)
    samples["log_probs"] = -np.abs(rng.standard_normal(rows)).astype(np.float32)
    samples["targets"] = rng.standard_normal(rows).astype(np.float32)
    samples["scale"] = np.full(rows, 3.0, np.float32)
    samples["kl_weights"] = rng.random(rows).astype(np.float32)
    return samples


def epoch_of(head: str, steps: int, count: int, inputs: int = 5, masked: bool = False) -> Epoch:
    """In random order, from some of the rows; of a policy near the one that acted."""
    rng = np.random.default_rng(5)
    samples = samples_of(head, steps, inputs, masked, seed=3)
    every = rng.standard_normal((steps + 7, inputs)).astype(np.float32)
    rows = rng.permutation(steps + 7)[:steps]
    every[rows] = samples.pop("inputs")
    return Epoch(every, rows, samples, rng.permutation(steps), count)


def step_by_step(trained, epoch, loss, config):
    """The same epoch, by torch."""
    network, adam = AutogradNetwork(trained.module), trained.adam
    assert not runs_compiled(network, epoch, loss)
    return train_minibatches(
        lambda minibatch: mean_gradient(network, loss, adam.gradient, minibatch),
        adam,
        epoch,
        config,
    )


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


@pytest.mark.parametrize("slice_rows", [1 << 17, 16])
@pytest.mark.parametrize("head", HEADS[1:])
def test_an_epoch_is_its_minibatches_by_torch(head, slice_rows, monkeypatch):
    """The same steps as with torch's gradients one minibatch after another, also where a minibatch
    has several slices and each has a call of its own."""
    monkeypatch.setattr(compiled_module, "_WORKSPACE", 0)
    monkeypatch.setattr(compiled_module, "_LEAST_ROWS", slice_rows)
    if slice_rows == 16:
        monkeypatch.setattr(compiled_module, "_ONE_CALL", 1)
    epoch, config = epoch_of(head, 150, 4, masked=slice_rows == 16), StepConfig(3e-3, 0.5)
    for name in ["value"] if head == "value" else ["clipped", "policy gradient"]:
        ours, theirs = (make(head, [12], "tanh", False, 5, seed=4) for _ in range(2))
        assert runs_compiled(ours.network, epoch, LOSSES[name])
        our_steps = train_epoch(ours.network, ours.adam, epoch, LOSSES[name], config)
        their_steps = step_by_step(theirs, epoch, LOSSES[name], config)
        assert len(our_steps) == len(their_steps) == ours.adam.steps == theirs.adam.steps == 4
        for one, other in zip(our_steps, their_steps, strict=True):
            assert one == pytest.approx(other, rel=1e-3, abs=1e-4)
        np.testing.assert_allclose(ours.adam.parameters, theirs.adam.parameters, atol=2e-4)


@pytest.mark.parametrize("one_call", [1, 1 << 30])
@pytest.mark.parametrize("wrong", [1.0, math.nan])
def test_an_epoch_ends_at_the_kl_limit(wrong, one_call, monkeypatch):
    """Before that minibatch's step. A divergence that is not a number exceeds the limit, too."""
    monkeypatch.setattr(compiled_module, "_ONE_CALL", one_call)
    ours, theirs = (make("gaussian", [8], "tanh", False, 3, seed=1) for _ in range(2))
    epoch, loss = epoch_of("gaussian", 300, 10, inputs=3), LOSSES["clipped"]
    (log_probs, _) = ours.network.outputs(epoch.columns | {"inputs": epoch.inputs[epoch.rows]})
    log_probs[epoch.order[150:180]] += wrong
    epoch.columns["log_probs"] = log_probs
    config = StepConfig(1e-4, 0.5, 0.1)
    found = train_epoch(ours.network, ours.adam, epoch, loss, config)
    assert len(found) == len(step_by_step(theirs, epoch, loss, config)) == 6
    assert [config.exceeds_kl(numbers) for numbers in found] == 5 * [False] + [True]
    assert ours.adam.steps == theirs.adam.steps == 5
    np.testing.assert_allclose(ours.adam.parameters, theirs.adam.parameters, atol=1e-6)


def test_a_divergence_at_the_limit_is_within_it():
    """Compiled code compares in float32."""
    trained = make("gaussian", [8], "tanh", False, 3, seed=1)
    epoch, loss = epoch_of("gaussian", 300, 1, inputs=3), LOSSES["clipped"]
    (first,) = train_epoch(trained.network, trained.adam, epoch, loss, StepConfig(0.0, 0.5))
    config = StepConfig(1e-3, 0.5, first["kl"])
    (numbers,) = train_epoch(trained.network, trained.adam, epoch, loss, config)
    assert not config.exceeds_kl(numbers) and trained.adam.steps == 2


def test_what_is_not_finite_stays_so():
    """The learner refuses it."""
    trained, epoch = make("value", [8], "relu", False, 5, seed=1), epoch_of("value", 300, 4)
    epoch.columns["targets"][7] = np.nan
    steps = train_epoch(trained.network, trained.adam, epoch, value_loss, StepConfig(0.01, 0.5))
    assert len(steps) == 4 and np.isnan([numbers["loss"] for numbers in steps]).any()
    assert np.isnan(trained.adam.parameters).any()


def test_many_rows_are_computed_slice_by_slice_with_the_same_bits(monkeypatch):
    """On any number of cores."""
    trained = make("gaussian", [40, 40], "silu", True, 7, seed=1)
    samples = samples_of("gaussian", 5000, 7, masked=False, seed=1)
    whole = trained.network.outputs(samples)
    parts = [trained.network.outputs({n: column[4000:] for n, column in samples.items()})]
    trained.network.slice_rows = 37
    for cores in (1, 3):
        monkeypatch.setattr(slices, "available_cores", lambda cores=cores: cores)
        found = slices.outputs(trained.network, samples)
        parts.append([each[4000:] for each in found])
    for part in parts:
        assert all(np.array_equal(w[4000:], p) for w, p in zip(whole, part, strict=True))


def test_what_does_not_fit_is_refused():
    """Compiled code would read on."""
    network = make("gaussian", [8], "tanh", False, 3, seed=1).network
    samples = samples_of("gaussian", 6, 3, masked=False, seed=1)
    for name in ("inputs", "actions"):
        for wrong in (samples[name][:, 1:], samples[name][:-1]):
            if name == "inputs" and len(wrong) == 5:
                continue  # the number of samples
            with pytest.raises(ValueError, match="reshape"):
                network.outputs(samples | {name: wrong})
    with pytest.raises(ValueError, match="shape"):
        network.forward(samples).backward((np.ones(5, np.float32), 0.0), np.zeros(1, np.float32))


def test_observations_are_normalised_and_selected():
    normalizer = ObservationNormalizer(6)
    normalizer.set(np.arange(6.0), np.full(6, 2.0))
    layers = [Select(6, [4, 1, 4]), Dense(3, 3)]
    module = PolicyNetwork((normalizer, nn.Identity()), layers, Layer("noisy", {}))
    trained = in_training(module)
    assert type(trained.network) is CompiledNetwork
    observations = 30 * np.random.default_rng(0).standard_normal((9, 6)).astype(np.float32)
    prepared = trained.network.prepare(observations)
    (ours,) = trained.network.outputs({"inputs": prepared})
    (theirs,) = AutogradNetwork(module).outputs({"inputs": observations})
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    # The inputs that were not selected have no gradient; one that was twice has the sum.
    one = (np.ones((9, 3), np.float32),)
    of_inputs = trained.network.forward({"inputs": prepared}).backward_inputs(one)
    assert of_inputs.shape == (9, 6) and not of_inputs[:, [0, 2, 3, 5]].any()
    weight = module.network[1].weight.detach().numpy().sum(axis=0)
    np.testing.assert_allclose(of_inputs[:, 4], np.full(9, weight[0] + weight[2]), rtol=1e-5)


BOX, NUMBERS, CHOICE = spaces.Box(-10, 10, (4,)), spaces.Box(-1, 1, (3,)), spaces.Discrete(5)
DUELLING = Returns(dueling=True, support=np.linspace(-1, 1, 6))
# What model.py makes: for which algorithm, of which actions, by which function.
MADE = {
    "policy": ("ppo", NUMBERS, model.policy),
    "choices": ("ppo", CHOICE, model.policy),
    "values": ("ppo", CHOICE, model.value),
    "action values": ("dqn", CHOICE, model.action_values),
    "duelling": ("dqn", CHOICE, lambda *given: model.action_values(*given, DUELLING)),
    "deterministic": ("td3", NUMBERS, model.deterministic_policy),
    "squashed": ("sac", NUMBERS, model.squashed_policy),
    "critic": ("td3", NUMBERS, model.critic),
    "normalised critic": ("td3", NUMBERS, model.critic),
}


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("name", MADE)
def test_networks_of_model_py_are_compiled(name, activation):
    """With statistics and weights that are loaded later, as at a resume."""
    algorithm, actions, function = MADE[name]
    options = {"hidden_sizes": (16, 12), "activation": activation, "normalize_observations": True}
    if "critic" in name:
        options["layer_norm"] = name != "critic"
    config = make_config("X-v0", algorithm=algorithm, **options)
    spec = EnvironmentSpec("X-v0", BOX, actions)
    trained, other = in_training(function(spec, config)), shaken(function(spec, config))
    if hasattr(other.normalizer, "set"):
        other.normalizer.set(np.array([1.0, -2, 0, 3]), np.array([0.5, 2, 1, 0.1]))
    trained.module.load_state_dict(other.state_dict())
    assert type(trained.network) is CompiledNetwork
    rng = np.random.default_rng(0)
    taken = {"actions": np.arange(50, dtype=np.int32) % 5}
    if actions is NUMBERS:
        taken = {"actions": rng.standard_normal((50, 3)).astype(np.float32)}
    inputs = rng.normal(0, 2, (50, 4 + 3 * ("critic" in name))).astype(np.float32)
    for ours, theirs in compiled_and_by_autograd(trained, taken, inputs):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=2e-4 * np.abs(theirs).max())
    with torch.no_grad():
        columns = {name: torch.from_numpy(each) for name, each in taken.items()}
        columns = {n: c if c.is_floating_point() else c.long() for n, c in columns.items()}
        (expected, *_) = other.outputs(columns | {"inputs": torch.from_numpy(inputs)})
    samples = taken | {"inputs": trained.network.prepare(inputs)}
    np.testing.assert_allclose(trained.network.outputs(samples)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("algorithm", [*ON_POLICY, "dqn", "td3"])
def test_without_the_library_updates_are_the_same_by_torch(algorithm, continuous, monkeypatch):
    """But for rounding."""
    if (algorithm == "dqn" and continuous) or (algorithm == "td3" and not continuous):
        pytest.skip("of other actions")
    options = {"normalize_observations": True, "epochs": 3, "warm_up_steps": 0, "batch_size": 4}
    monkeypatch.setattr(batch, "LEAST_MINIBATCH", 3)
    results = []
    for there in (True, False):
        if not there:
            monkeypatch.setattr(choose, "library", lambda: None)
            monkeypatch.setattr(trained, "library", lambda: None)
        learner = learner_of(continuous, algorithm=algorithm, **options, minibatches=3)
        metrics = [learner.update(random_episodes(continuous)) for _ in range(3)]
        results.append((metrics, learner.weights()))
    (ours, our_weights), (theirs, weights) = results
    for name, array in weights.items():
        np.testing.assert_allclose(our_weights[name], array, rtol=1e-3, atol=1e-4, err_msg=name)
    for own, other in zip(ours, theirs, strict=True):
        assert own == pytest.approx(other, rel=1e-3, abs=1e-4, nan_ok=True)


def test_a_copy_computes_on_its_own_parameters():
    trained = make("value", [5], "relu", False, 3, seed=1)
    twin = copy.deepcopy(trained.module)
    flat_parameters(twin)
    network = network_of(twin)
    samples = samples_of("value", 4, 3, masked=False, seed=1)
    before = network.outputs(samples)[0].copy()
    trained.adam.parameters += 1
    assert np.array_equal(network.outputs(samples)[0], before)
    assert type(network) is CompiledNetwork


def test_a_library_of_another_source_is_not_used(monkeypatch):
    monkeypatch.setattr(targets, "crc32", lambda source: 1)
    assert compiled_library.library.__wrapped__() is None
