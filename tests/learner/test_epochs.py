"""Epochs as machine code, those of the values perhaps beside the policy's: the same numbers as in
Python, and the same bytes on one core and on two."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import torch
from flame_rl.learner.kernels.learning import epochs as compiled
from flame_rl.learner.kernels.learning import network
from gymnasium import spaces
from torch import nn

from flame_rl.learner.algorithms.ppo import clipped_loss
from flame_rl.learner.on_policy import value_epochs
from flame_rl.learner.on_policy.actor_critic import ValueTraining
from flame_rl.learner.on_policy.losses import value_loss
from flame_rl.learner.on_policy.update import shrink_until_close
from flame_rl.learner.training.choose import network_of
from flame_rl.learner.training.epoch import Epoch, StepConfig, by_itself, descend, descend_by
from flame_rl.learner.training.network import ElementwiseLoss
from flame_rl.learner.training.slices import mean_gradient
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.modules.layers import Activation, Dense, LayerNorm, Select
from flame_rl.modules.networks import CategoricalPolicy, GaussianPolicy, ValueNetwork
from flame_rl.system.errors import Interrupted
from flame_rl.system.signals import stoppable
from flame_rl.wire.masks import ACTION_MASKS
from flame_rl.wire.messages import EnvironmentSpec
from tests.learners import (
    ON_POLICY,
    demonstrations_for,
    learner_of,
    make_learner,
    random_episodes,
)

SCALE = 2.0
WIDTH, ACTIONS = 19, 18  # more than a vector
DESCENT = StepConfig(0.01, 0.5)


def trained_network(select: bool = False, policy: bool = False) -> TrainedNetwork:
    """A network with every kind of layer."""
    torch.manual_seed(0)
    first, width = ([Select(WIDTH, (0, 3, 18))], 3) if select else ([], WIDTH)
    layers = [
        *(*first, Dense(width, 8), LayerNorm(8), Activation("relu")),
        *(Dense(8, 40), LayerNorm(40), Activation("silu"), Dense(40, 5), Activation("tanh")),
        Dense(5, ACTIONS if policy else 1),
    ]
    before = nn.Identity(), nn.Identity()
    if policy:
        network = GaussianPolicy(before, layers, ACTIONS, -0.5)
    else:
        network = ValueNetwork(before, layers)
        network.scale.fill_(SCALE)
    return TrainedNetwork(network, network_of)


def epoch_of(seed: int, steps: int = 300, count: int = 4) -> Epoch:
    """With columns for values and for policies."""
    rng = np.random.default_rng(seed)
    targets, advantages = rng.standard_normal((2, steps)).astype(np.float32)
    return Epoch(
        inputs=rng.standard_normal((steps + 5, WIDTH)).astype(np.float32),
        rows=rng.permutation(steps + 5)[:steps],
        columns={
            "targets": targets,
            "scale": np.full(steps, SCALE, np.float32),
            "actions": rng.standard_normal((steps, ACTIONS)).astype(np.float32),
            "advantages": advantages,
            "log_probs": (-20 + 0.1 * rng.standard_normal(steps)).astype(np.float32),
            "shares": rng.uniform(0.5, 1.5, steps).astype(np.float32),
        },
        order=rng.permutation(steps),
        count=count,
    )


def in_python(trained, epoch, loss, descent):
    network, adam = trained.network, trained.adam
    return descend_by(
        lambda minibatch: mean_gradient(network, minibatch, loss, adam.gradient),
        adam,
        epoch,
        descent,
    )


@pytest.mark.parametrize("policy", [False, True])
@pytest.mark.parametrize("select", [False, True])
@pytest.mark.parametrize(("count", "slice_rows"), [(1, 1000), (4, 1000), (4, 30), (7, 37)])
def test_the_same_numbers_as_in_python(count, slice_rows, select, policy, monkeypatch):
    monkeypatch.setattr(compiled, "_AT_ONCE", 1)  # a call for each minibatch
    ours, theirs = (trained_network(select, policy) for _ in range(2))
    ours.network.layers.slice_rows = slice_rows
    start = ours.adam.parameters.copy()
    loss = clipped_loss(0.2, 0.01) if policy else value_loss
    for seed in range(3):
        epoch = epoch_of(seed, count=count)
        if policy:
            samples = epoch.columns | {"inputs": epoch.inputs.take(epoch.rows, axis=0)}
            epoch.columns["log_probs"] += 20 + theirs.network.outputs(samples)[0]
        assert by_itself(ours.network, epoch, loss)
        found = descend(ours.network, ours.adam, epoch, loss, DESCENT)
        expected = in_python(theirs, epoch, loss, DESCENT)
        assert len(found) == len(expected) == count
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-2, abs=1e-4)
    assert ours.adam.steps == theirs.adam.steps == 3 * count
    moved = np.abs(ours.adam.parameters - start).max()
    assert moved > 0.01
    np.testing.assert_allclose(ours.adam.parameters, theirs.adam.parameters, atol=2e-3 * moved)
    for name, sums in ours.adam.state_dict().items():
        expected = theirs.adam.state_dict()[name]
        np.testing.assert_allclose(sums, expected, atol=2e-3 * np.abs(expected).max())


def test_a_divergence_at_the_limit_is_within_it():
    """By whoever asks: machine code compares in float32."""
    for seed in range(20):
        trained, epoch = trained_network(policy=True), epoch_of(seed, count=1)
        samples = epoch.columns | {"inputs": epoch.inputs.take(epoch.rows, axis=0)}
        epoch.columns["log_probs"] = trained.network.outputs(samples)[0] + np.float32(0.5)
        start = trained.adam.parameters.copy()
        loss = clipped_loss(0.2, 0.0)
        (first,) = descend(trained.network, trained.adam, epoch, loss, StepConfig(0.0, 0.5))
        descent = StepConfig(1e-3, 0.5, first["kl"])
        (numbers,) = descend(trained.network, trained.adam, epoch, loss, descent)
        assert not descent.exceeds_kl(numbers)
        assert trained.adam.steps == 2 and (trained.adam.parameters != start).any()


def test_a_loss_may_use_what_its_head_uses():
    """And columns of any name."""

    def imitate(samples, log_probs, entropies):
        weight = samples["weights"] + 0 * samples["actions"]
        return {"loss": -log_probs * weight}, (-weight, 0.0)

    loss = ElementwiseLoss(imitate, ("actions", "weights"))
    layers = [Dense(WIDTH, 4)]
    ours, theirs = (
        TrainedNetwork(CategoricalPolicy((nn.Identity(), nn.Identity()), layers, (4,), False), each)
        for each in (network_of, network_of)
    )
    epoch = epoch_of(0)
    epoch.columns["weights"] = epoch.columns["shares"]
    epoch.columns["actions"] = np.random.default_rng(1).integers(0, 4, epoch.steps, np.int32)
    minibatch, *_ = epoch.minibatches()
    gradients = np.zeros((2, ours.adam.parameters.size), np.float32)
    ours.network.differentiate(loss, minibatch, gradients[0])
    theirs.network.differentiate(imitate, minibatch, gradients[1])
    np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-5)


def test_choices_are_learned_as_in_python():
    """From integers, with a column that is not there."""
    ours, theirs = (
        TrainedNetwork(
            CategoricalPolicy((nn.Identity(), nn.Identity()), layers, (20,), False), network_of
        )
        for layers in ([Dense(WIDTH, 8), Activation("tanh"), Dense(8, 20)] for _ in range(2))
    )
    ours.adam.parameters[:] = theirs.adam.parameters
    epoch, loss = epoch_of(0, count=5), clipped_loss(0.2, 0.01)
    epoch.columns["actions"] = np.random.default_rng(1).integers(0, 20, epoch.steps, np.int32)
    epoch.columns["log_probs"] = np.full(epoch.steps, -3, np.float32)
    del epoch.columns["shares"]
    assert by_itself(ours.network, epoch, loss)
    found = descend(ours.network, ours.adam, epoch, loss, DESCENT)
    expected = in_python(theirs, epoch, loss, DESCENT)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
    np.testing.assert_allclose(ours.adam.parameters, theirs.adam.parameters, atol=1e-4)


def test_masked_choices_are_learned_in_python():
    """What a mask forbids has no part in their probabilities."""
    layers = [Dense(WIDTH, 4)]
    policy = CategoricalPolicy((nn.Identity(), nn.Identity()), layers, (4,), False)
    own, epoch, loss = network_of(policy), epoch_of(0), clipped_loss(0.2, 0.0)
    assert by_itself(own, epoch, loss)
    epoch.columns[ACTION_MASKS] = np.ones((epoch.steps, 4), np.uint8)
    assert by_itself(own, epoch, loss) is None


@pytest.mark.parametrize("at_once", [1, 1 << 30])
@pytest.mark.parametrize("wrong", [1.0, math.nan])
def test_an_epoch_ends_where_the_policy_has_gone_too_far(wrong, at_once, monkeypatch):
    """Before that minibatch's step."""
    monkeypatch.setattr(compiled, "_AT_ONCE", at_once)
    trained, unlike = (trained_network(policy=True) for _ in range(2))
    epoch = epoch_of(0, count=10)
    samples = epoch.columns | {"inputs": epoch.inputs.take(epoch.rows, axis=0)}
    log_probs = trained.network.outputs(samples)[0]
    sixth = epoch.order[150:180]
    log_probs[sixth] += wrong
    epoch.columns["log_probs"] = log_probs
    descent, loss = StepConfig(1e-4, 0.5, 0.1), clipped_loss(0.2, 0.0)
    assert by_itself(trained.network, epoch, loss)
    found = descend(trained.network, trained.adam, epoch, loss, descent)
    expected = in_python(unlike, epoch, loss, descent)
    assert len(found) == len(expected) == 6
    assert [descent.exceeds_kl(numbers) for numbers in found] == 5 * [False] + [True]
    assert trained.adam.steps == unlike.adam.steps == 5
    np.testing.assert_allclose(trained.adam.parameters, unlike.adam.parameters, atol=1e-6)


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_one_core_and_two_give_the_same_bytes(algorithm, monkeypatch):
    options = {"algorithm": algorithm, "epochs": 3, "value_epochs": 2, "hidden_sizes": (16, 16)}
    learners, threads = [], []
    original = network.run_epoch

    def run_here(layers, head, own, loss, *others):
        if loss is value_loss:
            threads.append(threading.current_thread() is threading.main_thread())
        return original(layers, head, own, loss, *others)

    monkeypatch.setattr(network, "run_epoch", run_here)
    for cores in (1, 2):
        monkeypatch.setattr(value_epochs, "available_cores", lambda cores=cores: cores)
        learners.append(learner_of(True, **options))
        metrics = [learners[-1].update(random_episodes(True)) for _ in range(3)]
        learners.append(metrics)
    one, metrics, two, others = learners
    assert metrics == others
    assert one.weights_digest() == two.weights_digest()
    assert threads[: len(threads) // 2] == [True] * (len(threads) // 2)
    assert threads[len(threads) // 2 :] == [False] * (len(threads) // 2)


def test_large_minibatches_are_computed_slice_by_slice(monkeypatch):
    trained = trained_network()
    monkeypatch.setattr(network, "run_epoch", None)
    training = ValueTraining(trained)
    training.begin([epoch_of(0, steps=16 * trained.network.slice_rows, count=1)], DESCENT)
    assert training.finish() > 0


@pytest.mark.parametrize(
    "fails", ["on_policy.update.shrink_until_close", "demonstrations.cloning.bc", "descend"]
)
def test_an_update_that_fails_waits_for_its_values(fails, monkeypatch):
    """Whoever restores the networks then must not do so while another thread writes them."""
    spec = EnvironmentSpec("X-v0", *(spaces.Box(-1, 1, (n,), np.float32) for n in (3, 2)))
    options = {"algorithm": "reinforce", "hidden_sizes": (16, 16)}
    if fails == "demonstrations.cloning.bc":
        options["demonstrations"] = demonstrations_for(spec.action_space, spec.observation_space)
    learner = make_learner(spec, **options)
    begun, may_end = threading.Event(), threading.Event()
    finished = []
    original = network.run_epoch

    def slow(layers, head, own, loss, *others):
        if loss is value_loss:
            begun.set()
            assert may_end.wait(60)
            finished.append(True)
        return original(layers, head, own, loss, *others)

    def failing(*arguments):
        assert begun.wait(60)
        threading.Timer(0.2, may_end.set).start()
        raise ZeroDivisionError

    monkeypatch.setattr(value_epochs, "available_cores", lambda: 2)
    monkeypatch.setattr(network, "run_epoch", slow)
    if fails == "descend":
        monkeypatch.setattr(learner.algorithm.networks, "descend", failing)
    else:
        monkeypatch.setattr(f"flame_rl.learner.{fails}", failing)
    with pytest.raises(ZeroDivisionError):
        learner.update(random_episodes(True))
    assert finished


def test_the_kl_limit_is_checked_while_values_learn(monkeypatch):
    learner = learner_of(True, algorithm="reinforce", hidden_sizes=(16, 16))
    checked, original = threading.Event(), network.run_epoch

    def slow(layers, head, own, loss, *others):
        assert loss is not value_loss or checked.wait(60)
        return original(layers, head, own, loss, *others)

    def check(*arguments):
        checked.set()
        return shrink_until_close(*arguments)

    monkeypatch.setattr(value_epochs, "available_cores", lambda: 2)
    monkeypatch.setattr(network, "run_epoch", slow)
    monkeypatch.setattr("flame_rl.learner.on_policy.update.shrink_until_close", check)
    assert "value_loss" in learner.update(random_episodes(True))


def test_the_wish_to_stop_ends_the_epochs():
    trained = trained_network()
    training = ValueTraining(trained)
    stop = threading.Event()
    stop.set()
    before = trained.adam.parameters.copy()
    with stoppable(stop), pytest.raises(Interrupted):
        training.begin([epoch_of(0)], DESCENT)
        training.finish()
    np.testing.assert_array_equal(trained.adam.parameters, before)


def test_what_is_not_finite_stays_so():
    """The learner refuses it."""
    trained, epoch = trained_network(), epoch_of(0)
    epoch.columns["targets"][7] = np.nan
    steps = descend(trained.network, trained.adam, epoch, value_loss, DESCENT)
    assert len(steps) == 4
    assert np.isnan([numbers["loss"] for numbers in steps]).any()
    assert np.isnan(trained.adam.parameters).any()


def test_values_that_torch_differentiates_train_here(monkeypatch):
    trained = trained_network()
    trained.module.register_forward_hook(lambda module, inputs, output: None)
    monkeypatch.setattr(value_epochs, "_thread", None)
    training = ValueTraining(TrainedNetwork(trained.module, network_of))
    training.begin([epoch_of(0)], DESCENT)
    assert training.finish() > 0
