"""Environments with masks of allowed actions, which raise an exception at what a mask forbids.

Where MASKED_DIES names a file that does not exist, one process dies in an episode and makes it.
"""

import os

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.environments import CHECKED, first_time, happen

STEPS = 6


class Masked(gymnasium.Env):
    """The greatest allowed choice of each factor pays 1 divided by the number of factors.

    What is allowed changes at every step, at random, and is not observed.
    """

    observation_space = spaces.Box(0, STEPS, (2,), np.float32)
    counts: tuple[int, ...]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.dies = 0, seed not in CHECKED and os.environ.get("MASKED_DIES")
        self.draw()
        return self.seen(), self.info()

    def step(self, action):
        chosen = np.ravel(action).tolist()
        for choice, allowed in zip(chosen, self.allowed, strict=True):
            if not allowed[choice]:
                raise ValueError(f"action {chosen} is forbidden")
        if self.dies and self.t == 3 and first_time(self.dies):
            happen("kill")
        best = [np.flatnonzero(allowed)[-1] for allowed in self.allowed]
        reward = float(np.mean([a == b for a, b in zip(chosen, best, strict=True)]))
        self.t += 1
        self.draw()
        return self.seen(), reward, self.t == STEPS, False, self.info()

    def draw(self):
        self.allowed = []
        for count in self.counts:
            some = self.np_random.random(count) < 0.5
            some[self.np_random.integers(count)] = True
            self.allowed.append(some)

    def seen(self):
        return np.array([1, self.t], np.float32)

    def info(self):
        return {"action_mask": self.mask()}


class Choice(Masked):
    """One choice of five, as Gymnasium's Taxi gives its mask."""

    counts = (5,)
    action_space = spaces.Discrete(5)

    def mask(self):
        return self.allowed[0].astype(np.int8)


class Beside(Choice):
    """The mask is beside the observation, as in PettingZoo; at the end it allows nothing."""

    observation_space = spaces.Dict(
        observation=Masked.observation_space, action_mask=spaces.Box(0, 1, (5,), np.int8)
    )

    def seen(self):
        mask = self.mask() * np.int8(self.t < STEPS)
        return {"observation": super().seen(), "action_mask": mask}

    def info(self):
        return {}


class Keyed(Choice):
    """The mask is beside the observation under another name, as float32."""

    observation_space = spaces.Dict(
        observations=Masked.observation_space, action_mask=spaces.Box(0, 1, (5,), np.float32)
    )

    def seen(self):
        return {"observations": super().seen(), "action_mask": self.mask().astype(np.float32)}

    def info(self):
        return {}


class Method(Choice):
    """A method returns the mask, as in sb3-contrib's environments; at an end there is none."""

    def action_masks(self):
        assert self.t < STEPS
        return self.allowed[0]

    def info(self):
        return {}


class Cut(gymnasium.Env):
    """The first of three choices is allowed; `limit` steps truncate it, or `terminates` ends it,
    with `last` as the mask."""

    observation_space, action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(3)

    def __init__(self, last=None, terminates=False):
        self.last, self.terminates = last, terminates

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {"action_mask": np.array([1, 0, 0], np.int8)}

    def step(self, action):
        self.t += 1
        mask = self.last if self.t == 3 else (1, 0, 0)
        info = {} if mask is None else {"action_mask": np.array(mask, np.int8)}
        ended = self.t == 3
        outcome = (ended and self.terminates, ended and not self.terminates)
        return np.full(1, self.t, np.float32), 0.0, *outcome, info


class Choices(Masked):
    """Three choices at once; a tuple of masks, as `MultiDiscrete.sample` takes it."""

    counts = (3, 2, 9)
    action_space = spaces.MultiDiscrete([3, 2, 9])

    def mask(self):
        return tuple(allowed.astype(np.int8) for allowed in self.allowed)


class Bits(Masked):
    """Three bits; a number for each, as `MultiBinary.sample` takes it: 2 allows both."""

    counts = (2, 2, 2)
    action_space = spaces.MultiBinary(3)

    def mask(self):
        numbers = [2 if allowed.all() else int(allowed[1]) for allowed in self.allowed]
        return np.array(numbers, np.int8)


for _kind in (Choice, Beside, Keyed, Method, Cut, Choices, Bits):
    gymnasium.register(f"Masked{_kind.__name__}-v0", entry_point=_kind)
