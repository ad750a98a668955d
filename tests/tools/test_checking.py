"""main.py check: what it finds out about environments whose faults and numbers are known."""

import fcntl
import functools
import json
import os
import re
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from flame_rl.settings.config import TrainConfig
from flame_rl.tools import checking
from flame_rl.tools.checking import Examined, examine, findings
from flame_rl.wire.messages import Environment
from tests.environments import ONE, Base
from tests.helpers import environment_id, refusal, run_here, run_main

HERE = "tests.tools.test_checking"
SECONDS = 0.2


class OneWorld(Base):
    """All objects move in one world, as those of a simulator with one connection do."""

    horizon = 8
    world: ClassVar[list[float]] = [0.0]

    def first_observation(self):
        self.world[0] = 0.0
        return ONE * 0

    def next_observation(self):
        self.world[0] += 1
        return ONE * self.world[0]


class Masked(Base):
    """One of three actions is allowed at first, two after a step, and all after two; another one is
    an error."""

    horizon = 3
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"action_mask": np.array([0, 1, 0], np.int8)}

    def step(self, action):
        assert action == 1 or (self.t and action == 2) or self.t == 2
        *returned, _ = super().step(action)
        allowed = {1: [0, 1, 1], 2: [1, 1, 1], 3: [1, 1, 1]}[self.t]
        return *returned, {"action_mask": np.array(allowed, np.int8), "place": self.t}


class MaskObserved(Base):
    """PettingZoo's form of a mask."""

    horizon = 3
    observation_space = spaces.Dict(
        {"observation": spaces.Box(-10, 10, (1,)), "action_mask": spaces.MultiBinary(2)}
    )

    def first_observation(self):
        return {"observation": ONE, "action_mask": np.array([1, 0], np.int8)}

    next_observation = first_observation


class MaskUnread(MaskObserved):
    """Its masks have names of their own."""

    observation_space = spaces.Dict(legal=spaces.MultiBinary(2), mask=spaces.Box(0, 1, (3,)))

    def first_observation(self):
        return {"legal": np.array([1, 0], np.int8), "mask": np.ones(3, np.float32)}

    next_observation = first_observation

    def step(self, action):
        *returned, _ = super().step(action)
        return *returned, {"valid_moves": np.ones(2), "valid": True}


class Alone(Base):
    """A second object cannot be made while one is open."""

    open: ClassVar[list[object]] = []

    def __init__(self) -> None:
        if self.open:
            raise OSError("the port is taken")
        self.open.append(self)

    def close(self) -> None:
        self.open.clear()


class Licensed(Base):
    """Takes a lock of the machine's where CHECK_LOCK says, which is freed when it is closed."""

    horizon, lock = 3, None

    def __init__(self) -> None:
        self.take("made")

    def reset(self, *, seed=None, options=None):
        self.take("reset")
        return super().reset(seed=seed)

    def take(self, place) -> None:
        wanted, path = os.environ["CHECK_LOCK"].split()
        if place == wanted and self.lock is None:
            lock = os.open(path, os.O_CREAT)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RuntimeError("the licence is taken") from None
            self.lock = lock

    def close(self) -> None:
        if self.lock is not None:
            os.close(self.lock)


class Brittle(Base):
    """Breaks where an action is at its bounds."""

    action_space = spaces.Box(-2, 2, (1,), np.float32)
    horizon = 5

    def reward(self, action) -> float:
        if abs(action[0]) == 2:
            raise ValueError("the motor burns")
        return 0.5


class Leaving(Base):
    def reward(self, action) -> float:
        os._exit(0)


class ThirdAlone(Base):
    """Pays less from its object's third episode on."""

    horizon = 3
    played = 0

    def first_observation(self):
        self.played += 1
        return ONE

    def reward(self, action) -> float:
        return float(self.played < 3)


class Forgetful(Base):
    """Its constructor opens what is not there."""

    def __init__(self) -> None:
        raise FileNotFoundError("robot.xml")


class Wordless(Base):
    """Refuses without a word what Gymnasium's checker gives it."""

    horizon = 3

    def reset(self, *, seed=None, options=None):
        if options is not None:
            raise AssertionError
        return super().reset(seed=seed)


class Guess(Base):
    """The number of fifty that it draws after each action pays 1."""

    horizon = 100
    action_space = spaces.Discrete(50)

    def reward(self, action) -> float:
        return float(action == self.np_random.integers(50))


class Doubles(Base):
    """Promises float32, and returns float64."""

    observation_space = spaces.Dict({"place": Base.observation_space})

    def first_observation(self):
        return {"place": np.ones(1)}

    next_observation = first_observation


KINDS = (OneWorld, Masked, MaskObserved, Alone, Brittle, Forgetful, Doubles, MaskUnread)
for kind in (*KINDS, Licensed, Wordless, Guess, Leaving, ThirdAlone):
    gymnasium.register(f"{kind.__name__}-v0", kind, max_episode_steps=100)


@functools.cache
def found(env_id: str) -> Examined:
    return examine(Environment(env_id), SECONDS)


def texts(examined: Examined, problem: bool) -> str:
    each = findings(examined, TrainConfig(env=examined.environment.env_id))
    return "\n".join(finding.text for finding in each if finding.problem == problem)


def test_what_is_measured_is_what_happens():
    # Until a hundred have ended, however slow other tests make it.
    played = examine(Environment(environment_id("TwoSteps")), 20.0).played
    for name, numbers in (
        ("returns", (100, 1, 0, 1, 1)),
        ("lengths", (100, 2, 0, 2, 2)),
        ("rewards", (200, 0.5, 0.5, 0, 1)),
    ):
        assert tuple(played[name].values()) == numbers
    counts = {"truncated": 0, "longest": 2, "observed": [0, 1]}
    assert {name: played[name] for name in counts} == counts


def test_a_sound_environment_has_nothing_in_its_way():
    examined = found("CartPole-v1")
    assert texts(examined, problem=True) == texts(examined, problem=False) == ""
    assert examined.layers == ["TimeLimit", "OrderEnforcing", "CartPoleEnv"]
    assert examined.package.startswith("gymnasium ") and examined.spec.action_mask == "none"
    assert examined.spec.time_limit == 500 and examined.making_seconds > 0


def test_a_world_that_objects_share_shows_only_side_by_side():
    examined = found(f"{HERE}:OneWorld-v0")
    assert examined.differs == ""
    assert "observations differ from step 2 on" in examined.beside
    assert "objects of OneWorld share state" in texts(examined, problem=True)
    assert "--slots 1" in examined.beside


@pytest.mark.parametrize(
    ("name", "place", "allowed"),
    [("Masked", "info", (1 + 2 + 3) / 9), ("MaskObserved", "observation", 0.5)],
)
def test_masks_are_found_where_they_are(name, place, allowed):
    examined = found(f"{HERE}:{name}-v0")
    assert examined.spec.action_mask == place
    # The last episode is cut off where the time is over.
    assert examined.played["allowed"] == pytest.approx(allowed, rel=0.02)
    assert texts(examined, problem=True) == ""
    assert "action_mask" in examined.info or place == "observation"


def test_random_actions_are_not_those_that_the_environment_draws():
    returns = found(f"{HERE}:Guess-v0").played["returns"]
    assert returns["most"] < 15  # of 100; 2 are expected


def test_several_agents_are_examined_too():
    examined = found("tests.agents.relay_v0")
    assert examined.spec.agents == ("first", "second") and examined.info == ["place"]
    assert [examined.played["lengths"][name] for name in ("least", "most")] == [2, 5]
    assert texts(examined, problem=True) == ""


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        (
            f"{HERE}:Brittle-v0",
            r"step raised ValueError: the motor burns \(.*test_checking.py, line",
        ),
        (environment_id("KillFault"), r"it ended its process \(SIGKILL\) while it was played"),
        (f"{HERE}:Leaving-v0", r"it ended its process \(exit code 0\) while it was played with"),
        (f"{HERE}:ThirdAlone-v0", "rewards differ from step 1 on in episode 3 of an object"),
        (environment_id("TwoRewards"), "--reward-weights: .* is a vector of 2 numbers"),
        (f"{HERE}:Alone-v0", "the port is taken.* --slots 1 makes no other"),
        ("tests.actor.test_masks:NothingWrong-v0", "action_mask: step .* which allows nothing"),
        (f"{HERE}:Forgetful-v0", "cannot be made: FileNotFoundError: robot.xml"),
        (environment_id("TextObservation"), r"observation\['said'\]: a space of the kind Text"),
        (environment_id("FourValues"), "does not have the API of Gymnasium"),
        (environment_id("NanRewardFault"), "reward: NaN or infinity, of step 3"),
        ("nowhere:Mine-v0", "module 'nowhere' of environment nowhere:Mine-v0 is not found"),
    ],
)
def test_what_fails_is_said_with_its_cause(env_id, words):
    examined = found(env_id)
    assert re.search(words, texts(examined, problem=True))


@pytest.mark.parametrize("place", ["made", "reset"])
def test_what_only_one_process_can_have_is_in_the_way_of_several(tmp_path, monkeypatch, place):
    """A lock of the whole machine, not of a process."""
    monkeypatch.setenv("CHECK_LOCK", f"{place} {tmp_path / 'lock'}")
    words = r"the licence is taken\. .* --workers 1 --slots 1 makes no other"
    flags = ("--env", f"{HERE}:Licensed-v0", "--seconds", "0.1", "--local")
    for more, code in (((), 1), (("--slots", "1"), 1), (("--slots", "1", "--workers", "1"), 0)):
        done = run_here("check", *flags, *more, "--json", cwd=tmp_path)
        problems = [each["text"] for each in json.loads(done.stdout)["findings"] if each["problem"]]
        assert (done.returncode, len(problems)) == (code, code), problems
        assert "--workers" not in more or not problems
        assert more != ("--slots", "1") or re.search(words, problems[0])
    # The learner has one, too.
    goals = ("--algorithm", "dqn", "--hindsight", "future", "--workers", "1", "--slots", "1")
    done = run_here("check", *flags, *goals, cwd=tmp_path)
    assert done.returncode == 1 and "the licence is taken" in " ".join(done.stdout.split())


def test_an_environment_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(checking, "_MORE_SECONDS", 1)
    words = "it hangs for more than 1 s while it was played with random actions"
    assert words in texts(found(environment_id("HangFault")), problem=True)


def test_a_thread_that_its_import_starts_is_there(tmp_path, monkeypatch):
    lines = (
        "import threading, gymnasium",
        "from tests.environments import Base",
        "asked, answered = threading.Semaphore(0), threading.Semaphore(0)",
        "def work():",
        "    while asked.acquire(): answered.release()",
        "threading.Thread(target=work, daemon=True).start()",
        "class Threaded(Base):",
        "    def reward(self, action):",
        "        asked.release()",
        "        return float(answered.acquire())",
        "gymnasium.register('Threaded-v0', Threaded, max_episode_steps=10)",
    )
    (tmp_path / "own_thread.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(checking, "_MORE_SECONDS", 20)
    examined = found("own_thread:Threaded-v0")
    assert texts(examined, problem=True) == "" and not examined.notes


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        (environment_id("LargeObservationAction"), r"1 of the numbers .* 100, observation\[0\]"),
        (environment_id("LargeObservationAction"), "--normalize-observations True where"),
        (environment_id("LargeObservationAction"), "no time limit; here episodes ended by step 4"),
        (environment_id("Unlimited"), "Gymnasium knows no time limit; here no episodes ended by"),
        ("tests.goals:Bits-v0", "with --hindsight future"),
        (
            f"{HERE}:Doubles-v0",
            r"observation\['place'\] is float64, .* float32: .* with \.astype\(np\.float32\)$",
        ),
        (f"{HERE}:Wordless-v0", r"Gymnasium: AssertionError \(.*test_checking\.py, line \d+\)"),
        (f"{HERE}:MaskUnread-v0", r"^observation\['legal'\] and info\['valid_moves'\]: if it"),
    ],
)
def test_what_is_worth_knowing_is_said_and_in_no_ones_way(env_id, words):
    examined = found(env_id)
    assert re.search(words, texts(examined, problem=False)) and texts(examined, problem=True) == ""


def played(**changes):
    spread = {"count": 5000, "mean": 0.5, "std": 0.5, "least": 0.0, "most": 1.0}
    values = {"reset_seconds": 0.001, "steps_per_second": 5000.0, "truncated": 0}
    values |= {"returns": spread, "lengths": spread, "longest": 500, "rewards": spread}
    return values | {"allowed": 1.0, "observed": [0.0, 1.0], "far": []} | changes


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ""),
        (
            {"played": played(rewards={"count": 5000, "least": 0.0, "most": 0.0})},
            "got no reward but 0 in 5,000 steps",
        ),
        (
            {"played": played(rewards={"count": 9, "least": -1000.0, "most": 1.0})},
            "a reward of 1,000 is far from 1: --reward-scale",
        ),
        ({"checker": ("minimum value is -infinity", "no seed")}, "Gymnasium: no seed"),
    ],
)
def test_what_was_measured_has_consequences(fields, words):
    values = {"played": played()} | fields
    advice = texts(Examined(Environment("Some-v0"), **values), problem=False)
    assert (words in advice) if words else not advice
    assert len(advice.splitlines()) <= 1


def test_the_command_prints_a_screen_or_a_line(tmp_path):
    flags = ("--env", f"{HERE}:OneWorld-v0", "--seconds", "0.1", "--max-episode-steps", "5")
    done = run_here("check", *flags, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) < 40 and max(map(len, lines)) <= 100
    assert lines[0] == f"{HERE}:OneWorld-v0" and "  time limit    5 steps" in lines
    assert "In the way:" in lines and "  repeats       no, see below" in lines
    done = run_here("check", *flags, "--json", cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert done.returncode == 1 and answer["played"]["longest"] == 5
    assert [each["topic"] for each in answer["findings"] if each["problem"]] == ["repeats"]
    assert not list(tmp_path.iterdir())
    chatty = ("--env", "tests.environments:Chatty-v0", "--seconds", "0.1", "--json")
    assert json.loads(run_main("check", *chatty, cwd=tmp_path).stdout)["played"]
    done = run_here("check", "--seconds", "0.1", "--wrapper", f"{HERE}:Nothing", cwd=tmp_path)
    assert done.returncode == 1 and "has no class or function 'Nothing'" in done.stdout
    assert "--env-kwargs: name=value" in refusal("check", "--env-kwargs", "a", cwd=tmp_path)
