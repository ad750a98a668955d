"""Gymnasium environments, one per slot: works for any of them. What they return is checked."""

from __future__ import annotations

import traceback

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.actor.environments.making import make_environment
from flame_rl.actor.failure import SimulatorError, summary
from flame_rl.actor.simulators.protocol import rows_of

# One forward pass serves all slots; more of them, and the environments leave the processor's cache.
PLAIN_SLOTS = 32


class PlainSimulator:
    """A Gymnasium environment per slot, one step at a time. See `Simulator`."""

    def __init__(
        self, env_id: str, max_episode_steps: int | None, render_mode: str | None = None
    ) -> None:
        self.slots = PLAIN_SLOTS
        self._make = lambda: make_environment(env_id, max_episode_steps, render_mode)
        self._envs = [self._make()]
        self._observation_space = self._envs[0].observation_space
        self._action_space = self._envs[0].action_space
        self._bounds: tuple[np.ndarray, np.ndarray] | None = None
        if isinstance(self._action_space, spaces.Box):
            self._bounds = self._action_space.low.ravel(), self._action_space.high.ravel()
        self.observations = np.zeros((self.slots, spaces.flatdim(self._observation_space)), "f4")
        self.rewards = np.zeros(self.slots, np.float64)
        self.terminated = np.zeros(self.slots, bool)
        self.truncated = np.zeros(self.slots, bool)
        # float64, of which the infinite and the merely large are told apart, is turned to float32
        # for all slots together: one by one takes a tenth of a fast environment's step.
        self._raw = self.observations
        if self._observation_space.dtype == np.float64:
            self._raw = np.zeros(self.observations.shape, np.float64)
        shape = self._observation_space.shape or self._raw.shape[1:]
        self._raw_by_shape = self._raw.reshape(self.slots, *shape)

    def expect(self, seeds: np.ndarray) -> None:
        pass

    def reset(self, slots: np.ndarray, seeds: np.ndarray) -> None:
        for slot, seed in zip(slots.tolist(), seeds.tolist(), strict=True):
            while len(self._envs) <= slot:
                self._envs.append(self._make())
            try:
                observation, _ = self._envs[slot].reset(seed=seed)
            except Exception as error:
                raise SimulatorError(
                    "simulator", f"reset raised {summary(error)}", slot, traceback.format_exc()
                ) from error
            self._write_observation(slot, observation, "reset")
        self._convert(slots)

    def step(self, actions: np.ndarray, slots: np.ndarray) -> None:
        space = self._action_space
        if self._bounds is not None:
            low, high = self._bounds
            # np.clip takes several times as long on so few numbers.
            batch = np.minimum(np.maximum(actions, low), high)
            chosen = batch.reshape(-1, *space.shape).astype(space.dtype, copy=False)
        else:
            chosen = (actions + space.start).tolist()
        rows = rows_of(slots)
        self.terminated[rows] = False
        self.truncated[rows] = False
        promised, raw, rewards = self._observation_space, self._raw_by_shape, self.rewards
        dtype, shape = promised.dtype, promised.shape
        usual = isinstance(promised, spaces.Box)
        envs = self._envs
        for slot in slots.tolist():
            try:
                observation, reward, terminated, truncated, _ = envs[slot].step(chosen[slot])
            except Exception as error:
                raise SimulatorError(
                    "simulator", f"step raised {summary(error)}", slot, traceback.format_exc()
                ) from error
            if (
                usual
                and type(observation) is np.ndarray
                and observation.dtype is dtype
                and observation.shape == shape
            ):
                raw[slot] = observation
            else:
                self._write_observation(slot, observation, "step")
            if isinstance(reward, float) and terminated is False and truncated is False:
                rewards[slot] = reward
            else:
                self._write_outcome(slot, reward, terminated, truncated)
        self._convert(slots)

    @property
    def first(self) -> gymnasium.Env:
        """The environment in slot 0, to look at."""
        return self._envs[0]

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _write_observation(self, slot: int, observation: object, source: str) -> None:
        space = self._observation_space
        try:
            array = np.asarray(observation)
            if array.shape != space.shape:
                raise SimulatorError(
                    "invalid",
                    f"observation: {source} returned shape {array.shape} where the observation "
                    f"space promises {space.shape}",
                    slot,
                )
            if array.dtype.kind not in "biuf":
                raise TypeError(f"{array.dtype} instead of numbers")
            if isinstance(space, spaces.Discrete):
                array = spaces.flatten(space, array)  # one-hot
            with np.errstate(over="ignore"):
                self._raw[slot] = array.ravel()
        except (TypeError, ValueError, IndexError) as error:
            raise SimulatorError(
                "invalid", f"observation: {source} returned {observation!r:.80}: {error}", slot
            ) from error

    def _write_outcome(
        self, slot: int, reward: object, terminated: object, truncated: object
    ) -> None:
        try:
            if np.asarray(reward).dtype.kind not in "biuf":
                raise TypeError
            self.rewards[slot] = reward
            self.terminated[slot] = terminated
            self.truncated[slot] = truncated
        except (TypeError, ValueError) as error:
            returned = f"{reward!r:.60}, {terminated!r:.60}, {truncated!r:.60}"
            raise SimulatorError(
                "invalid", f"reward, terminated, truncated: step returned {returned}", slot
            ) from error

    def _convert(self, slots: np.ndarray) -> None:
        if self._raw is self.observations:
            return
        rows = rows_of(slots)
        # A value beyond float32 becomes infinite here and is reported as such later.
        with np.errstate(over="ignore"):
            self.observations[rows] = self._raw[rows]
