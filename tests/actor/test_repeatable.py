"""Environments whose episodes differ for the same seed and actions are found at a run's start."""

import os
import random
import signal
import sys
import time
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from flame_rl.actor.simulators.choose import describe
from flame_rl.wire.messages import Environment
from tests.agents import relay_v0
from tests.environments import ONE, Base, Wandering
from tests.helpers import environment_id, run_here, run_ok

HERE = "tests.actor.test_repeatable"


class Counter(Base):
    """Observes how many episodes the object has played."""

    horizon = 3
    played = 0

    def first_observation(self):
        self.played += 1
        return ONE * self.played


class Shared(Counter):
    """Observes how many episodes all objects have played."""

    objects: ClassVar[list[int]] = []

    def first_observation(self):
        self.objects.append(1)
        return ONE * len(self.objects)


class Born(Base):
    """Draws in its constructor what its episodes are like."""

    def __init__(self) -> None:
        self.height = np.random.random()

    def reward(self, action) -> float:
        return self.height


class Global(Base):
    """Draws from a generator that its reset seeds, and that its neighbours draw from, too."""

    horizon = 3

    def reset(self, *, seed=None, options=None):
        random.seed(seed)
        return super().reset(seed=seed)

    def reward(self, action) -> float:
        return random.random()


class SeededAlone(Global):
    """Draws from a global generator in `reset` alone, just after seeding it: no neighbour can be in
    between."""

    def first_observation(self):
        return ONE * random.random()

    def reward(self, action) -> float:
        return 1.0


class Patient(Base):
    def __init__(self, note: str = "") -> None:
        time.sleep(0.6)


class Tally(Base):
    """Its class counts the steps of all objects, without effect."""

    horizon = 50
    steps: ClassVar[list[int]] = []

    def __init__(self) -> None:
        breakpoint()

    def reward(self, action) -> float:
        self.steps.append(1)
        return 1.0


REWARDS = {
    "Unseeded": lambda env, action: float(np.random.default_rng().random()),
    "Numpys": lambda env, action: float(np.random.random()),
    "Dies": lambda env, action: signal.raise_signal(signal.SIGKILL),
}


class Identified(Base):
    """Observes a number that float32 does not hold beside one that it does."""

    observation_space = gymnasium.spaces.Dict(
        near=gymnasium.spaces.Box(0, 1 << 40, (1,), np.int64),
        number=gymnasium.spaces.Box(0, 1 << 40, (1,), np.int64),
    )

    def first_observation(self):
        return {"near": np.array([3]), "number": np.array([(1 << 24) + 1])}

    next_observation = first_observation


class Clock(Base):
    """Observes seconds since 1970."""

    observation_space = gymnasium.spaces.Box(0, 1 << 40, (1,), np.float64)
    horizon = 3

    def first_observation(self):
        return np.array([1.7e9 + self.t])

    next_observation = first_observation


class ClockBeside(Clock):
    """Observes them beside another number."""

    observation_space = gymnasium.spaces.Dict(
        angle=gymnasium.spaces.Box(-1, 1, (1,), np.float32), clock=Clock.observation_space
    )

    def first_observation(self):
        return {"angle": np.ones(1, np.float32), "clock": super().first_observation()}

    next_observation = first_observation


KINDS = [Identified, Clock, ClockBeside, Counter, Shared, Born, Global, SeededAlone, Patient, Tally]
KINDS += [type(name, (Base,), {"horizon": 3, "reward": f}) for name, f in REWARDS.items()]
for kind in KINDS:
    gymnasium.register(f"{kind.__name__}-v0", kind, max_episode_steps=100)
NORMALIZED = {
    "Reward": lambda: NormalizeReward(Wandering()),
    "Observation": lambda: gymnasium.wrappers.ClipReward(NormalizeObservation(Wandering()), -1, 1),
}
for name, make in NORMALIZED.items():
    gymnasium.register(f"Normalized{name}-v0", make, max_episode_steps=100)


@pytest.mark.parametrize(
    ("name", "where", "cause"),
    [
        ("Counter", "observations differ from reset on in a second", "Counter has state that surv"),
        ("Shared", "observations differ from reset on in a second", "or its objects share state"),
        ("Unseeded", "rewards differ from step 1 on", "Unseeded draws random numbers that reset("),
        ("Born", "in another object", "the constructor of Born draws random numbers, from np."),
        ("Global", "rewards differ from step 1 on in another", "draws from random, which all env"),
        ("Numpys", "rewards differ from step 1 on in a second", "draws from np.random, which all"),
        ("NormalizedReward", "rewards differ from step", "NormalizeReward or Wandering has state"),
        (
            "NormalizedObservation",
            "observations differ from reset on",
            "ClipReward or NormalizeObservation or Wandering has state that survives reset",
        ),
    ],
)
def test_what_does_not_repeat_itself_is_named_with_its_cause(name, where, cause):
    _, spec = describe(Environment(f"{HERE}:{name}-v0"))
    assert f"{name}-v0 does not repeat itself" in spec.differs
    assert where in spec.differs and cause in spec.differs


def test_a_difference_of_several_agents_is_found(monkeypatch):
    class Tired(relay_v0.Relay):
        def _observations(self):
            seen = super()._observations()
            return {agent: np.minimum(row + self.resets - 1, 2) for agent, row in seen.items()}

    monkeypatch.setattr(relay_v0, "parallel_env", Tired)
    _, spec = describe(Environment("tests.agents.relay_v0"))
    assert "observations differ from reset on" in spec.differs
    assert "Tired has state that survives reset" in spec.differs


@pytest.mark.parametrize(
    "env_id",
    [
        "CartPole-v1",
        "Pendulum-v1",
        "Blackjack-v1",
        "HalfCheetah-v5",
        "tests.agents.relay_v0",
        "tests.agents.turns_v0",
        f"{HERE}:SeededAlone-v0",
        *map(environment_id, ("Wandering", "Structured", "Switches", "BooleanCatch", "TwoRewards")),
    ],
)
def test_what_repeats_itself_is_left_alone(env_id):
    _, spec = describe(Environment(env_id))
    assert spec.differs == "" and "repeats itself" not in spec.note


def test_integers_that_float32_does_not_hold_are_named():
    _, spec = describe(Environment(f"{HERE}:Identified-v0"))
    assert "observation['number']: integers up to 16,777,216 are rounded to float32" in spec.note


@pytest.mark.parametrize(("kind", "name"), [("Clock", ""), ("ClockBeside", "['clock']")])
def test_a_number_whose_steps_float32_loses_is_named(kind, name):
    _, spec = describe(Environment(f"{HERE}:{kind}-v0"))
    assert f"observation{name}[0]: numbers up to 1,700,000,00" in spec.note
    assert "in which most of their steps are lost; take an offset away" in spec.note


def test_it_leaves_no_trace_where_the_environment_is_played(tmp_path, monkeypatch):
    stopped = tmp_path / "stopped"

    def debugger() -> None:
        with stopped.open("a") as file:
            file.write(f"{os.getpid()} ")

    monkeypatch.setattr(sys, "breakpointhook", debugger)
    describe(Environment(f"{HERE}:Tally-v0"))
    assert not Tally.steps
    assert stopped.read_text() == f"{os.getpid()} "


@pytest.mark.parametrize("name", ["Dies", "RaiseFault", "ExitFault"])
def test_an_environment_that_fails_is_left_to_the_run(name):
    env_id = f"{HERE}:Dies-v0" if name == "Dies" else environment_id(name)
    _, spec = describe(Environment(env_id))
    assert spec.differs == "" and "repeats itself" not in spec.note


def test_a_slow_environment_is_not_checked_and_says_so():
    kwargs = {"env_kwargs": ('note="two words"',), "wrapper": ("gymnasium:Wrapper",)}
    _, spec = describe(Environment(f"{HERE}:Patient-v0", **kwargs))
    assert spec.differs == ""
    assert spec.note.startswith(f"Whether {HERE}:Patient-v0 repeats itself is not checked: an obj")
    assert "The command check takes the time" in spec.note


@pytest.mark.parametrize(
    ("workers", "env_id", "differs"),
    [
        ("0", f"{HERE}:Counter-v0", "does not repeat itself"),
        ("1", "tests.tools.test_checking:OneWorld-v0", "gives another episode while another obj"),
    ],
)
def test_a_run_warns_of_it_and_a_strict_one_does_not_begin(workers, env_id, differs, tmp_path):
    flags = ("--env", env_id, "--local", "--workers", workers)
    flags = (*flags, "--iterations", "1", "--episodes-per-iter", "2", "--output", "run")
    refused = run_here(*flags, "--strict", cwd=tmp_path)
    assert refused.returncode == 2 and not (tmp_path / "run").exists()
    assert refused.stderr.startswith(f"error: --strict: {env_id} {differs}")
    assert f"`uv run main.py check --env {env_id}` says more" in refused.stderr
    done = run_ok(*flags, cwd=tmp_path)
    assert f"warning: {env_id} {differs}" in done.stderr
