"""Epochs of the value network as machine code, perhaps beside the policy's: the same numbers as in
Python, and the same bytes on one core and on two."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from flame_rl.learner.kernels.values import CompiledEpochs
from flame_rl.learner.on_policy import value_epochs
from flame_rl.learner.on_policy.kl_limit import shrink_until_close
from flame_rl.learner.on_policy.losses import value_loss
from flame_rl.learner.on_policy.value_epochs import ValueEpochs, ValueTraining, fit
from flame_rl.learner.training.choose import network_of
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.modules.layers import Activation, Dense, LayerNorm, Select
from flame_rl.modules.networks import ValueNetwork
from flame_rl.system.errors import Interrupted
from flame_rl.system.signals import stoppable
from flame_rl.wire.messages import EnvironmentSpec
from tests.learners import (
    ON_POLICY,
    demonstrations_for,
    learner_of,
    make_learner,
    random_episodes,
)

SCALE = 2.0
WIDTH = 19


def trained_network(select: bool = False) -> TrainedNetwork:
    """A value network with every kind of layer."""
    torch.manual_seed(0)
    first, width = ([Select(WIDTH, (0, 3, 18))], 3) if select else ([], WIDTH)
    layers = [
        *(*first, Dense(width, 8), LayerNorm(8), Activation("relu")),
        *(Dense(8, 40), LayerNorm(40), Activation("silu"), Dense(40, 5), Activation("tanh")),
        Dense(5, 1),
    ]
    network = ValueNetwork((nn.Identity(), nn.Identity()), layers)
    network.scale.fill_(SCALE)
    return TrainedNetwork(network, network_of)


def epochs_of(seed: int, steps: int = 300, minibatches: int = 4) -> ValueEpochs:
    rng = np.random.default_rng(seed)
    return ValueEpochs(
        inputs=rng.standard_normal((steps + 5, WIDTH)).astype(np.float32),
        rows=rng.permutation(steps + 5)[:steps],
        targets=rng.standard_normal(steps).astype(np.float32),
        orders=np.stack([rng.permutation(steps) for _ in range(3)]),
        minibatches=minibatches,
        scale=SCALE,
        learning_rate=0.01,
        max_grad_norm=0.5,
    )


@pytest.mark.parametrize("select", [False, True])
@pytest.mark.parametrize(("minibatches", "slice_rows"), [(1, 1000), (4, 1000), (4, 30), (7, 37)])
def test_the_same_numbers_as_in_python(minibatches, slice_rows, select):
    ours, theirs = trained_network(select), trained_network(select)
    ours.network.layers.slice_rows = slice_rows
    start = ours.adam.parameters.copy()
    compiled = CompiledEpochs(ours.network.layers, value_loss)
    for seed in range(3):
        epochs = epochs_of(seed, minibatches=minibatches)
        loss = compiled.fit(ours.adam, epochs)
        assert loss == pytest.approx(fit(theirs.network, theirs.adam, epochs), rel=1e-4)
    assert ours.adam.steps == theirs.adam.steps == 9 * minibatches
    moved = np.abs(ours.adam.parameters - start).max()
    assert moved > 0.05
    np.testing.assert_allclose(ours.adam.parameters, theirs.adam.parameters, atol=2e-3 * moved)
    for name, sums in ours.adam.state_dict().items():
        expected = theirs.adam.state_dict()[name]
        np.testing.assert_allclose(sums, expected, atol=2e-3 * np.abs(expected).max())


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_one_core_and_two_give_the_same_bytes(algorithm, monkeypatch):
    options = {"algorithm": algorithm, "epochs": 3, "value_epochs": 2, "hidden_sizes": (16, 16)}
    learners, threads = [], []
    original = CompiledEpochs.fit

    def fit_here(self, adam, epochs):
        threads.append(threading.current_thread() is threading.main_thread())
        return original(self, adam, epochs)

    monkeypatch.setattr(CompiledEpochs, "fit", fit_here)
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
    compiled = CompiledEpochs(trained.network.layers, value_loss)
    training = ValueTraining(trained.network, trained.adam, compiled)
    monkeypatch.setattr(CompiledEpochs, "fit", None)
    training.begin(epochs_of(0, steps=16 * trained.network.slice_rows, minibatches=1))
    assert training.finish() > 0


@pytest.mark.parametrize("fails", ["update.shrink_until_close", "cloned_first.bc", "gradient"])
def test_an_update_that_fails_waits_for_its_values(fails, monkeypatch):
    """Whoever restores the networks then must not do so while another thread writes them."""
    spec = EnvironmentSpec("X-v0", *(spaces.Box(-1, 1, (n,), np.float32) for n in (3, 2)))
    options = {"algorithm": "reinforce", "hidden_sizes": (16, 16)}
    if fails == "cloned_first.bc":
        options["demonstrations"] = demonstrations_for(spec.action_space, spec.observation_space)
    learner = make_learner(spec, **options)
    begun, may_end = threading.Event(), threading.Event()
    finished = []
    original = CompiledEpochs.fit

    def slow_fit(self, adam, epochs):
        begun.set()
        assert may_end.wait(60)
        finished.append(original(self, adam, epochs))
        return finished[-1]

    def failing(*arguments):
        assert begun.wait(60)
        threading.Timer(0.2, may_end.set).start()
        raise ZeroDivisionError

    monkeypatch.setattr(value_epochs, "available_cores", lambda: 2)
    monkeypatch.setattr(CompiledEpochs, "fit", slow_fit)
    if fails == "gradient":
        monkeypatch.setattr(learner.algorithm.networks, "gradient", failing)
    else:
        monkeypatch.setattr(f"flame_rl.learner.on_policy.{fails}", failing)
    with pytest.raises(ZeroDivisionError):
        learner.update(random_episodes(True))
    assert finished


def test_the_kl_limit_is_checked_while_values_learn(monkeypatch):
    learner = learner_of(True, algorithm="reinforce", hidden_sizes=(16, 16))
    checked, original = threading.Event(), CompiledEpochs.fit

    def slow_fit(self, adam, epochs):
        assert checked.wait(60)
        return original(self, adam, epochs)

    def check(*arguments):
        checked.set()
        return shrink_until_close(*arguments)

    monkeypatch.setattr(value_epochs, "available_cores", lambda: 2)
    monkeypatch.setattr(CompiledEpochs, "fit", slow_fit)
    monkeypatch.setattr("flame_rl.learner.on_policy.update.shrink_until_close", check)
    assert "value_loss" in learner.update(random_episodes(True))


def test_the_wish_to_stop_ends_the_epochs():
    trained = trained_network()
    compiled = CompiledEpochs(trained.network.layers, value_loss)
    training = ValueTraining(trained.network, trained.adam, compiled)
    stop = threading.Event()
    stop.set()
    before = trained.adam.parameters.copy()
    with stoppable(stop), pytest.raises(Interrupted):
        training.begin(epochs_of(0))
        training.finish()
    np.testing.assert_array_equal(trained.adam.parameters, before)


def test_what_is_not_finite_stays_so():
    """The learner refuses it."""
    trained, epochs = trained_network(), epochs_of(0)
    epochs.targets[7] = np.nan
    loss = CompiledEpochs(trained.network.layers, value_loss).fit(trained.adam, epochs)
    assert np.isnan(loss)
    assert np.isnan(trained.adam.parameters).any()


def test_values_that_torch_differentiates_train_here(monkeypatch):
    trained = trained_network()
    trained.module.register_forward_hook(lambda module, inputs, output: None)
    training = ValueTraining(network_of(trained.module), trained.adam)
    monkeypatch.setattr(value_epochs, "_thread", None)
    training.begin(epochs_of(0))
    assert training.finish() > 0
