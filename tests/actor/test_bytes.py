"""Observations of one byte, such as pictures, keep that type from simulator to learner."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.environments.observations import write_observation
from flame_rl.wire.inputs import observation_parts
from flame_rl.wire.messages import Episodes
from tests.environments import ChannelsFirst
from tests.helpers import described, environment_id, plain, request_for, snapshot_for


def played(name: str, indices=range(40)):
    """The request, and its answer by a random policy."""
    env_id = environment_id(name)
    snapshot, simulator = snapshot_for(described(env_id), hidden=(8,)), plain(env_id)
    try:
        request = request_for(env_id, indices)
        return request, collect_episodes(snapshot, request, simulator)
    finally:
        simulator.close()


def seen_by(name: str, episode, seed: int) -> np.ndarray:
    """What Gymnasium's environment itself shows for the episode's actions."""
    env = gymnasium.make(environment_id(name))
    observation, _ = env.reset(seed=seed)
    observations = [observation]
    for action in episode.actions:
        observation, *_ = env.step(action)
        observations.append(observation)
    return np.stack(observations)


@pytest.fixture(params=["Catch", "BooleanCatch"])
def name(request) -> str:
    return request.param


def same_ball(name: str, episode) -> np.ndarray:
    """Of the seeds that put the ball where the episode has it, one will do."""
    for seed in range(1000):
        seen = seen_by(name, episode, seed).reshape(len(episode.observations), -1)
        if np.array_equal(seen[0], episode.observations[0]):
            return seen
    raise AssertionError("no seed begins like the episode")


def test_pictures_are_recorded_in_one_byte(name):
    request, episodes = played(name)
    assert isinstance(episodes, Episodes)
    assert request.columns[0].dtype == "uint8"
    for episode in list(episodes)[:5]:
        assert episode.observations.dtype == np.uint8
        np.testing.assert_array_equal(episode.observations, same_ball(name, episode))


@pytest.mark.parametrize("copied", [False, True])
def test_channels_come_last_whichever_way_a_picture_has_them(copied, monkeypatch):
    if copied:  # observations that are checked one by one, and not copied as they are
        picture = ChannelsFirst.picture
        monkeypatch.setattr(ChannelsFirst, "picture", lambda env, row: picture(env, row).tolist())
    _, episodes = played("ChannelsFirst", [0, 1])
    seen = episodes.observations.reshape(-1, 40, 40, 3)
    assert (seen[..., 1] == 0).all() and set(np.unique(seen[..., [0, 2]])) == {200, 230}
    assert ((seen[..., 0] == 230).sum(axis=(1, 2)) == 64).mean() > 0.5


def test_a_picture_on_its_way_to_a_policy_has_its_channels_last():
    space = spaces.Box(0, 255, (3, 8, 6), np.uint8)
    picture, row = space.sample(), np.zeros(144, np.uint8)
    write_observation(observation_parts(space), picture, row)
    np.testing.assert_array_equal(row.reshape(8, 6, 3), picture.transpose(1, 2, 0))
    # Beside other observations, too.
    space = spaces.Dict(seen=space, way=spaces.Discrete(2))
    row = np.zeros(146, np.float32)
    write_observation(observation_parts(space), {"seen": picture, "way": 1}, row)
    np.testing.assert_array_equal(row[:144].reshape(8, 6, 3), picture.transpose(1, 2, 0))
    assert row[144:].tolist() == [0, 1]


def test_whole_numbers_of_another_type_are_taken():
    _, episodes = played("WholeNumbers", [0])
    assert (episodes.observations.reshape(-1, 10, 5)[:, 4, 4] == 7).all()


@pytest.mark.parametrize("name", ["Fractions", "Beyond", "NotANumber"])
def test_what_one_byte_does_not_hold_is_refused(name):
    _, failure = played(name, [0])
    assert (failure.kind, failure.step) == ("invalid", 2)
    assert "observation: step returned" in failure.message
    assert "not integers from 0 to 255" in failure.message
