"""Stacked frames: what acts and what learns see the same, and nothing is stored or sent
twice; and which network sees pictures."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import model
from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.learner.off_policy.replay.views import sequences
from flame_rl.learner.on_policy.batch import make_batch
from flame_rl.learner.on_policy.update import log_probs_of, policy_samples
from flame_rl.learner.training.autograd import AutogradNetwork
from flame_rl.learner.training.frames import Stacks
from flame_rl.nets.acting import ActingPolicy
from flame_rl.wire.messages import EnvironmentSpec, Layer
from tests.helpers import collect, described, environment_id
from tests.learner.replay.oracle import CONTINUOUS, DISCRETE, make_episodes, store_bytes
from tests.learners import make_config, make_learner

pytestmark = pytest.mark.usefixtures("one_thread")
K = 4
LENGTHS = [3, 1, 7, 2, 5]
TERMINATED = [True, False, False, True, True]


def stack(observations: np.ndarray, time: int) -> np.ndarray:
    """The last observations up to `time`, one after another, in Python."""
    zeros = np.zeros_like(observations[0])
    steps = range(time - K + 1, time + 1)
    return np.stack([observations[t] if t >= 0 else zeros for t in steps])


def test_a_batch_stands_for_the_stacks_of_its_episodes():
    episodes = make_episodes(LENGTHS, TERMINATED)
    batch = make_batch(episodes, frames=K)
    expected = [stack(e.observations, t) for e in episodes for t in range(e.length + 1)]
    assert isinstance(batch.network_inputs, Stacks) and len(batch.network_inputs) == len(expected)
    np.testing.assert_array_equal(batch.network_inputs, expected)
    assert batch.network_inputs.observations is episodes.observations
    order = np.random.default_rng(0).permutation(batch.steps)
    of_steps = np.array(expected)[batch.rows]
    taken = batch.network_inputs[batch.rows].take(order, axis=0)
    np.testing.assert_array_equal(np.asarray(taken), of_steps[order])
    np.testing.assert_array_equal(np.asarray(taken[2:7]), of_steps[order][2:7])


@pytest.mark.parametrize("columns", [CONTINUOUS, DISCRETE])
@pytest.mark.parametrize("capacity", [16, 19, 40])
def test_replay_reads_the_stacks_of_its_episodes(columns, capacity):
    """At the ring's end, too; tests/learner/replay/test_hindsight.py asks it of n steps."""
    store = ReplayStore(columns, capacity, K)
    assert store_bytes(store) == store_bytes(ReplayStore(columns, capacity))
    known = []
    for seed in range(4):
        episodes = make_episodes(LENGTHS, TERMINATED, seed, columns)
        store.add(episodes)
        known += [(e.observations, t, e.length) for e in episodes for t in range(e.length)]
        view = sequences(store, np.arange(store.first, store.steps), 3, 0, 0.9)
        for row, start in enumerate(view["starts"]):
            observations, t, length = known[start]
            for step in range(3):
                later = stack(observations, min(t + step, length))
                np.testing.assert_array_equal(view["observations"][row, step], later)
                later = stack(observations, min(t + step + 1, length))
                np.testing.assert_array_equal(view["next_observations"][row, step], later)
                for column, time in (("missing", t + step), ("next_missing", t + step + 1)):
                    before = [min(time, length) - K + 1 + frame < 0 for frame in range(K)]
                    np.testing.assert_array_equal(view[column][row, step], before)


def played(learner, name: str, indices=range(40)):
    snapshot = learner.collector_snapshot()
    return collect(environment_id(name), indices, snapshot, version=snapshot.version)


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("name", ["Catch", "Wandering"])
def test_actors_and_learner_see_the_same(name, memory):
    """Pictures, and vectors that are normalised: the outputs of a policy that gets single
    observations in many slots against the torch module's of whole stacks."""
    spec = described(environment_id(name))
    options = {"hidden_sizes": (9,), "frame_stack": K, "memory": memory, "memory_size": 5}
    learner = make_learner(spec, algorithm="ppo", epochs=1, max_kl=1e9, **options)
    learner.update(played(learner, name))
    networks = learner.algorithm.networks
    assert networks.frames == K and networks.remembers == (memory != "none")
    acting = ActingPolicy(learner.snapshot())
    for episode in list(played(learner, name))[:6]:
        observations = episode.observations[:-1]
        states, outputs = acting.states(8), []
        for observation in observations:
            outputs.append(acting.forward(np.tile(observation, (8, 1)), states)[0])
        stacks = np.stack([stack(observations, t) for t in range(len(observations))])
        module = learner.parts["policy"]
        with torch.no_grad():
            each = module.normalizer(torch.from_numpy(stacks))
            # What does not exist is 0 for the network, whatever the mean of what does.
            for t in range(min(K - 1, len(each))):
                each[t, : K - 1 - t] = 0
            expected = module.network(module.frames(each)).numpy()
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    if memory == "none":
        assert type(networks.policy.network) is AutogradNetwork
    # All episodes at once, from the batch.
    episodes = played(learner, name)
    batch = make_batch(episodes, networks.remembers, K)
    samples = policy_samples(batch)
    whole = log_probs_of(networks.policy.network, samples)
    networks.policy.network.slice_rows = 7
    np.testing.assert_allclose(log_probs_of(networks.policy.network, samples), whole, atol=1e-5)


def layers_for(shape: tuple[int, ...], dtype: type, **options) -> tuple[Layer, ...]:
    picture = spaces.Box(0, 1 if dtype is bool else 255, shape, dtype)
    config = make_config("X-v0", algorithm="ppo", hidden_sizes=(12,), **options)
    return model.policy(
        EnvironmentSpec("X-v0", picture, spaces.Discrete(5)), config
    ).export_layers()


@pytest.mark.parametrize(
    ("shape", "filters"),
    [
        ((10, 10, 4), [(3, 3, 4, 16)]),
        ((10, 5), [(3, 3, 1, 16)]),
        ((35, 80, 3), [(3, 3, 3, 16)]),
        ((36, 36), [(8, 8, 1, 32), (4, 4, 32, 64), (3, 3, 64, 64)]),
        ((84, 84), [(8, 8, 1, 32), (4, 4, 32, 64), (3, 3, 64, 64)]),
        ((210, 160, 3), [(8, 8, 3, 32), (4, 4, 32, 64), (3, 3, 64, 64)]),
        ((3, 40, 60), [(8, 8, 3, 32), (4, 4, 32, 64), (3, 3, 64, 64)]),  # channels first
        ((4, 10, 8), [(3, 3, 4, 16)]),
        ((5, 8, 8), [(3, 3, 8, 16)]),  # a low board of eight channels
        ((2, 9, 3), []),  # too few rows
        ((128,), []),
        ((3, 4, 5, 6), []),
    ],
)
def test_the_network_follows_from_the_picture(shape, filters):
    for dtype in (np.uint8, bool):
        layers = layers_for(shape, dtype)
        found = [layer.arrays["weight"].shape for layer in layers if layer.kind == "convolution"]
        assert found == filters
        large = len(filters) == len(model.LARGE_PICTURES)
        assert layers[0].kind == ("center" if large else "scale")
        plain = layers_for(shape, dtype, normalize_observations=False)[0]
        assert plain.kind == "scale"
        assert plain.arrays["factor"] == pytest.approx(1 if dtype is bool else 1 / 255)
        dense = [layer.arrays["weight"].shape for layer in layers if layer.kind == "dense"]
        assert [outputs for _, outputs in dense] == [12, 5]
