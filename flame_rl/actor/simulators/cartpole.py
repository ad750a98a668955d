"""CartPole in vectorised NumPy: the same bits as Gymnasium's environment, for all slots at once.
Gymnasium's vector version is another one: it seeds all poles together and resets them by itself."""

import math

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from flame_rl.actor.simulators.simulator import Simulator, as_rows
from flame_rl.wire.inputs import observation_columns

SLOTS = 256

GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = 0.1 + 1.0
HALF_LENGTH = 0.5
POLE_MASS_LENGTH = POLE_MASS * HALF_LENGTH
FORCE = 10.0
SECONDS = 0.02
BOUND = 0.05  # a reset draws states from -BOUND to BOUND
MAX_POSITION = 2.4
MAX_ANGLE = 12 * 2 * math.pi / 360


class FastCartPole(Simulator):
    """`SLOTS` poles. The equations of motion are Florian's ("Correct equations for the dynamics of
    the cart-pole system", 2007) without friction, each operation in Gymnasium's order."""

    def __init__(self, env: gymnasium.Env, time_limit: int, reward_parts: tuple[str, ...]) -> None:
        """`env` is Gymnasium's environment, of which only the observation space is used, and
        `time_limit` the step at which an episode is truncated; no reward has parts."""
        super().__init__(SLOTS, observation_columns(env.observation_space), reward_parts)
        self.rewards[:] = 1  # every step pays 1, the last one too
        # Position, velocity, angle and angular velocity of each slot.
        self._state = np.zeros((4, SLOTS))
        self._steps = np.zeros(SLOTS, np.int64)
        self._limit = time_limit

    def reset(self, slots: np.ndarray, seeds: np.ndarray) -> None:
        for slot, seed in zip(slots.tolist(), seeds.tolist(), strict=True):
            generator, _ = seeding.np_random(seed)
            self._state[:, slot] = generator.uniform(-BOUND, BOUND, 4)
        self.observations[slots] = self._state[:, slots].T
        self._steps[slots] = 0

    def step(self, actions: np.ndarray, slots: np.ndarray) -> None:
        rows = as_rows(slots)
        state = self._state[:, rows]
        position, velocity, angle, rotation = state
        force = np.where(actions[rows] == 1, FORCE, -FORCE)
        cosine, sine = np.cos(angle), np.sin(angle)
        push = (force + POLE_MASS_LENGTH * np.square(rotation) * sine) / TOTAL_MASS
        angular = (GRAVITY * sine - cosine * push) / (
            HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * np.square(cosine) / TOTAL_MASS)
        )
        linear = push - POLE_MASS_LENGTH * angular * cosine / TOTAL_MASS
        position += SECONDS * velocity
        velocity += SECONDS * linear
        angle += SECONDS * rotation
        rotation += SECONDS * angular
        if not isinstance(rows, slice):  # then `state` is a copy
            self._state[:, rows] = state
        self.observations[rows] = state.T
        self.terminated[rows] = (np.abs(position) > MAX_POSITION) | (np.abs(angle) > MAX_ANGLE)
        self._steps[rows] += 1
        self.truncated[rows] = self._steps[rows] >= self._limit
