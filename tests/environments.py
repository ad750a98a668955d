"""Tiny environments whose answers are known, and ones that misbehave."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

ONE = np.ones(1, np.float32)


class Base(gymnasium.Env):
    """One number observed, two actions, ends after `horizon` steps."""

    observation_space: spaces.Space = spaces.Box(-10, 10, (1,), np.float32)
    action_space: spaces.Space = spaces.Discrete(2)
    horizon = 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.observation = self.first_observation()
        return self.observation, {}

    def step(self, action):
        reward = self.reward(action)
        self.t += 1
        self.observation = self.next_observation()
        return self.observation, reward, self.t >= self.horizon, False, {}

    def first_observation(self):
        return ONE

    def next_observation(self):
        return ONE

    def reward(self, action) -> float:
        return 1.0


class ActionReward(Base):
    """Action 1 pays."""

    def reward(self, action) -> float:
        return float(action == 1)


class ObservationAction(Base):
    """The action that names the sign of the observation pays."""

    horizon = 4

    def first_observation(self):
        return np.where(self.np_random.random(1) < 0.5, -1.0, 1.0).astype(np.float32)

    next_observation = first_observation

    def reward(self, action) -> float:
        return float((self.observation[0] > 0) == (action == 1))


class DelayedReward(Base):
    """The first of two actions decides about the reward of the second step."""

    horizon = 2

    def next_observation(self):
        return ONE * self.t

    def reward(self, action) -> float:
        if self.t == 0:
            self.chosen = action
            return 0.0
        return float(self.chosen == 1)


class Target(Base):
    """A continuous action close to 0.2 pays; bounds of 1."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)
    horizon = 3

    def reward(self, action) -> float:
        assert self.action_space.contains(action), "an action outside the bounds"
        return -float((action[0] - 0.2) ** 2)


class Endless(Base):
    """1 per step for ever: only a time limit cuts it."""

    horizon = 1 << 60


class Chatty(Base):
    """Prints on standard output, where the worker's answers travel."""

    def reward(self, action) -> float:
        print("hello from the simulator")
        os.write(1, b"and from its C code\n")
        return 1.0


class Misbehaving(Base):
    """Does what the `fault` says, at step 2."""

    horizon = 5
    fault = ""

    def __init__(self, fault: str = "", marker: str = "") -> None:
        self.fault = fault
        self.marker = marker

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.t != 3 or (self.marker and Path(self.marker).exists()):
            return observation, reward, terminated, truncated, info
        if self.marker:
            Path(self.marker).touch()
        match self.fault:
            case "raise":
                raise RuntimeError("the robot fell over")
            case "nan-observation":
                observation = observation * np.nan
            case "nan-reward":
                reward = float("nan")
            case "infinity":
                observation = np.array([1e300])
            case "shape":
                observation = np.zeros(2, np.float32)
            case "text":
                reward = "much"
            case "hang":
                time.sleep(3600)
            case "exit":
                sys.exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                import ctypes

                ctypes.string_at(0)
        return observation, reward, terminated, truncated, info


class Slow(Base):
    """Takes real time."""

    horizon = 20

    def reward(self, action) -> float:
        time.sleep(0.01)
        return 1.0


class DictSpace(Base):
    observation_space = spaces.Dict({"a": spaces.Discrete(2)})


class MultiBinaryActions(Base):
    action_space = spaces.MultiBinary(3)


class DiscreteObservation(Base):
    """A number from 0 to 2 is observed; the actions are called 5 and 6."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2, start=5)
    horizon = 3

    def first_observation(self):
        return 0

    def next_observation(self):
        return self.t % 3

    def reward(self, action) -> float:
        assert action in (5, 6)
        return float(action)


class Picture(Base):
    """A two-dimensional observation."""

    observation_space = spaces.Box(-10, 10, (2, 3), np.float64)

    def first_observation(self):
        return np.arange(6.0).reshape(2, 3)

    next_observation = first_observation


def _register() -> None:
    classes = {
        cls.__name__: cls
        for cls in globals().values()
        if isinstance(cls, type) and issubclass(cls, Base) and cls is not Misbehaving
    }
    for name, cls in classes.items():
        limit = 7 if cls is Endless else None
        gymnasium.register(f"{name}-v0", entry_point=cls, max_episode_steps=limit)
    faults = "raise nan-observation nan-reward infinity shape text hang exit kill segfault"
    for fault in faults.split():
        name = "".join(part.title() for part in fault.split("-"))
        gymnasium.register(
            f"{name}Fault-v0",
            entry_point=Misbehaving,
            # With a marker file in the environment, the fault happens only once.
            kwargs={"fault": fault, "marker": os.environ.get("FAULT_MARKER", "")},
        )


_register()
