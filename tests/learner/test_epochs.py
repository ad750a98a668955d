"""Epochs of the values, perhaps beside the policy's: the same bytes on one core and on two, and no
thread is left behind; and Adam, compiled and in NumPy, against the paper."""

import threading

import numpy as np
import pytest
from gymnasium import spaces

from flame_rl.learner.compiled.network import CompiledNetwork
from flame_rl.learner.on_policy import actor_critic
from flame_rl.learner.on_policy.batch import make_batch
from flame_rl.learner.on_policy.losses import value_loss
from flame_rl.learner.training import trained
from flame_rl.learner.training.trained import Adam, follow
from flame_rl.system.errors import Interrupted
from flame_rl.system.signals import stoppable
from flame_rl.wire.messages import EnvironmentSpec
from tests.learners import ON_POLICY, demonstrations_for, learner_of, make_learner, random_episodes

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
    "fails", ["on_policy.update.shrink_until_close", "demonstrations.cloning.bc", "fit_policy"]
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
    if fails == "fit_policy":
        monkeypatch.setattr(learner.algorithm.networks, "fit_policy", failing)
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


RATE, SIZE = 1e-3, 64
SUBNORMAL = np.finfo(np.float32).tiny


@pytest.fixture(params=["compiled", "NumPy"])
def by(request, monkeypatch) -> str:
    if request.param == "NumPy":
        monkeypatch.setattr(trained, "library", lambda: None)
    elif trained.library() is None:
        pytest.skip("the package was built without its library")
    return request.param


def test_parameters_follow_the_paper_and_no_sum_becomes_subnormal(by):
    """Algorithm 1 of Kingma and Ba 2015, in float64. A half of the units never fires again after
    the first ten steps, and some gradients are tiny all the time."""
    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((2_500, SIZE)) * 10.0 ** rng.integers(-9, 1, SIZE)
    gradients[10:, : SIZE // 2] = 0
    start = rng.standard_normal(SIZE).astype(np.float32)
    adam = Adam(start.copy())
    expected, m, v = start.astype(np.float64), np.zeros(SIZE), np.zeros(SIZE)
    for t, gradient in enumerate(gradients.astype(np.float32), start=1):
        adam.gradient[:] = gradient
        adam.step(RATE)
        g = gradient.astype(np.float64)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        expected -= RATE * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        for moment in adam.moments:
            assert not ((np.abs(moment) > 0) & (np.abs(moment) < SUBNORMAL)).any(), t
    # Float32 rounds in each of the steps.
    np.testing.assert_allclose(adam.parameters, expected, atol=1e-4)
    assert np.abs(adam.parameters - start).max() > 50 * 1e-4


@pytest.mark.parametrize("size", [1, 7, 16, 1003])
def test_clipped_steps_and_what_follows_are_the_papers(size, by):
    """Kingma and Ba 2015, algorithm 1, in float64; not torch.optim, which imports triton, and with
    other libraries in a process that ends it."""
    rng = np.random.default_rng(3)
    own, other = rng.standard_normal((2, size)).astype(np.float32)
    moved = own.copy()
    follow(moved, other, 0.005)
    np.testing.assert_allclose(moved, own + 0.005 * (other - own), rtol=1e-6, atol=1e-7)
    adam, expected = Adam(moved), moved.astype(np.float64)
    m, v = np.zeros(size), np.zeros(size)
    for t in range(1, 6):
        g = 100 * rng.standard_normal(size)
        adam.gradient[:] = g
        norm = np.linalg.norm(g)
        assert adam.clip_gradient(2.0) == pytest.approx(norm, rel=1e-5)
        assert np.linalg.norm(adam.gradient) == pytest.approx(2.0, rel=1e-5)
        adam.step(0.01)
        g *= 2.0 / norm
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        expected -= 0.01 * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(adam.parameters, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(adam.parameters - own).max() > 0.01
