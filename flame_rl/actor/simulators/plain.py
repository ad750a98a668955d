"""Gymnasium environments, one per slot: works with any of them, and checks what they return."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.actor.environments import making
from flame_rl.actor.environments.converting import action_converter
from flame_rl.actor.environments.masks import masked_choices
from flame_rl.actor.environments.wrapping import SLOT
from flame_rl.actor.failure import SimulatorError, summary, unusable
from flame_rl.actor.simulators import returned
from flame_rl.actor.simulators.simulator import Simulator, as_rows
from flame_rl.wire import codec
from flame_rl.wire.inputs import is_channels_first, observation_columns, observation_parts
from flame_rl.wire.messages import Environment, EnvironmentSpec
from flame_rl.wire.packing import WireError

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv

# Making environments takes no longer than the time since the first one was made, or this at first.
MAKING_SECONDS = 1.0
# With more, environments outgrow the processor's cache, and save little of the forward pass.
MOST_SLOTS = 32


class EnvironmentsSimulator(Simulator):
    """A simulator of separate environments, each made when it is first needed. Where making one
    takes long (`making_seconds`), slots come one by one, up to those of `most` environments. `spec`
    describes them (masks in `info` only the first reset shows), and `masks` reads their masks."""

    def __init__(
        self,
        environment: Environment,
        make: Callable[[], Any],
        describe: Callable[[Environment, Any], EnvironmentSpec],
    ) -> None:
        self._env_id, self._make = environment.env_id, make
        self._born, self.making_seconds = time.monotonic(), math.inf
        self._envs: list[Any] = []
        # The environment of the first slots, to render or inspect.
        self.first: gymnasium.Env | ParallelEnv = self._made()
        self._envs.append(self.first)
        try:
            # Encoded and decoded, so that every backend gives the learner the same one.
            data = codec.encode_description(describe(environment, self.first))
            self.spec = spec = codec.decode_description(data, self._env_id)
        except WireError as error:
            raise unusable(f"{self._env_id}: {error}") from error
        self._parts = observation_parts(spec.observation_space)
        self._to_environment = action_converter(spec.action_space)
        agents = spec.agent_count
        self.most = max(1, (environment.slots or MOST_SLOTS) // agents)
        super().__init__(
            agents * self.most,
            observation_columns(spec.observation_space),
            environment.reward_parts,
            spec.reward_shape,
            environment.outcomes,
            sum(masked_choices(environment, spec.action_space)),
        )
        self.agents = agents
        self.raw = self.observations  # observations before they become float32
        # Masks beside the observation are known already; the first reset tells of others.
        known = spec.masked or not masked_choices(environment, spec.action_space)
        found = spec.action_mask if known else None
        self.masks = returned.Masks(spec.action_space, found, len(self.action_masks))
        self._allow_slots()

    def close(self) -> None:
        try:
            with contextlib.ExitStack() as closing:
                for env in self._envs:
                    closing.callback(env.close)
        except BaseException as error:  # SystemExit, too
            raise unusable(f"{self._env_id}: close raised {summary(error)}") from error

    def hold_at_most(self, environments: int) -> None:
        self.most = max(1, min(self.most, environments))
        self._allow_slots()

    def _made(self) -> Any:
        began = time.monotonic()
        os.environ[SLOT] = f"{os.getpid()}-{len(self._envs)}"
        env = self._make()
        making.stop_clock()
        # What the first one imports takes no time again.
        self.making_seconds = min(self.making_seconds, time.monotonic() - began)
        return env

    def _allow_slots(self) -> None:
        """Set `slots` to what may be used by now, of those that have rows."""
        spent = max(MAKING_SECONDS, time.monotonic() - self._born)
        places = max(len(self._envs), int(spent / max(self.making_seconds, 1e-9)))
        self.slots = self.agents * min(places, self.most)

    def _env(self, place: int) -> gymnasium.Env | ParallelEnv:
        while len(self._envs) <= place:
            try:
                own = self._made()
            except SimulatorError as error:
                which = f"It is number {len(self._envs) + 1} in this process"
                text = f"{error}. {which}: where only one can exist, --slots 1 makes no other"
                raise unusable(text, error.cause) from error
            if own.unwrapped is self.first.unwrapped:
                same = f"{type(own.unwrapped).__name__}: its function returned the same environment"
                remedy = "make a new one at every call, or play with --slots 1"
                raise unusable(f"{same} twice: {remedy}")
            self._envs.append(own)
        self._allow_slots()
        return self._envs[place]


class PlainSimulator(EnvironmentsSimulator):
    """A Gymnasium environment per slot, stepped one after another."""

    def __init__(self, environment: Environment, render_mode: str | None = None) -> None:
        super().__init__(
            environment,
            lambda: making.make_environment(environment, render_mode),
            making.describe_environment,
        )
        space = self.spec.observation_space
        # float64 observations become float32 for all slots together, which is quicker.
        if any(part.space.dtype == np.float64 for part in self._parts):
            self.raw = np.zeros(self.observations.shape, np.float64)
        # `raw` in the shape of the space, where that is a Box: `step` writes these unflattened.
        self._raw_by_shape = None
        if is_channels_first(space):
            last = self.raw.reshape(-1, *space.shape[1:], space.shape[0])
            self._raw_by_shape = np.moveaxis(last, -1, 1)
        elif isinstance(space, spaces.Box):
            self._raw_by_shape = self.raw.reshape(-1, *space.shape)

    def reset(self, slots: np.ndarray, seeds: np.ndarray) -> None:
        for slot, seed in zip(slots.tolist(), seeds.tolist(), strict=True):
            env = self._env(slot)
            with returned.calling("reset", slot):
                given = env.reset(seed=seed)
            observation = self.masks.take(*returned.first_returned(given), slot, "reset")
            returned.take_observation(self._parts, observation, self.raw[slot], "reset", slot)
        if self.masks.read:
            self.masks.write(self, slots, "reset")
        self._convert(slots)

    def step(self, actions: np.ndarray, slots: np.ndarray) -> None:
        chosen = self._to_environment(actions)
        rows = as_rows(slots)
        self.terminated[rows] = False
        self.truncated[rows] = False
        raw, rewards, envs = self._raw_by_shape, self.rewards, self._envs
        dtype, shape = self.spec.observation_space.dtype, self.spec.observation_space.shape
        is_box, is_number = raw is not None, rewards.ndim == 1
        has_info = bool(self.part_names or self.outcome_names)
        masks = self.masks if self.masks.read else None
        for slot in slots.tolist():
            try:
                observation, reward, terminated, truncated, info = envs[slot].step(chosen[slot])
            except BaseException as error:
                raise returned.raised("step", error, slot) from error
            goes_on = terminated is False and truncated is False
            if is_number and isinstance(reward, float) and goes_on:
                rewards[slot] = reward
            else:
                returned.take_reward_and_ends(self, slot, reward, terminated, truncated)
            if has_info:
                returned.take_info(self, slot, info)
            if masks is not None:
                ended = not goes_on and (self.terminated[slot] or self.truncated[slot])
                observation = masks.take(observation, info, slot, "step", ended)
            if (
                is_box
                and type(observation) is np.ndarray
                and observation.dtype is dtype
                and observation.shape == shape
            ):
                raw[slot] = observation
            else:
                returned.take_observation(self._parts, observation, self.raw[slot], "step", slot)
        if masks is not None:
            masks.write(self, slots, "step")
        self._convert(slots)

    def _convert(self, slots: np.ndarray) -> None:
        if self.raw is self.observations:
            return
        rows = as_rows(slots)
        # A value beyond float32 becomes infinite here and is reported as such later.
        with np.errstate(over="ignore"):
            self.observations[rows] = self.raw[rows]
