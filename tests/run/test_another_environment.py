"""A run's policy in other environments than its own."""

import json
from collections import OrderedDict
from pathlib import Path

import pytest
from gymnasium import spaces

from flame_rl.run.transfer import form_of
from tests.helpers import contents, environment_id, finished_run, refusal, run_here, run_ok

PAIRS = [("a", spaces.Discrete(2)), ("b", spaces.Discrete(3))]
HERE = ("--local", "--workers", "0", "--episodes", "3", "--json")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    words = ("--env", "cartpole", "--algorithm", "ppo", "--steps-per-iter", "100")
    more = ("--iterations", "1", "--hidden-sizes", "4", "--workers", "0")
    return finished_run(tmp_path_factory, *words, *more)


def evaluated(run: Path, *words: str) -> dict[str, object]:
    done = run_ok("evaluate", "run", *HERE, *words, cwd=run.parent)
    return json.loads(done.stdout)


def test_a_policy_is_evaluated_with_other_arguments_and_in_other_environments(run):
    plain = evaluated(run)
    # With this argument only the end of an episode has a reward, of -1.
    other = evaluated(run, "--env-kwargs", "sutton_barto_reward=True")
    assert plain["reward_mean"] == plain["length_mean"] == other["length_mean"]
    assert other["reward_mean"] == other["reward_min"] == -1
    short = evaluated(run, "--env", environment_id("ShortPole"))
    assert short["env"].endswith("ShortPole-v0") and short["length_mean"] == 3
    # The run's own arguments do not go along.
    assert short["reward_mean"] == 3


def test_other_spaces_are_a_clear_mistake_and_the_run_stays_as_it_was(run):
    before = contents(run)
    for env, words in (
        ("Acrobot-v1", "observation_space of CartPole-v1, where the policy was trained, is Box"),
        ("Nothing-v0", "Nothing"),
    ):
        assert words in refusal("evaluate", "run", *HERE, "--env", env, cwd=run.parent)
    assert before == contents(run)


def test_a_film_shows_the_other_environment(run):
    words = ("watch", "run", "--video", "film.gif", "--env", environment_id("ShortPole"))
    done = run_here(*words, cwd=run.parent)
    # Its pictures need a package that may not be there; what plays is named before.
    assert "ShortPole-v0 after 1 iterations" in done.stdout


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (spaces.Box(0, 1, (2,)), spaces.Box(-9, 9, (2,)), True),
        (spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (3,)), False),
        (spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (2,), "float64"), False),
        (spaces.Discrete(2), spaces.Discrete(2, start=1), True),
        (spaces.Discrete(2), spaces.Discrete(3), False),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([3, 2]), False),
        (spaces.MultiBinary(2), spaces.MultiBinary(3), False),
        (spaces.Dict(a=spaces.Discrete(2)), spaces.Dict(b=spaces.Discrete(2)), False),
        # A network takes several inputs in their order.
        (spaces.Dict(OrderedDict(PAIRS)), spaces.Dict(OrderedDict(PAIRS[::-1])), False),
        (spaces.Tuple([spaces.Discrete(2)]), spaces.Tuple([spaces.Discrete(2)]), True),
    ],
)
def test_the_form_of_a_space_is_all_but_its_bounds(left, right, same):
    assert (form_of(left) == form_of(right)) is same
