"""Gymnasium environments, one per slot: works with any of them, and checks what they return."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.actor.environments.actions import action_converter
from flame_rl.actor.environments.making import another, make_environment, reward_shape
from flame_rl.actor.environments.observations import parts_of
from flame_rl.actor.failure import is_interrupt
from flame_rl.actor.simulators.protocol import rows_of
from flame_rl.actor.simulators.returned import raised, take_observation, take_outcome, take_parts
from flame_rl.wire.messages import Environment
from flame_rl.wire.steps import observation_dtype

# One forward pass serves all slots; with more, the environments outgrow the processor's cache.
PLAIN_SLOTS = 32


class PlainSimulator:
    """A Gymnasium environment per slot, stepped one after another. See `Simulator`."""

    def __init__(self, environment: Environment, render_mode: str | None = None) -> None:
        """
        Args:
            environment: which environment to make; its `simulator` is ignored.
            render_mode: Gymnasium's, to show or film episodes; None: neither.
        """
        self.slots, self.agents = PLAIN_SLOTS, 1
        self._make = lambda: make_environment(
            environment.env_id, environment.max_episode_steps, render_mode
        )
        self._envs = [self._make()]
        self._observation_space = space = self._envs[0].observation_space
        self._to_environment = action_converter(self._envs[0].action_space)
        self._parts = parts_of(space)
        dtype = observation_dtype(space)
        self.observations = np.zeros((self.slots, self._parts[-1].stop), dtype)
        self.rewards = np.zeros((self.slots, *reward_shape(self._envs[0])), np.float64)
        self._part_names = environment.reward_parts
        self.reward_parts = np.zeros((self.slots, len(self._part_names)), np.float64)
        self.terminated = np.zeros(self.slots, bool)
        self.truncated = np.zeros(self.slots, bool)
        # float64 observations are converted to float32 for all slots together: one by one takes a
        # tenth of a fast environment's step.
        self._raw = self.observations
        if space.dtype == np.float64:
            self._raw = np.zeros(self.observations.shape, np.float64)
        # `_raw` in the shape of the space, where that is a Box: `step` writes these unflattened.
        box = isinstance(space, spaces.Box)
        self._raw_by_shape = self._raw.reshape(self.slots, *space.shape) if box else None

    def reset(self, slots: np.ndarray, seeds: np.ndarray) -> None:
        for slot, seed in zip(slots.tolist(), seeds.tolist(), strict=True):
            while len(self._envs) <= slot:
                self._envs.append(another(self._make, self._envs[0]))
            try:
                observation, _ = self._envs[slot].reset(seed=seed)
            except BaseException as error:  # SystemExit, too
                if is_interrupt(error):
                    raise
                raise raised("reset", error, slot) from error
            take_observation(self._parts, observation, self._raw[slot], "reset", slot)
        self._convert(slots)

    def step(self, actions: np.ndarray, slots: np.ndarray) -> None:
        chosen = self._to_environment(actions)
        rows = rows_of(slots)
        self.terminated[rows] = False
        self.truncated[rows] = False
        promised, raw, rewards = self._observation_space, self._raw_by_shape, self.rewards
        dtype, shape = promised.dtype, promised.shape
        is_box = raw is not None
        is_number = rewards.ndim == 1
        envs = self._envs
        for slot in slots.tolist():
            try:
                observation, reward, terminated, truncated, info = envs[slot].step(chosen[slot])
            except BaseException as error:  # SystemExit, too
                if is_interrupt(error):
                    raise
                raise raised("step", error, slot) from error
            if (
                is_box
                and type(observation) is np.ndarray
                and observation.dtype is dtype
                and observation.shape == shape
            ):
                raw[slot] = observation
            else:
                take_observation(self._parts, observation, self._raw[slot], "step", slot)
            if (
                is_number
                and isinstance(reward, float)
                and terminated is False
                and truncated is False
            ):
                rewards[slot] = reward
            else:
                take_outcome(self, slot, reward, terminated, truncated)
            if self._part_names:
                take_parts(self, slot, self._part_names, info)
        self._convert(slots)

    @property
    def first(self) -> gymnasium.Env:
        """The environment in slot 0, to render or inspect."""
        return self._envs[0]

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _convert(self, slots: np.ndarray) -> None:
        if self._raw is self.observations:
            return
        rows = rows_of(slots)
        # A value beyond float32 becomes infinite here and is reported as such later.
        with np.errstate(over="ignore"):
            self.observations[rows] = self._raw[rows]
