"""Environments that wait in real time, as a robot or a remote simulator does, and compute nothing.

It imports nothing from the other benchmarks, because it is sent to a cluster alone.
"""

from __future__ import annotations

import time

import gymnasium
import numpy as np

STEP_SECONDS = 0.02
# Steps per episode, by environment id.
STEPS = {"Robot-v0": 50, "Short-v0": 10}


class Waiting(gymnasium.Env):
    """An environment whose every step takes `STEP_SECONDS`; an episode has `steps` of them."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (8,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = self._steps
        return self._observe(), {}

    def step(self, action):
        time.sleep(STEP_SECONDS)
        self._left -= 1
        return self._observe(), 1.0, self._left == 0, False, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.standard_normal(8, np.float32)


for name, steps in STEPS.items():
    gymnasium.register(name, Waiting, kwargs={"steps": steps})
