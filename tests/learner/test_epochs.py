"""Epochs of the values, perhaps beside the policy's: the same bytes on one core and on two, and no
thread is left behind."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from gymnasium import spaces

from flame_rl.learner.compiled.network import CompiledNetwork
from flame_rl.learner.on_policy import actor_critic
from flame_rl.learner.on_policy.batch import make_batch
from flame_rl.learner.on_policy.losses import value_loss
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

RUN_EPOCH = CompiledNetwork.run_epoch


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_one_core_and_two_give_the_same_bytes(algorithm, monkeypatch):
    options = {"algorithm": algorithm, "epochs": 3, "value_epochs": 2, "hidden_sizes": (16, 16)}
    found, threads = [], []

    def run_here(self, loss, *others):
        if loss is value_loss:
            threads.append(threading.current_thread() is threading.main_thread())
        return RUN_EPOCH(self, loss, *others)

    monkeypatch.setattr(CompiledNetwork, "run_epoch", run_here)
    for cores in (1, 2):
        monkeypatch.setattr(actor_critic, "available_cores", lambda cores=cores: cores)
        learner = learner_of(True, **options)
        metrics = [learner.update(random_episodes(True)) for _ in range(3)]
        found.append((metrics, learner.weights_digest()))
    assert found[0] == found[1]
    half = len(threads) // 2
    assert half and threads == half * [True] + half * [False]


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
    begun, may_end, finished = threading.Event(), threading.Event(), []

    def slow(self, loss, *others):
        if loss is value_loss:
            begun.set()
            assert may_end.wait(60)
            finished.append(True)
        return RUN_EPOCH(self, loss, *others)

    def failing(*arguments):
        assert begun.wait(60)
        threading.Timer(0.2, may_end.set).start()
        raise ZeroDivisionError

    monkeypatch.setattr(actor_critic, "available_cores", lambda: 2)
    monkeypatch.setattr(CompiledNetwork, "run_epoch", slow)
    if fails == "descend":
        monkeypatch.setattr(learner.algorithm.networks, "descend", failing)
    else:
        monkeypatch.setattr(f"flame_rl.learner.{fails}", failing)
    with pytest.raises(ZeroDivisionError):
        learner.update(random_episodes(True))
    assert finished


def test_the_wish_to_stop_ends_the_epochs():
    networks, stop = learner_of(True, algorithm="a2c").algorithm.networks, threading.Event()
    batch = networks.prepare(make_batch(random_episodes(True)))
    stop.set()
    before = networks.value.adam.parameters.copy()
    with stoppable(stop), pytest.raises(Interrupted):
        networks.fit_values(batch, batch.rewards, 1, 0.01, np.random.default_rng(0))
        networks.finish()
    np.testing.assert_array_equal(networks.value.adam.parameters, before)
