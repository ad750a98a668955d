"""Collection against a plain loop over Gymnasium, and what misbehaving simulators lead to."""

import re
import sys
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from flame_rl.actor.collect import BLOCK_STEPS, collect_episodes
from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.randomness import noise_generator, reset_seed
from flame_rl.actor.simulators.choose import describe
from flame_rl.nets.kinds import HEADS
from flame_rl.wire.messages import CollectFailure, Column, Environment
from tests.actor.oracle import Alone, assert_played_plainly
from tests.helpers import (
    assert_same_episodes,
    collect,
    columns_of,
    described,
    environment_id,
    plain,
    random_snapshot,
    request_for,
    run_anew,
    snapshot_for,
    snapshot_with,
)
from tests.nets.test_company import layer_of

PACKAGES = r"as in minigrid:MiniGrid-Empty-5x5-v0 \(`uv run --with PACKAGE main\.py …`\)"
# Those whose actions are of one Box or Discrete.
SINGLE_HEADS = [kind for kind in HEADS if kind != "factored"]


@pytest.mark.parametrize(
    "env_id",
    [
        *("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "Hopper-v5", "Ant-v5", "HalfCheetah-v5"),
        *("Blackjack-v1", environment_id("Structured"), environment_id("Switches")),
    ],
)
def test_equals_gymnasium_one_step_at_a_time(env_id):
    limit = 120
    spec = described(env_id, limit)
    snapshot = snapshot_for(spec)
    indices = (5, 0, 3, 11, 7, 2, 8, 1, 30, 12, *range(100, 110))  # more than slots
    episodes = collect(env_id, indices, snapshot, max_episode_steps=limit)
    request = request_for(env_id, indices, max_episode_steps=limit)
    env = gymnasium.make(env_id, max_episode_steps=limit)
    assert [episode.index for episode in episodes] == list(indices)
    assert_played_plainly(episodes, indices, Alone(env), snapshot, request)
    env.close()


def with_head(kind: str):
    """A policy with that head, and an environment that it acts in."""
    if HEADS[kind].dtype == "int32":
        return "Acrobot-v1", snapshot_with(kind, 6, 3)
    return "Pendulum-v1", snapshot_with(kind, 3, 1)


@pytest.mark.parametrize("kind", SINGLE_HEADS)
@pytest.mark.parametrize("block_steps", [1, 7, BLOCK_STEPS])
def test_every_head_acts_as_one_step_at_a_time(monkeypatch, kind, block_steps):
    """Longer than a block; noise that depends on the step before goes on from block to block and
    begins anew with every episode."""
    monkeypatch.setattr("flame_rl.actor.collect.BLOCK_STEPS", block_steps)
    env_id, snapshot = with_head(kind)
    limit = BLOCK_STEPS + 12
    request = request_for(env_id, range(11), max_episode_steps=limit)
    episodes = list(collect(env_id, range(11), snapshot, max_episode_steps=limit))
    env = gymnasium.make(env_id, max_episode_steps=limit)
    assert_played_plainly(episodes, (0, 4, 10), Alone(env), snapshot, request)
    env.close()


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_an_episode_remembers_its_own_steps_from_its_first(kind):
    """More episodes than slots, which end at different times: slots are used again and again, and
    towards the end there are fewer of them than rows of a block."""
    layer, width = layer_of(kind, 7, np.random.default_rng(0))
    first, last = random_snapshot(1, 7, True, ()), random_snapshot(width, 1, True, ())
    snapshot = replace(last, layers=(*first.layers, layer, *last.layers))
    env_id = environment_id("Wandering")
    indices = range(3 * plain(env_id).slots + 5)
    episodes = collect(env_id, indices, snapshot)
    assert len(set(episodes.lengths.tolist())) > 5
    env = Alone(gymnasium.make(env_id))
    assert_played_plainly(episodes, indices, env, snapshot, request_for(env_id, indices))


@pytest.mark.parametrize("kind", SINGLE_HEADS)
@pytest.mark.parametrize("explore", [True, False])
def test_neighbours_order_and_history_change_no_bit_of_any_head(kind, explore):
    """More episodes than slots, against few."""
    env_id, snapshot = with_head(kind)
    options = {"max_episode_steps": 40, "explore": explore}
    count = 67
    together = list(collect(env_id, range(count), snapshot, **options))
    simulator = plain(env_id, 40)
    assert count > simulator.slots
    for part in ([count - 1], [3, 4], list(range(12, 0, -1)), list(range(count - 1, -1, -1))):
        other = collect_episodes(snapshot, request_for(env_id, part, **options), simulator)
        assert_same_episodes(other, [together[i] for i in part])
    simulator.close()


@pytest.mark.parametrize("run_seed", [0, 7, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize("index", [0, 300, (1 << 32) - 1, 1 << 32])
def test_random_numbers_are_children_of_the_episodes_sequence(run_seed, index):
    """By definition: the first child seeds the environment, the next ones the agents' noise."""
    children = np.random.SeedSequence(run_seed, spawn_key=(5, index, 3)).spawn(4)
    key = run_seed, 5, index, "evaluation"
    assert reset_seed(*key) == children[0].generate_state(1)[0] >> 1
    for agent, child in enumerate(children[1:]):
        expected = np.random.default_rng(child).bit_generator.state
        assert noise_generator(*key, agent).bit_generator.state == expected


def test_terminated_and_truncated_are_kept_apart():
    (cut,) = collect(environment_id("Endless"), [0])
    assert (cut.length, cut.terminated, cut.truncated) == (7, False, True)
    assert len(cut.observations) == 8
    (ended,) = collect(environment_id("DelayedReward"), [0])
    assert (ended.length, ended.terminated, ended.truncated) == (2, True, False)
    (both,) = collect(environment_id("DelayedReward"), [0], max_episode_steps=2)
    assert both.terminated and both.truncated
    np.testing.assert_array_equal(ended.observations, [[1], [1], [2]])


@pytest.mark.parametrize(
    ("name", "limit", "length", "terminated", "known"),
    [
        ("Unlimited", None, 1000, False, 1000),
        ("Long", None, 1000, False, 1000),
        ("Long", 0, 1200, True, None),
        ("Long", 1100, 1100, False, 1100),
        ("Endless", 0, 7, False, 7),  # its own
    ],
)
def test_an_episode_without_a_limit_is_cut_and_not_ended(name, limit, length, terminated, known):
    env_id = environment_id(name)
    (episode,) = collect(env_id, [0], max_episode_steps=limit)
    assert episode.length == length
    assert (episode.terminated, episode.truncated) == (terminated, not terminated)
    _, spec = describe(Environment(env_id, limit))
    assert spec.time_limit == known
    assert spec.note.count("has no time limit that Gymnasium knows") == (limit is None)


def test_discrete_observations_and_shifted_actions():
    spec = described(environment_id("DiscreteObservation"))
    assert (spec.observation_dim, spec.action_dim, spec.continuous) == (3, 2, False)
    (episode,) = collect(environment_id("DiscreteObservation"), [0])
    np.testing.assert_array_equal(
        episode.observations, [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    )
    assert set(episode.actions) <= {0, 1} and set(episode.rewards) <= {5.0, 6.0}


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("Raise", "simulator", "the robot fell over"),
        ("NanObservation", "invalid", "observation: step returned NaN"),
        ("NanReward", "invalid", "reward: step returned NaN"),
        ("Infinity", "invalid", "observation: step returned NaN or infinity"),
        ("Shape", "invalid", r"observation: step returned shape \(2,\)"),
        ("Text", "invalid", "step returned 'much'"),
    ],
)
def test_faults_name_environment_episode_and_step(fault, kind, words):
    env_id = environment_id(f"{fault}Fault")
    failure = collect(env_id, [6, 7], snapshot=random_snapshot(1, 2, False))
    assert isinstance(failure, CollectFailure)
    assert failure.kind == kind
    assert (failure.env_id, failure.iteration, failure.index, failure.step) == (env_id, 2, 6, 2)
    assert failure.seed == reset_seed(3, 2, 6)
    assert re.search(words, str(failure))
    if fault == "Raise":
        assert "in step" in failure.traceback and "environments.py" in failure.traceback


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("WrongPicture", r"observation: step returned shape \(3, 2\)"),
        ("Ragged", "observation: step returned"),
        ("Undecided", "terminated: step returned"),
        ("Outside", r"observation: step returned -1 is outside of Discrete\(3\)"),
    ],
)
def test_what_is_no_observation_is_refused_at_its_step(name, words):
    failure = collect(environment_id(name), [6])
    assert failure.kind == "invalid" and re.search(words, failure.message)
    assert (failure.index, failure.step) == (6, 0)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("Missing", r"observation: step returned 'goal' is missing; it has \['arm'\]"),
        ("Below", r"observation\['goal'\]: step returned -2 is outside of Discrete"),
        ("Above", r"observation\['goal'\]: step returned 2 is outside"),
        ("Float", r"observation\['goal'\]: step returned 0.5: float64 instead of integers"),
        ("List", r"observation: step returned \[1, 2\] where a dictionary with 'arm'"),
        ("Short", r"observation\['arm'\]: step returned 2 is missing; it has 2 entries"),
        ("Nan", r"observation\['arm'\]\[0\]: step returned NaN or infinity"),
        ("Shape", r"observation\['arm'\]\[0\]: step returned shape \(4,\).*\(2, 2\)"),
        ("Bits", r"observation\['arm'\]\[1\]: step returned \[1, 2, 1\] is not of 0 and 1"),
        ("Mode", r"observation\['arm'\]\[2\]\['mode'\]: step returned \[., 8\] is outside"),
        ("Text", r"observation\['arm'\]\[2\]\['mode'\]: step returned shape \(\)"),
    ],
)
def test_a_fault_in_a_structured_observation_names_the_part(fault, words):
    snapshot = snapshot_for(described(environment_id("Structured")))
    columns = columns_of(environment_id("Structured"))
    failure = collect(environment_id(f"{fault}Broken"), [6], snapshot, columns=columns)
    assert failure.kind == "invalid" and (failure.index, failure.step) == (6, 1)
    assert re.search(words, failure.message), failure.message


def test_columns_that_nobody_has_are_refused():
    fitting = columns_of("CartPole-v1")
    for wrong in (
        Column("pictures", "uint8", (3,), per_observation=True),
        Column("actions", "float32", (2,), per_observation=False),
        Column("rewards", "float64", (), per_observation=True),
        Column("reward_parts", "float64", (2,), per_observation=False),
    ):
        failure = collect("CartPole-v1", [0], columns=(*fitting[:1], wrong))
        assert failure.kind == "garbled" and f"column {wrong.name!r}: " in failure.message
    failure = collect("CartPole-v1", [0], random_snapshot(3, 2, False))
    assert failure.kind == "garbled" and "3 numbers, and these have 4" in failure.message


def test_a_reward_in_an_array_of_one_number_is_that_number_and_said():
    numbers = collect(environment_id("ActionReward"), range(9))
    with pytest.warns(UserWarning, match=r"shape \(1,\), which is taken for its number"):
        arrays = collect(environment_id("ArrayReward"), range(9))
    rewards = [each.columns["rewards"].tolist() for each in (numbers, arrays)]
    assert rewards[0] == rewards[1] and 0 < sum(rewards[0]) < 9


def test_other_weights_than_asked_for_are_refused():
    failure = collect("CartPole-v1", [0], random_snapshot(4, 2, False, version=1), version=2)
    assert failure.kind == "stale" and "version 2" in failure.message


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("HalfCheeta-v5", "HalfCheetah-v5"),
        ("cartpol", "CartPole-v1"),
        ("no_such_module:Thing-v0", "no_such_module.*not found"),
        (environment_id("Absent"), "unknown environment"),
        (environment_id("Nothing"), r"observation space.*\(0,\)"),
        (":CartPole-v1", "module"),
        ("tests/environments.py:Catch-v0", r"without \.py.*: tests\.environments:Catch-v0$"),
        ("./my_env.py", r"without \.py.*: my_env:Mine-v0$"),
        ("tests.environments:OfGym-v0", "API of Gymnasium.*gym before 0.26.*shimmy"),
        ("phys2d/CartPole-v1", "needs the package (jax|flax), which is not installed; it is"),
        (
            environment_id("TextObservation"),
            r"observation\['said'\]: a space of the kind Text, in Dict.*--observe a .*wrapper",
        ),
        (environment_id("SequenceObservation"), r"observation space.*Sequence"),
        (environment_id("GraphObservation"), r"observation\[1\]: .*Graph, in Tuple"),
        (environment_id("EmptyObservation"), r"observation space.*it is empty"),
        (environment_id("DictActions"), r"action space.*Dict\(.*TransformAction"),
        (
            environment_id("TupleActions"),
            r"action space.*on\(env, tuple, MultiDiscrete\(\[2, 3\]\)\)",
        ),
        (environment_id("ABillionActions"), r"action space.*: 1,000,000,000 numbers or choices"),
        (environment_id("WithoutSpaces"), "has no observation_space; set it in __init__"),
        (environment_id("IntegerActions"), r"action space.*Box.*int64.*MultiDiscrete has integers"),
        (environment_id("TableOfRewards"), r"reward space of .*TableOfRewards.* shape \(K,\)"),
        ("nowhere:Thing-v0", "module 'nowhere'"),
        ("unheard-of-treasure-v0", rf"^unknown environment unheard-of-treasure-v0: .*{PACKAGES}"),
        ("nowhere/Treasure-v0", rf"^unknown environment nowhere/Treasure-v0: .*{PACKAGES}"),
    ],
)
def test_environments_that_cannot_be_used(env_id, words):
    with pytest.raises(SimulatorError, match=words) as caught:
        described(env_id)
    assert caught.value.kind == "environment"


@pytest.mark.parametrize(
    ("env_id", "package", "remedy"),
    [
        ("LunarLander-v3", "Box2D", "`uv run --group box2d main.py …`"),
        ("ALE/Pong-v5", "ale_py", "`uv run --group atari main.py --env ale_py:ALE/Pong-v5 …`"),
        ("MinAtar/Breakout-v1", "minatar", "`uv run --group minatar main.py --env minatar.gym"),
        ("ale_py:ALE/Pong-v5", "ale_py", "`uv run --group atari main.py …`"),
        ("needy_env:Mine-v0", "minatar", "`uv run --group minatar main.py …`"),
        ("needy_env:Mine-v0", "no_such_engine", "`uv add PACKAGE`"),
    ],
)
def test_a_missing_package_is_named_with_what_installs_it(
    env_id, package, remedy, tmp_path, monkeypatch
):
    (tmp_path / "needy_env.py").write_text(f"import {package}.parts\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "needy_env", raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(SimulatorError) as caught:
        described(env_id)
    assert caught.value.kind == "environment" and not caught.value.cause
    assert f"{env_id} needs the package {package}, which is not" in str(caught.value)
    # Not what Gymnasium would have people install.
    assert remedy in str(caught.value)
    assert "pip" not in str(caught.value).replace("`pip install 'flame-rl[", "")
    assert "needy_env" not in env_id or "needy_env.py, line 1" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("FourValues", "step: ValueError: not enough values to unpack (expected 5, got 4)"),
        ("WithoutReturn", "step: TypeError: cannot unpack non-iterable NoneType object"),
        ("BarePair", "reset: it returned array([0., 0.], dtype=float32)"),
        ("WithoutSeed", "reset: TypeError: WithoutSeed.reset() got an unexpected keyword argument"),
    ],
)
@pytest.mark.parametrize("limit", [None, 5])  # with Gymnasium's TimeLimit around it, too
def test_an_environment_of_another_api_is_told_so_at_once(name, what, limit):
    # Of a policy that nobody needs to describe the environment for, which would say so, too.
    snapshot = random_snapshot(1 + (name == "BarePair"), 2, False)
    failure = collect(environment_id(name), snapshot=snapshot, max_episode_steps=limit)
    # Of this kind there is no second attempt.
    assert failure.kind == "environment" and what in failure.message
    for words in ("API of Gymnasium", "gym before 0.26", "observation, info", "shimmy"):
        assert words in failure.message
    assert not failure.traceback


def test_one_environment_does_not_play_two_episodes_at_a_time():
    alone = collect(environment_id("OnlyOne"), [0])
    assert len(alone) == 1
    failure = collect(environment_id("OnlyOne"), [0, 1])
    assert failure.kind == "environment"
    assert "returned the same environment twice" in failure.message


def test_an_action_of_no_axis_reaches_the_environment_as_a_number():
    episodes = collect(environment_id("ScalarAction"), range(9))
    actions, rewards = episodes.columns["actions"], episodes.columns["rewards"]
    assert actions.shape == (9, 1)
    np.testing.assert_allclose(rewards, np.clip(2 * actions[:, 0], -2, 2), rtol=1e-6)


def test_mujoco_leaves_no_log_and_no_warning(tmp_path):
    code = "from flame_rl.actor.environments import making; from flame_rl.wire import messages; "
    code += "making.make_environment(messages.Environment('HalfCheetah-v5'))"
    done = run_anew("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
