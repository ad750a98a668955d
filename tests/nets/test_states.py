"""Layers that remember: a state for each slot, that of the slot's episode alone."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from flame_rl.actor.collect import collect_episodes
from flame_rl.nets.kinds import LAYERS
from flame_rl.nets.layers import LayerKind
from flame_rl.run.policy import Policy
from flame_rl.wire.messages import Layer, PolicySnapshot
from tests.helpers import described, environment_id, plain, request_for

WANDERING = environment_id("Wandering")


class SumLayer(LayerKind):
    """The scaled sum of the episode's inputs so far."""

    arrays: ClassVar = {"scale": ("in",)}
    state = ("in",)

    def act(self, x: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total = state + x * self.scale
        return total, total


@pytest.fixture
def summing(monkeypatch) -> PolicySnapshot:
    """A policy whose action is the scaled sum of the episode's observations so far."""
    monkeypatch.setitem(LAYERS, "sum", SumLayer)
    layer = Layer("sum", {"scale": np.array([0.1], np.float32)})
    return PolicySnapshot(0, (layer,), Layer("gaussian", {"log_std": np.zeros(1, np.float32)}))


def sums(observations: np.ndarray) -> np.ndarray:
    """What `summing` does, one step after another, rounded to float32 at each."""
    total, found = np.float32(0), []
    for observation in observations[:, 0]:
        total = np.float32(float(total) + float(observation) * float(np.float32(0.1)))
        found.append(total)
    return np.array(found)


def collect(snapshot, indices):
    simulator = plain(WANDERING)
    try:
        return collect_episodes(snapshot, request_for(WANDERING, indices, explore=False), simulator)
    finally:
        simulator.close()


def test_an_episode_remembers_its_own_steps_from_its_first(summing):
    """More episodes than slots, which end at different times: slots are used again and again, and
    towards the end there are fewer of them than rows of a block."""
    count = 3 * plain(WANDERING).slots + 5
    episodes = collect(summing, range(count))
    assert len(set(episodes.lengths.tolist())) > 5
    for episode in episodes:
        np.testing.assert_array_equal(episode.actions[:, 0], sums(episode.observations[:-1]))


def test_an_agent_remembers_until_an_episode_begins(summing):
    agent = Policy(summing, described(WANDERING))
    observations = np.random.default_rng(0).standard_normal((6, 1)).astype(np.float32)
    with pytest.raises(ValueError, match="episode: none has begun"):
        agent.act(observations[0])
    for _ in range(2):
        agent.begin()
        actions = [agent.act(observation)[0] for observation in observations]
        np.testing.assert_array_equal(actions, np.clip(sums(observations), -1, 1))
