"""Samplers against plain arrays and exact distributions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flame_rl.learner.off_policy.replay.samplers import PrioritizedSampler, SumTree, uniform
from flame_rl.learner.off_policy.replay.store import ReplayStore
from tests.learner.replay.oracle import CONTINUOUS, Oracle, make_episodes

CAPACITY = 12
LENGTHS = st.lists(st.integers(1, CAPACITY), min_size=1, max_size=4)


def store_of(*lengths):
    store = ReplayStore(CONTINUOUS, CAPACITY)
    for length in lengths:
        add(store, [length])
    return store


def add(store, lengths):
    store.add(make_episodes(lengths, [True] * len(lengths)))


def assert_drawn_by(probabilities, positions):
    """Of ten steps, after five that are gone. Pearson's chi-square of nine degrees of freedom is
    greater than 33.7 once in ten thousand."""
    counts = np.bincount(positions, minlength=15)
    assert counts[:5].sum() == 0
    expected = counts.sum() * np.asarray(probabilities)
    assert ((counts[5:] - expected) ** 2 / expected).sum() < 33.7


# The tree ------------------------------------------------------------------------------------


def naive_find(leaves, number):
    """The first leaf at which the running sum passes the number."""
    running = 0.0
    for place, leaf in enumerate(leaves):
        running += leaf
        if number < running:
            return place
    raise AssertionError("beyond the total")


SIZES = st.integers(1, 70)


@settings(max_examples=100, deadline=None)
@given(SIZES, st.data())
def test_the_tree_is_a_plain_array(size, data):
    """Whole numbers, whose sums are exact; leaves set one by one, and twice."""
    tree, plain = SumTree(size), [0] * size
    pairs = st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 9)), max_size=9)
    for _ in range(data.draw(st.integers(1, 6))):
        drawn = data.draw(pairs)
        leaves, values = np.array(drawn, np.int64).reshape(-1, 2).T
        tree.set(leaves, values.astype(float))
        for leaf, value in drawn:
            plain[leaf] = value
        assert tree.leaves.tolist() == plain
        assert tree.total == sum(plain)
        quarters = np.arange(4 * sum(plain)) / 4
        assert tree.find(quarters).tolist() == [naive_find(plain, number) for number in quarters]


@settings(max_examples=50, deadline=None)
@given(SIZES, st.integers(0, 1000))
def test_the_tree_is_a_function_of_its_leaves_to_the_bit(size, seed):
    rng = np.random.default_rng(seed)
    one = SumTree(size)
    for _ in range(5):
        leaves = rng.integers(0, size, 7)
        one.set(leaves, rng.random(7))
    other = SumTree(size)
    other.set(np.arange(size), one.leaves)
    assert one._nodes.tobytes() == other._nodes.tobytes()


@settings(max_examples=50, deadline=None)
@given(SIZES, st.integers(0, 1000))
def test_a_leaf_of_zero_is_never_found_whatever_the_rounding(size, seed):
    rng = np.random.default_rng(seed)
    leaves = np.exp(rng.normal(0, 20, size)) * (rng.random(size) < 0.5)
    leaves[rng.integers(size)] = 1
    tree = SumTree(size)
    tree.set(np.arange(size), leaves)
    total = tree.total
    sums = np.concatenate([rng.random(200) * total, [0.0, total, np.nextafter(total, np.inf)]])
    assert (leaves[tree.find(sums)] > 0).all()


# Uniform ---------------------------------------------------------------------------------------


def test_uniform_draws_every_step_equally_often():
    store = store_of(5, 4, 6)
    assert (store.first, store.steps) == (5, 15)
    positions = uniform(store, 100_000, np.random.default_rng(0))
    assert positions.dtype == np.int64
    assert_drawn_by(np.full(10, 0.1), positions)


# Prioritised -------------------------------------------------------------------------------------


class NaivePriorities:
    """Priorities of all steps ever, in a dict."""

    def __init__(self, alpha):
        self.alpha, self.greatest, self.of = alpha, 1.0, {}

    def follow(self, oracle):
        for position in oracle.positions:
            self.of.setdefault(position, self.greatest)
        self.of = {position: self.of[position] for position in oracle.positions}

    def update(self, positions, priorities):
        for position, priority in zip(positions, priorities, strict=True):
            if position in self.of:
                self.of[position] = priority
            self.greatest = max(self.greatest, priority)

    def probabilities(self):
        powers = {position: p**self.alpha for position, p in self.of.items()}
        return {position: power / sum(powers.values()) for position, power in powers.items()}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(LENGTHS, st.integers(1, 9)), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.6, 1.0]),
    st.integers(0, 1000),
)
def test_priorities_are_those_of_a_plain_dict(actions, alpha, seed):
    """A list adds episodes; a number updates that many steps, some overwritten, some twice."""
    rng = np.random.default_rng(seed)
    store, oracle = ReplayStore(CONTINUOUS, CAPACITY), Oracle(CAPACITY)
    sampler, naive = PrioritizedSampler(store, alpha), NaivePriorities(alpha)
    for action in actions:
        if isinstance(action, list):
            episodes = make_episodes(action, [True] * len(action))
            store.add(episodes)
            oracle.add(episodes)
            naive.follow(oracle)
        elif store.steps:
            positions = rng.integers(max(0, store.first - 4), store.steps, action)
            priorities = rng.integers(1, 9, action) / 2
            sampler.update(positions, priorities)
            naive.update(positions.tolist(), priorities.tolist())
        if store.steps:
            leaves, exact = sampler.state()["priorities"], naive.probabilities()
            kept = range(store.first, store.steps)
            assert dict(zip(kept, leaves / leaves.sum(), strict=True)) == pytest.approx(exact)
            beta = rng.random()
            positions, weights = sampler.sample(8, beta, rng)
            expected = np.array([(len(exact) * exact[p]) ** -beta for p in positions.tolist()])
            np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-5)
            assert weights.dtype == np.float32


def test_priorities_are_drawn_in_proportion():
    store = store_of(5, 4, 6)
    sampler, rng = PrioritizedSampler(store, 0.6), np.random.default_rng(0)
    priorities = np.array([0.1, 1, 2, 3, 4, 5, 6, 0.5, 9, 0.01])
    sampler.update(np.arange(5, 15), priorities)
    probabilities = priorities**0.6 / (priorities**0.6).sum()
    assert_drawn_by(probabilities, [sampler.sample(1, 1.0, rng)[0][0] for _ in range(20_000)])
    # In a batch each draw is from a part of its own, so that counts are even closer.
    draws, _ = sampler.sample(20_000, 1.0, rng)
    counts = np.bincount(draws, minlength=15)[5:]
    assert (np.abs(counts - 20_000 * probabilities) <= 2).all()


def test_restoring_forgets_what_the_sampler_held():
    """The ring of the store goes back to a place where the sampler held other steps."""
    store = store_of(6)
    sampler = PrioritizedSampler(store, 1.0)
    sampler.update(np.arange(6), np.arange(1.0, 7))
    state = sampler.state()
    add(store, [5])
    sampler.update(np.arange(6, 11), np.full(5, 9.0))
    store.begin(0, 0)
    add(store, [6])
    sampler.restore(state)
    again = sampler.state()
    assert state.keys() == again.keys()
    assert all(np.array_equal(again[name], array) for name, array in state.items())
    positions, _ = sampler.sample(1000, 0.4, np.random.default_rng(0))
    assert set(positions.tolist()) == set(range(6))
