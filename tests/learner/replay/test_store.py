"""The replay store and its views against a list of episodes and loops."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from flame_rl.learner.off_policy.replay.store import ReplayStore, bytes_needed
from flame_rl.learner.off_policy.replay.views import n_step, sequences
from flame_rl.wire.messages import EnvironmentSpec
from tests.learner.replay.oracle import CONTINUOUS, DISCRETE, Oracle, make_episodes, store_bytes
from tests.learners import make_learner, random_episodes

CAPACITY = 12
ADDS = st.lists(
    st.lists(st.tuples(st.integers(1, CAPACITY), st.booleans()), min_size=1, max_size=6),
    min_size=1,
    max_size=8,
)
COLUMNS = st.sampled_from([CONTINUOUS, DISCRETE])


def filled(adds, columns=CONTINUOUS):
    store, oracle = ReplayStore(columns, CAPACITY), Oracle(CAPACITY)
    for seed, pairs in enumerate(adds):
        episodes = make_episodes(*zip(*pairs, strict=True), seed, columns)
        store.add(episodes)
        oracle.add(episodes)
    return store, oracle


def assert_equal(actual: dict, expected: list[dict]) -> None:
    assert set(actual) == set(expected[0])
    for name, column in actual.items():
        wanted = np.array([row[name] for row in expected])
        assert column.shape == wanted.shape, name
        if wanted.dtype.kind == "f":
            assert column.dtype == np.float32, name
            np.testing.assert_allclose(column, wanted, rtol=1e-6, err_msg=name)
        else:
            assert column.dtype == wanted.dtype, name
            np.testing.assert_array_equal(column, wanted, err_msg=name)


@settings(max_examples=75, deadline=None)
@given(ADDS, COLUMNS)
def test_the_latest_whole_episodes_are_kept(adds, columns):
    store, oracle = filled(adds, columns)
    assert list(range(store.first, store.steps)) == oracle.positions
    assert store.size == len(oracle.positions)
    assert store.episodes == len(oracle.all)
    assert store.oldest == len(oracle.all) - len(oracle.kept)


@settings(max_examples=75, deadline=None)
@given(ADDS, COLUMNS, st.integers(1, 2 * CAPACITY), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_n_steps(adds, columns, n, discount):
    store, oracle = filled(adds, columns)
    expected = [oracle.n_step(position, n, discount) for position in oracle.positions]
    assert_equal(n_step(store, np.array(oracle.positions), n, discount), expected)


@settings(max_examples=75, deadline=None)
@given(ADDS, COLUMNS, st.data())
def test_sequences(adds, columns, data):
    length = data.draw(st.integers(1, 2 * CAPACITY))
    overlap = data.draw(st.integers(0, length - 1))
    store, oracle = filled(adds, columns)
    positions = oracle.positions
    expected = [oracle.sequence(position, length, overlap, 0.9) for position in positions]
    actual = sequences(store, np.array(positions), length, overlap, 0.9)
    assert_equal(actual, expected)
    # Each step lies in the sequence that it is mapped to.
    inside = np.array(positions) - actual["starts"]
    assert (actual["mask"][np.arange(len(positions)), inside] == 1).all()


def test_an_episode_that_ends_in_its_last_permitted_step_has_ended():
    store = ReplayStore(CONTINUOUS, CAPACITY)
    episodes = make_episodes([2], [True])
    episodes.truncated[:] = True
    store.add(episodes)
    assert n_step(store, np.array([1]), 1, 0.9)["discounts"][0] == 0


def test_an_episode_of_the_capacity_fits_and_a_longer_one_is_refused():
    store = ReplayStore(CONTINUOUS, CAPACITY)
    store.add(make_episodes([3, CAPACITY], [True, True]))
    assert store.size == CAPACITY
    before = n_step(store, np.arange(3, 3 + CAPACITY), 1, 0.9)
    with pytest.raises(ValueError, match=f"{CAPACITY + 1} steps do not fit"):
        store.add(make_episodes([1, CAPACITY + 1], [True, True], seed=1))
    assert (store.first, store.steps, store.episodes) == (3, 3 + CAPACITY, 2)
    after = n_step(store, np.arange(3, 3 + CAPACITY), 1, 0.9)
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])


def test_positions_that_are_not_kept_are_refused():
    store, _ = filled([[(6, True), (6, True), (4, True)]])
    assert (store.first, store.steps) == (6, 16)
    for position in (5, 16, -1):
        with pytest.raises(ValueError, match="positions"):
            n_step(store, np.array([7, position]), 3, 0.9)
    with pytest.raises(ValueError, match="positions"):
        sequences(store, np.array([5]), 3, 0, 0.9)


@pytest.mark.parametrize("columns", [CONTINUOUS, DISCRETE])
@pytest.mark.parametrize("capacity", [1, 7, 1000])
def test_memory_is_known_beforehand(columns, capacity):
    assert store_bytes(ReplayStore(columns, capacity)) == bytes_needed(columns, capacity)


SPEC = EnvironmentSpec("X-v0", spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(2))
OPTIONS = {"hidden_sizes": (8,), "warm_up_steps": 0, "batch_size": 10, "capacity": 100}


def drawing(**options):
    """An algorithm that has 17 steps in its replay memory, and took no gradient step."""
    options = OPTIONS | options
    learner = make_learner(SPEC, algorithm="dqn", **options)
    learner.algorithm.replay.add(random_episodes(continuous=False))
    return learner.algorithm


def test_each_minibatch_has_the_steps_of_its_own_positions():
    algorithm = drawing()
    drawn, positions = algorithm.minibatches.draw(4, 1.0, np.random.default_rng(0))
    assert positions.shape == (4, 10) and len(set(map(bytes, positions))) == 4
    for place in range(4):
        own = algorithm.inner.view(algorithm.replay.store, positions[place])
        assert own.keys() == drawn.keys()
        for name, column in own.items():
            np.testing.assert_array_equal(drawn[name][place], column)


@pytest.mark.parametrize("prioritized", [True, False])
def test_priorities_of_a_step_count_in_the_next_draw(prioritized, monkeypatch):
    algorithm, events = drawing(prioritized=prioritized), []
    replay = algorithm.replay
    draw, prioritize = replay.draw, replay.prioritize
    monkeypatch.setattr(replay, "draw", lambda *given: events.append("draw") or draw(*given))
    monkeypatch.setattr(
        replay, "prioritize", lambda *given: events.append("prioritize") or prioritize(*given)
    )
    steps = list(algorithm.gradient_steps(3, 1.0, np.random.default_rng(0)))
    assert len(steps) == 3
    apart, together = ["draw", "prioritize"] * 3, ["draw", *["prioritize"] * 3]
    assert events == (apart if prioritized else together)
