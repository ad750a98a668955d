"""Several agents in one environment: collected against a plain loop over PettingZoo, and what is
refused."""

import builtins
import importlib
import sys
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("pettingzoo", reason="uv run --group agents pytest")

from flame_rl.actor.collect import BLOCK_STEPS, collect_episodes
from flame_rl.actor.environments import making
from flame_rl.actor.failure import SimulatorError
from flame_rl.actor.randomness import reset_seed
from flame_rl.actor.simulators.agents import has_agents
from flame_rl.actor.simulators.choose import choose_simulator, describe
from flame_rl.wire import codec
from flame_rl.wire.inputs import step_columns
from flame_rl.wire.messages import CollectFailure, Environment
from flame_rl.wire.packing import WireError
from tests.actor.oracle import assert_played_plainly
from tests.agents import ragged_v0, relay_v0, turns_v0
from tests.helpers import assert_same_episodes, plain, random_snapshot, request_for, snapshot_for

RELAY, RAGGED, TURNS = (f"tests.agents.{name}_v0" for name in ("relay", "ragged", "turns"))
SPREAD, WALKERS = "mpe2.simple_spread_v3", "pettingzoo.sisl.multiwalker_v9"


def game(env_id: str, limit: int | None = None, number: bool = False, **options):
    """The environment's simulator, a policy for it, and a function that makes requests."""
    environment = Environment(env_id, limit, "auto", options.pop("parts", ()), number)
    simulator, spec = describe(environment)
    columns = step_columns(spec, environment.reward_parts)
    snapshot = snapshot_for(spec, **options)

    def request(indices, **changes):
        made = request_for(env_id, indices, columns=columns, **changes)
        return replace(made, environment=environment, agents=spec.agent_count)

    return simulator, snapshot, request


def parallel(env_id: str):
    return importlib.import_module(env_id).parallel_env()


@pytest.mark.parametrize(("block_steps", "number"), [(1, False), (5, True), (BLOCK_STEPS, False)])
def test_agents_that_end_when_they_like_are_recorded_one_by_one(monkeypatch, block_steps, number):
    """More environments than slots, in short blocks too; in one slot, episodes follow each other
    while neighbours wait."""
    monkeypatch.setattr("flame_rl.actor.collect.BLOCK_STEPS", block_steps)
    simulator, snapshot, request = game(RAGGED, number=number)
    indices = list(range(25))
    assert len(indices) > simulator.slots // simulator.agents
    asked = request(indices)
    episodes = collect_episodes(snapshot, asked, simulator)
    assert len(set(episodes.lengths)) > 8
    assert_played_plainly(episodes, indices, parallel(RAGGED), snapshot, asked)


@pytest.mark.parametrize(
    ("env_id", "limit"), [(RELAY, None), (RELAY, 3), (RAGGED, 6), (SPREAD, 7), (WALKERS, 9)]
)
def test_equals_the_environment_one_step_at_a_time(env_id, limit):
    if not env_id.startswith("tests"):
        pytest.importorskip(env_id, reason="uv run --group agents pytest", exc_type=ImportError)
    simulator, snapshot, request = game(env_id, limit, number=env_id == SPREAD)
    # Of the quick ones so many that an environment plays twice.
    indices = [4, 0, 9, *(range(20, 36) if env_id.startswith("tests") else ())]
    asked = request(indices)
    episodes = collect_episodes(snapshot, asked, simulator)
    assert_played_plainly(episodes, indices, parallel(env_id), snapshot, asked)
    simulator.close()


@pytest.mark.parametrize(("limit", "known", "length"), [(None, 2, 2), (1, 1, 1), (0, None, None)])
def test_agents_without_a_time_limit_are_cut_by_default(limit, known, length, monkeypatch):
    monkeypatch.setattr(making, "DEFAULT_LIMIT", 2)
    _, spec = describe(Environment(TURNS, limit))
    assert spec.time_limit == known
    assert spec.note.count("has no time limit that Gymnasium knows") == (limit is None)
    simulator, snapshot, request = game(TURNS, limit)
    for episode in collect_episodes(snapshot, request(range(4)), simulator):
        assert episode.terminated == (length is None) != episode.truncated
        assert length is None or episode.length == length


def test_parts_of_the_reward_are_each_agents_own():
    simulator, snapshot, request = game(RAGGED, parts=("left",))
    for episode in collect_episodes(snapshot, request(range(12)), simulator):
        left = np.arange(episode.length)[::-1, None]
        assert episode.columns["reward_parts"].tolist() == left.tolist()


def test_turns_become_steps_of_all():
    """Out of turn, an action does nothing, and yet it is a step."""
    simulator, snapshot, request = game(TURNS)
    episodes = list(collect_episodes(snapshot, request(range(8)), simulator))
    for index in range(8):
        pair = episodes[2 * index], episodes[2 * index + 1]
        env = turns_v0.Turns()
        env.reset(seed=0)
        for turn in range(pair[0].length):
            mover = turn % 2
            assert [int(np.argmax(e.observations[turn])) for e in pair] == [env.count] * 2
            env.step(int(pair[mover].actions[turn]))
            assert [e.rewards[turn] for e in pair] == [env.rewards["a"], env.rewards["b"]]
        assert env.terminations == {"a": True, "b": True}
        assert all(e.terminated and not e.truncated for e in pair)
        assert len(pair[1].rewards) == len(pair[0].rewards)


def test_which_names_are_of_several_agents():
    for name in (WALKERS, SPREAD, RELAY, "pettingzoo.sisl.nothing_v1"):
        assert has_agents(name)
    for name in ("CartPole-v1", "cartpole", "CartPole_v1", "my_env:Mine-v0", "a.b:thing_v0", "x.y"):
        assert not has_agents(name)


def altered(**methods):
    """A relay of which these methods do something else."""
    return type("Altered", (relay_v0.Relay,), methods)


def stepping(alter):
    """A relay whose step returns what `alter` makes of it and of what it should return."""
    return altered(step=lambda env, actions: alter(env, *relay_v0.Relay.step(env, actions)))


def come_late(env, *returned):
    env.agents = ["first", *env.agents] if env.number == 3 else env.agents
    return returned


def lose_reward(env, observations, rewards, *others):
    if env.number == 4:
        del rewards["second"]
    return observations, rewards, *others


def raise_error(env, *returned):
    if env.number == 4:
        raise ValueError("on purpose")
    return returned


def return_nan(env, observations, *others):
    if env.number == 4:
        observations["second"] = np.array([1.0, np.nan])
    return observations, *others


def shorten(env, observations, *others):
    return {agent: row[:1] for agent, row in observations.items()}, *others


def first_alone(env, seed=None, options=None):
    observations, infos = relay_v0.Relay.reset(env, seed)
    return {"first": observations["first"]}, infos


def without_info(env, seed=None, options=None):
    """Observations alone, whose two names would do for two values."""
    return relay_v0.Relay.reset(env, seed)[0]


class Nobody(relay_v0.Relay):
    def __init__(self):
        super().__init__()
        self.possible_agents = []


OTHER_SPACE = altered(observation_space=lambda e, a: spaces.Box(0, 2, (2 + (a == "second"),)))
OTHER_ACTIONS = altered(action_space=lambda e, agent: spaces.Discrete(2 + (agent == "second")))
SPEAKING = altered(observation_space=lambda env, agent: spaces.Text(4))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            OTHER_SPACE,
            ["observation spaces", "first has Box(0.0, 2.0, (2,)", "second has Box", "(3,)"],
        ),
        (OTHER_ACTIONS, ["action spaces", "first has Discrete(2), second has Discrete(3)"]),
        (SPEAKING, ["cannot be learned", "Text"]),
        (Nobody, ["possible_agents names nobody"]),
        (lambda: 1 / 0, ["cannot be made: ZeroDivisionError"]),
    ],
)
def test_environments_that_cannot_be_used(monkeypatch, kind, words):
    monkeypatch.setattr(relay_v0, "parallel_env", kind)
    with pytest.raises(SimulatorError) as caught:
        describe(Environment(RELAY))
    assert caught.value.kind == "environment"
    assert RELAY in str(caught.value) and all(w in str(caught.value) for w in words), caught.value


@pytest.mark.parametrize(
    ("kind", "step", "failure", "words"),
    [
        (stepping(come_late), 2, "invalid", "after step, first plays, which ended before"),
        (altered(reset=first_alone), 0, "invalid", "reset returned no observation of second"),
        (stepping(lose_reward), 3, "invalid", "step returned no reward of second"),
        (stepping(raise_error), 3, "simulator", "step raised ValueError: on purpose"),
        (stepping(return_nan), 3, "invalid", "observation: step returned NaN or infinity"),
        (stepping(shorten), 0, "invalid", "observation: step returned shape (1,)"),
    ],
)
def test_what_an_environment_does_wrong_is_named(monkeypatch, kind, step, failure, words):
    monkeypatch.setattr(relay_v0, "parallel_env", kind)
    simulator, snapshot, request = game(RELAY)
    answer = collect_episodes(snapshot, request([6, 8]), simulator)
    assert isinstance(answer, CollectFailure)
    assert (answer.kind, answer.index, answer.step) == (failure, 6, step)
    assert answer.seed == reset_seed(3, 2, 6)
    assert words in answer.message


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (stepping(lambda env, *returned: returned[1:]), "step: ValueError: not enough values"),
        (altered(reset=without_info), "reset: it returned {'first'"),
    ],
)
def test_an_environment_of_another_api_is_told_so(monkeypatch, kind, words):
    monkeypatch.setattr(relay_v0, "parallel_env", kind)
    with pytest.raises(SimulatorError, match="the API of Gymnasium and PettingZoo: ") as caught:
        describe(Environment(RELAY))
    assert caught.value.kind == "environment" and words in str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("pettingzoo.sisl.multiwalkers_v9", "is not found; nearest names: multiwalker_v9"),
        ("pettingzoo.sisl.multiwalker_v8", "is not found; nearest names: multiwalker_v9"),
        ("pettingzoo.nothing.here_v1", "module 'pettingzoo.nothing' .* is not found"),
        ("no_such_module.thing_v0", "module 'no_such_module' .* is not found"),
        ("tests.agents.empty_v0", "has no function parallel_env, nor env"),
        ("tests.agents.single_v0", r"env\(\) returned a CartPoleEnv, which is no AECEnv"),
    ],
)
def test_names_that_lead_nowhere(monkeypatch, env_id, words):
    single = {"env": lambda: gymnasium.make("CartPole-v1").unwrapped}
    for name, content in (("empty", {}), ("single", single)):
        module = type(sys)(f"tests.agents.{name}_v0")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(SimulatorError, match=words) as caught:
        describe(Environment(env_id))
    assert caught.value.kind == "environment" and env_id in str(caught.value)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("pettingzoo", "needs the package pettingzoo, which is not installed"),
        ("pygame", "needs the package pygame, which is not installed"),
    ],
)
def test_a_missing_package_is_named_with_what_installs_it(monkeypatch, missing, words):
    real = builtins.__import__

    def imported(name, *arguments, **options):
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, RAGGED)
    monkeypatch.setattr(builtins, "__import__", imported)
    if missing == "pygame":
        monkeypatch.setattr(relay_v0, "parallel_env", lambda: __import__("pygame"))
    with pytest.raises(SimulatorError, match=words) as caught:
        describe(Environment(RAGGED if missing == "pettingzoo" else RELAY))
    assert "uv run --group agents main.py" in str(caught.value)


def test_flags_that_do_not_fit():
    with pytest.raises(SimulatorError, match=r"--agent-number: CartPole-v1 is .* one agent"):
        describe(Environment("CartPole-v1", agent_number=True))
    with pytest.raises(SimulatorError, match=r"--simulator fast is not possible.*several agents"):
        choose_simulator(Environment(RELAY, simulator="fast"))


def test_requests_and_answers_say_how_many_agents_play():
    simulator, snapshot, request = game(RELAY, number=True)
    asked = request([2, 5])
    assert codec.decode_request(codec.encode_request(asked)) == asked
    episodes = collect_episodes(snapshot, asked, simulator)
    answer = b"".join(codec.encode_result(episodes, asked))
    assert_same_episodes(codec.decode_result(answer, asked), episodes)
    for other in (replace(asked, agents=1), replace(asked, indices=(2, 6))):
        with pytest.raises(WireError, match="index: "):
            codec.decode_result(answer, other)
    for other in (replace(asked, agents=1), replace(asked, agents=3)):
        failure = collect_episodes(snapshot, other, simulator)
        assert failure.kind == "garbled" and "this environment has 2" in failure.message
    cart_pole = request_for("CartPole-v1", (0,))
    failure = collect_episodes(
        random_snapshot(4, 2, False), replace(cart_pole, agents=2), plain("CartPole-v1")
    )
    assert failure.kind == "garbled" and "2 agents are asked for" in failure.message


def test_more_agents_than_slots_play_one_environment_at_a_time(monkeypatch):
    """A block begins while most of them wait, and in it all begin anew."""
    monkeypatch.setattr("flame_rl.actor.collect.BLOCK_STEPS", 3)
    many = list(range(70))

    class Crowd(ragged_v0.Ragged):
        def __init__(self):
            self.possible_agents = many

        def reset(self, seed=None, options=None):
            self.random, _ = gymnasium.utils.seeding.np_random(seed)
            self.agents = list(many)
            self.lengths = {a: 1 + a % 4 for a in many}
            self.terminates = {a: a % 2 for a in many}
            self.sum, self.number = np.zeros(2), 0
            return self._observations(), {}

    monkeypatch.setattr(ragged_v0, "parallel_env", Crowd)
    simulator, snapshot, request = game(RAGGED)
    assert simulator.slots == len(many) and len(simulator.rewards) == 72
    asked = request([1, 5, 6])
    episodes = collect_episodes(snapshot, asked, simulator)
    assert_played_plainly(episodes, [1, 5, 6], Crowd(), snapshot, asked)
