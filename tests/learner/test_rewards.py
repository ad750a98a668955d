"""The rewards that are learned from, against plain loops; and what is refused."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from flame_rl.learner.rewards import RAW, make_rewards
from flame_rl.settings.experiment import Experiment
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import Episodes
from tests.helpers import spec_of
from tests.learners import random_episodes

HERE = "tests.learner.test_rewards"
SCALAR = spec_of(3, 2, continuous=False)
VECTOR = replace(SCALAR, reward_shape=(3,))


def with_parts(vector: bool) -> Episodes:
    """Rewards of one number or of three, and two parts."""
    episodes, rng = random_episodes(continuous=False), np.random.default_rng(1)
    more = {"reward_parts": rng.standard_normal((episodes.steps, 2))}
    if vector:
        more["rewards"] = rng.standard_normal((episodes.steps, 3))
    return replace(episodes, columns=episodes.columns | more)


def of(spec, **settings):
    return make_rewards(Experiment(**settings), spec)


def shaped(episode):
    """Differs with every column that a function may look at."""
    change = np.abs(np.diff(episode.observations, axis=0)).sum(axis=1)
    own = episode.rewards.reshape(episode.length, -1)[:, 0]
    parts = (
        episode.columns["reward_parts"] @ [10.0, 100.0] if "reward_parts" in episode.columns else 0
    )
    return own - 0.5 * change + 3 * episode.actions + 7 * episode.terminated + parts


def slowly_shaped(episodes: Episodes) -> list[float]:
    """`shaped`, step by step over the columns of all episodes."""
    out, start = [], 0
    for place, length in enumerate(episodes.lengths):
        for step in range(start, start + length):
            row = step + place
            change = sum(abs(episodes.observations[row + 1] - episodes.observations[row]))
            parts = episodes.columns["reward_parts"][step]
            first = np.ravel(episodes.rewards[step])[0]
            number = first - 0.5 * change + 3 * episodes.actions[step]
            out.append(number + 7 * episodes.terminated[place] + 10 * parts[0] + 100 * parts[1])
        start += length
    return out


@pytest.mark.parametrize("spec", [SCALAR, VECTOR], ids=["scalar", "vector"])
@pytest.mark.parametrize("how", ["weights", "function"])
def test_one_number_is_made_of_parts(spec, how):
    vector = bool(spec.reward_shape)
    collected, names = with_parts(vector), ("gain", "cost")
    weights = (0.5, -2, 3, 0.25, 1e3)[0 if vector else 3 :]
    settings = {"reward_weights": weights} if how == "weights" else {"reward": f"{HERE}:shaped"}
    rewards = of(spec, reward_parts=names, **settings)
    own = rewards.raw(collected)
    learned = rewards.shaped(collected, own)

    parts = collected.columns["reward_parts"].tolist()
    if vector:
        pairs = zip(collected.rewards.tolist(), parts, strict=True)
        parts = [[*numbers, *named] for numbers, named in pairs]
    expected = slowly_shaped(collected)
    if how == "weights":
        expected = [sum(w * p for w, p in zip(weights, row, strict=True)) for row in parts]
    np.testing.assert_allclose(learned.rewards, expected, rtol=1e-5)
    assert learned.rewards.dtype == np.float64
    # A vector has no other number of its own.
    np.testing.assert_array_equal(own.rewards, learned.rewards if vector else collected.rewards)
    np.testing.assert_array_equal(learned.columns["reward_parts"], parts)
    # Nothing else that is learned from has changed.
    for name in ("observations", "actions"):
        assert learned.columns[name] is collected.columns[name]

    means = rewards.means(collected, learned)
    assert tuple(means) == rewards.names
    expected_names = ("reward_0", "reward_1", "reward_2") * vector + names
    assert rewards.names == expected_names + ("reward_learned",) * (not vector)
    for place, name in enumerate(expected_names):
        mean = sum(row[place] for row in parts) / len(collected)
        assert means[name] == pytest.approx(mean)
    if not vector:
        assert means["reward_learned"] == pytest.approx(sum(expected) / len(collected), rel=1e-5)
    for episode, one in zip(collected, own, strict=True):
        assert rewards.raw_return(episode) == pytest.approx(one.rewards.sum())


def test_without_settings_episodes_stay_the_same_object():
    assert of(SCALAR) == RAW and RAW.names == ()
    episodes = random_episodes(continuous=False)
    assert RAW.raw(episodes) is episodes and RAW.shaped(episodes, episodes) is episodes
    assert RAW.means(episodes, episodes) == {}


def test_parts_alone_change_nothing_that_is_learned_from():
    rewards, collected = of(SCALAR, reward_parts=("gain", "cost")), with_parts(vector=False)
    learned = rewards.shaped(collected, rewards.raw(collected))
    assert learned.rewards is collected.rewards
    assert rewards.names == ("gain", "cost")


def raising(episode):
    raise LookupError("no such table")


def writing(episode):
    episode.rewards[:] = 0
    return episode.rewards


def too_short(episode):
    return episode.rewards[1:]


def words(episode):
    return ["much"] * episode.length


def infinite(episode):
    return np.where(np.arange(episode.length) == 2, -np.inf, episode.rewards)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raising", r"raised LookupError: no such table, in episode 0 of .*\n\n(.*\n)*.*table"),
        ("exits", "raised SystemExit: 3, in episode 0"),
        ("writing", "raised ValueError: assignment destination is read-only"),
        ("too_short", r"returned float64 of shape \(3,\) for episode 0 of 4 steps; .* \(4,\)"),
        ("words", r"returned <U4 of shape \(4,\)"),
        ("infinite", "returned -inf for step 2 of episode 0;"),
    ],
)
def test_a_function_that_returns_something_else_is_refused(name, said):
    collected = random_episodes(continuous=False)
    before = collected.rewards.copy()
    rewards = of(SCALAR, reward=f"{HERE}:{name}")
    with pytest.raises(UsageError, match=f"^--reward: {HERE}:{name} {said}"):
        rewards.shaped(collected, rewards.raw(collected))
    np.testing.assert_array_equal(collected.rewards, before)


def exits(episode):
    sys.exit(3)


@pytest.mark.parametrize(
    ("spec", "settings", "said"),
    [
        (VECTOR, {}, "vector of 3 numbers.* give 3 weights, for reward_0, reward_1, reward_2, or"),
        (
            VECTOR,
            {"reward_weights": (1, 2, 3), "reward_parts": ("cost",)},
            "3 for 4 parts of the reward, .*, reward_2, cost",
        ),
        (SCALAR, {"reward_weights": (1, 2)}, "2 for 0 parts of the reward; --reward-parts names"),
        (VECTOR, {"reward_parts": ("reward_1",)}, "'reward_1' is another column of metrics.csv"),
        (SCALAR, {"reward": "no_such_module:f"}, "cannot be imported.* beside main.py"),
        (SCALAR, {"reward": f"{HERE}:f"}, "has no function 'f'"),
    ],
)
def test_settings_that_make_no_number_are_refused(spec, settings, said):
    with pytest.raises(UsageError, match=f"^--reward.*{said}"):
        of(spec, **settings)
