"""The environment's own functions of goals: what they give for many goals, and what is refused."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from flame_rl import Trainer
from flame_rl.learner.off_policy.replay.hindsight import GoalFunctions, find_goals
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import Environment, EnvironmentSpec
from tests.goals import Bits, Counted, Maze, Old, Panda, Point
from tests.helpers import described, environment_id, episode_of, together
from tests.learners import make_config


def played(name: str, episodes: int = 30):
    """Random episodes by Gymnasium alone: what is achieved with each step, and the episodes as
    actors record them."""
    env = gymnasium.make(environment_id(name, "goals"))
    achieved, recorded = [], []
    for index in range(episodes):
        seen, _ = env.reset(seed=index)
        env.action_space.seed(index)
        rows, rewards, over = [seen], [], False
        while not over:
            seen, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            rows.append(seen)
            rewards.append(reward)
            achieved.append(seen["achieved_goal"])
            over = terminated or truncated
        keys = env.observation_space.spaces
        flat = np.array([np.concatenate([row[key] for key in keys]) for row in rows], np.float32)
        recorded.append(
            episode_of(
                index=index,
                observations=flat,
                actions=np.zeros(len(rewards), np.int32),
                rewards=np.array(rewards),
                terminated=terminated,
                truncated=truncated and not terminated,
            )
        )
    return env.unwrapped, np.array(achieved), together(recorded)


@pytest.mark.parametrize("kind", [Bits, Point, Maze, Panda, Old], ids=lambda kind: kind.__name__)
def test_other_goals_have_the_rewards_and_ends_of_the_environment(kind):
    env, achieved, episodes = played(kind.__name__)
    env_id = environment_id(kind.__name__, "goals")
    functions = GoalFunctions(Environment(env_id), find_goals(described(env_id)))
    functions.check(episodes)
    # Each goal with one that was reached at some other time, and with itself.
    others = np.random.default_rng(0).permutation(achieved)
    for goals in (others, achieved):
        rewards, ended = functions.outcomes(np.float32(achieved), np.float32(goals))
        assert rewards.dtype == np.float32 and ended.dtype == bool
        for i, pair in enumerate(zip(achieved, goals, strict=True)):
            assert rewards[i] == env.compute_reward(*pair, {})
            assert ended[i] == (kind.ends and bool(env.reached(*pair)))
    assert ended.any() == kind.ends


@pytest.mark.parametrize("sound", [True, False])
def test_the_learners_environment_is_closed(sound, monkeypatch, capsys):
    monkeypatch.setattr(Counted, "sound", sound)
    train("Counted")
    assert Counted.open == 0
    # Those of the learner and of the worker, which is this process.
    words = "Counted-v0: close raised RuntimeError: no such window"
    assert capsys.readouterr().err.count(words) == (0 if sound else 2)


def train(name: str, **options) -> None:
    given = {"iterations": 2, "episodes_per_iter": 4, "steps_per_iter": None, "hidden_sizes": (4,)}
    given |= {"warm_up_steps": 8, "batch_size": 4, "updates_per_step": 0.1, "hindsight": "future"}
    env = name if ":" in name or "-" in name else environment_id(name, "goals")
    algorithm = "dqn" if name in ("Bits", "Ending", "cartpole", "CartPole-v1") else "sac"
    config = {"algorithm": algorithm, "workers": 0, "local": True}
    with Trainer(make_config(env, **config | given | options)) as trainer:
        list(trainer)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Mute", "terminated, and it has no compute_terminated"),
        ("Paid", r"compute_reward .* gives -1.0 where a step gave -1.*wrapper that changes"),
        ("Ending", r"compute_terminated .* gives False where a step gave True"),
        ("Silent", "has no compute_reward.*add the method"),
        ("Dividing", r"returned \[nan\] for the achieved goal .* a single finite number"),
        ("Informed", r"raised KeyError: 'paid'; it is called with goals and an empty info"),
        ("Quitting", r"compute_reward .* raised SystemExit; it is called with goals"),
        ("CartPole-v1", "observations that are a Dict with achieved_goal and desired_goal"),
    ],
)
def test_what_hindsight_cannot_know_is_refused_by_name(name, words):
    with pytest.raises(UsageError, match=f"(?s)^--hindsight: .*{words}"):
        train(name, max_episode_steps=8)


def test_other_rewards_than_the_environments_own_are_refused():
    with pytest.raises(UsageError, match=r"--hindsight: .* --reward makes others"):
        train("Bits", reward="tests.goals:GoalEnv")
    with pytest.raises(UsageError, match=r"--hindsight: .* --reward-weights makes others"):
        train("Bits", reward_weights=(1.0,), reward_parts=("is_success",))


def test_goals_that_are_not_observed_are_refused():
    with pytest.raises(UsageError, match=r"--hindsight: .*let --observe keep both keys"):
        train("Bits", observe=("observation", "desired_goal"))
    train("Bits", observe=("achieved_goal", "desired_goal"))


@pytest.mark.parametrize(
    ("achieved", "desired"),
    [
        (spaces.Discrete(3), spaces.Discrete(3)),
        (spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (3,))),
        (spaces.Box(0, 1, (2,)), spaces.MultiBinary(2)),
        (spaces.Box(0, 255, (4, 4), np.uint8), spaces.Box(0, 255, (4, 4), np.uint8)),
    ],
)
def test_goals_that_are_not_numbers_are_refused(achieved, desired):
    space = spaces.Dict({"achieved_goal": achieved, "desired_goal": desired})
    spec = EnvironmentSpec("Mine-v0", space, spaces.Discrete(2))
    with pytest.raises(
        UsageError, match=r"--hindsight: it needs .* both a Box of numbers or both Mu"
    ):
        find_goals(spec)


def test_several_agents_are_refused():
    spec = described(environment_id("Bits", "goals"))
    with pytest.raises(UsageError, match=r"--hindsight: .*several agents"):
        find_goals(replace(spec, agents=("a", "b")))
