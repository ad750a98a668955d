"""Rewards of several parts, named in `info` or numbers of a vector, as actors record them."""

from contextlib import closing
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from flame_rl.actor.collect import collect_episodes
from flame_rl.actor.environments.converting import action_converter
from flame_rl.actor.randomness import reset_seed
from flame_rl.actor.simulators.choose import choose_simulator
from flame_rl.wire.inputs import step_columns
from flame_rl.wire.messages import CollectFailure, Environment
from tests.actor.test_simulators import of_twins
from tests.helpers import described, environment_id, request_for, snapshot_for

PARTS = ("cost", "gain")


def collect(env_id: str, parts=(), choice: str = "plain", outcomes=(), **options):
    spec = described(env_id)
    limit = options.get("max_episode_steps")
    environment = Environment(env_id, limit, choice, parts, outcomes=outcomes)
    request = replace(
        request_for(env_id, **options),
        environment=environment,
        columns=step_columns(spec, parts, outcomes),
    )
    with closing(choose_simulator(environment)[0]) as simulator:
        return collect_episodes(snapshot_for(spec), request, simulator), request


def played_again(env_id: str, request, episode):
    """Gymnasium's rewards and infos for the same actions."""
    limit = request.environment.max_episode_steps
    env = gymnasium.make(env_id, max_episode_steps=limit, disable_env_checker=True)
    seed = reset_seed(request.run_seed, request.iteration, episode.index)
    env.reset(seed=seed)
    convert = action_converter(env.action_space)
    steps = [env.step(convert(action[None])[0]) for action in episode.actions]
    env.close()
    return [step[1] for step in steps], [step[-1] for step in steps]


@pytest.mark.parametrize(
    ("env_id", "parts", "choice"),
    [
        (environment_id("Parts"), ("cost", "gain"), "plain"),
        ("Ant-v5", ("reward_contact", "x_velocity", "reward_forward"), "plain"),
        pytest.param(
            "Ant-v5", ("reward_contact", "reward_survive", "reward_forward"), "fast", marks=of_twins
        ),
    ],
)
def test_parts_are_those_of_info(env_id, parts, choice):
    # More episodes than either simulator has slots.
    options = {"indices": range(70), "max_episode_steps": 5}
    episodes, request = collect(env_id, parts, choice, **options)
    assert len(episodes) == 70
    for episode in list(episodes)[::10]:
        rewards, infos = played_again(env_id, request, episode)
        expected = np.array([[info[name] for name in parts] for info in infos], np.float64)
        assert episode.columns["reward_parts"].tobytes() == expected.tobytes()
        assert episode.rewards.tobytes() == np.array(rewards, np.float64).tobytes()


def test_outcomes_are_those_of_the_last_step():
    env_id = environment_id("Arriving")
    episodes, request = collect(env_id, outcomes=("is_success", "episode.r"), indices=range(40))
    last = np.cumsum(episodes.lengths) - 1
    for episode, (success, reward) in zip(
        episodes, episodes.columns["outcomes"][last].tolist(), strict=True
    ):
        _, infos = played_again(env_id, request, episode)
        assert (success, reward) == (infos[-1]["is_success"], infos[-1]["episode"]["r"])
    assert set(episodes.columns["outcomes"][last, 0].tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("is_sucess", {}, "info: step returned no 'is_sucess', which --outcomes names"),
        ("episode.x", {}, "info: step returned no 'episode.x', which --outcomes names"),
        ("episode", {}, "info['episode']: step returned {'r'"),
        # A time limit ends it before the environment does.
        ("is_success", {"max_episode_steps": 2}, "info: step returned no 'is_success'"),
    ],
)
def test_an_outcome_that_the_last_step_lacks_is_refused(name, options, said):
    failure, _ = collect(environment_id("Arriving"), outcomes=(name,), **options)
    assert failure.kind == "invalid" and said in failure.message
    assert failure.step == options.get("max_episode_steps", 3) - 1


def test_a_vector_is_recorded_as_it_is():
    env_id = environment_id("TwoRewards")
    assert described(env_id).reward_shape == (2,)
    episodes, request = collect(env_id, ("cost",))
    for episode in episodes:
        rewards, infos = played_again(env_id, request, episode)
        assert episode.length == 3 and episode.rewards.tolist() == np.array(rewards).tolist()
        costs = [info["cost"] for info in infos]
        assert episode.columns["reward_parts"][:, 0].tolist() == costs == [0, -1, -2]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("WithoutCost", "info: step returned no 'cost', which --reward-parts names; it has gain"),
        ("WithoutInfo", "info: step returned no 'cost', which --reward-parts names; it has"),
        ("CostInWords", "info['cost']: step returned 'much' where a single number belongs"),
        ("CostOfTwo", "info['cost']: step returned an array of shape (2,) where a single number"),
        ("InfiniteCost", "reward parts: step returned NaN or infinity: [-inf   1.]"),
    ],
)
def test_another_info_is_refused_with_its_step(name, said):
    env_id = environment_id(name)
    failure, _ = collect(env_id, PARTS, indices=(5, 8))
    assert isinstance(failure, CollectFailure) and failure.kind == "invalid"
    assert said in failure.message
    assert (failure.env_id, failure.index, failure.step) == (env_id, 5, 1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ThreeRewards", "an array of shape (3,) where an array of shape (2,) belongs"),
        ("OneRewardAtFirst", ""),
    ],
)
def test_another_reward_than_the_promised_vector_is_refused(name, said):
    failure, _ = collect(environment_id(name))
    assert f"reward: step returned {said}" in failure.message
    assert (failure.kind, failure.step) == ("invalid", 0)
