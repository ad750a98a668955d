"""Observations of several inputs, from the environment to the learner's store: key by key."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.environments.converting import write_observation
from flame_rl.actor.environments.making import describe_environment
from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.randomness import reset_seed
from flame_rl.actor.simulators.plain import PlainSimulator
from flame_rl.run.policy import Policy
from flame_rl.wire import codec
from flame_rl.wire.inputs import observation_parts, step_columns
from flame_rl.wire.messages import Environment, Episodes
from tests.environments import ChannelsFirst, TwoInputs
from tests.helpers import collect, environment_id, request_for, snapshot_for

NAMES = ["observations['arm']", "observations['camera']", "observations['lamp']"]


def played(name: str, indices=range(20)):
    """The request, and its answer by a random policy."""
    env_id = environment_id(name)
    return request_for(env_id, indices), collect(env_id, indices)


def seen_by(name: str, request, episode) -> list:
    """What Gymnasium's environment itself shows for the episode's actions."""
    seed = reset_seed(request.run_seed, request.iteration, episode.index)
    env = gymnasium.make(environment_id(name))
    observation, _ = env.reset(seed=seed)
    observations = [observation]
    for action in episode.actions:
        observation, *_ = env.step(action)
        observations.append(observation)
    return observations


def test_every_input_is_recorded_in_its_own_type():
    request, episodes = played("TwoInputs", [0])
    (episode,) = episodes
    seen = seen_by("TwoInputs", request, episode)
    arm, camera, lamp = (episode.columns[name] for name in NAMES)
    assert [arm.dtype, camera.dtype, lamp.dtype] == ["float32", "uint8", "float32"]
    np.testing.assert_array_equal(arm, np.stack([o["arm"] for o in seen]).astype(np.float32))
    np.testing.assert_array_equal(camera, np.stack([o["camera"].ravel() for o in seen]))
    np.testing.assert_array_equal(lamp, np.eye(2)[[o["lamp"] for o in seen]])
    np.testing.assert_array_equal(episode.observations, np.hstack([arm, camera, lamp]))


def test_bytes_are_sent_as_bytes():
    request, episodes = played("TwoInputs")
    message = b"".join(codec.encode_result(episodes, request))
    rows = episodes.steps + len(episodes)
    assert 46 * rows < len(message) < 46 * rows + 12 * episodes.steps + 3000
    received = codec.decode_result(message, request)
    for name, array in episodes.columns.items():
        assert received.columns[name].dtype == array.dtype
        assert received.columns[name].tobytes() == array.tobytes()


def test_only_some_keys_may_be_observed():
    environment = Environment(environment_id("TwoInputs"), observe=("lamp", "camera"))
    simulator = PlainSimulator(environment)
    spec = describe_environment(environment, simulator.first)
    assert list(spec.observation_space.spaces) == ["camera", "lamp"]
    columns = step_columns(spec)
    request = request_for(environment.env_id, [0], columns=columns)
    episodes = collect_episodes(snapshot_for(spec, hidden=(8,)), request, simulator)
    assert isinstance(episodes, Episodes)
    assert [*episodes.columns][:2] == NAMES[1:]
    # The environment's whole observation is taken, and the policy sees what it was trained with.
    agent, seen = Policy(snapshot_for(spec, hidden=(8,)), spec), TwoInputs().reset(seed=0)[0]
    assert agent.act(seen) == agent.act({key: seen[key] for key in ("camera", "lamp")})


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("TwoInputs", ("camera", "leg"), r"observes no 'leg'; it has arm, camera, lamp"),
        ("Catch", ("camera",), "is no Dict, whose keys it names"),
    ],
)
def test_keys_that_there_are_not_are_refused(name, keys, message):
    with pytest.raises(SimulatorError, match=f"--observe: .*{message}"):
        PlainSimulator(Environment(environment_id(name), observe=keys))


def test_a_part_that_cannot_be_learned_from_may_be_left_out():
    """By the flag that the error names, see test_collect.py."""
    PlainSimulator(Environment(environment_id("TextObservation"), observe=("a",)))


@pytest.mark.parametrize("name", ["Catch", "BooleanCatch"])
def test_pictures_are_recorded_in_one_byte(name):
    request, episodes = played(name, range(5))
    assert request.columns[0].dtype == "uint8"
    for episode in episodes:
        seen = np.stack(seen_by(name, request, episode))
        assert episode.observations.dtype == np.uint8
        np.testing.assert_array_equal(episode.observations, seen.reshape(len(seen), -1))


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
