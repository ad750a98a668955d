"""Gymnasium environments, one per slot: works with any of them, and checks what they return."""

from __future__ import annotations

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
from flame_rl.wire.inputs import is_channels_first, observation_columns, observation_parts
from flame_rl.wire.messages import Environment, EnvironmentSpec

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
        """`make` makes one, and `describe` returns its spec."""
        self._env_id, self._make = environment.env_id, make
        self._born, self.making_seconds = time.monotonic(), math.inf
        self._envs: list[Any] = []
        self._envs.append(self._made())
        self.spec = spec = making.as_sent(describe(environment, self.first))
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
        # Observations before they become float32.
        self.raw = self.observations
        # Masks beside the observation are known already; the first reset tells of others.
        known = spec.masked or not masked_choices(environment, spec.action_space)
        found = spec.action_mask if known else None
        self.masks = returned.Masks(spec.action_space, found, len(self.action_masks))
        self._allow_slots()

    @property
    def first(self) -> gymnasium.Env | ParallelEnv:
        """The environment of the first slots, to render or inspect."""
        return self._envs[0]

    def close(self) -> None:
        errors = []
        for env in self._envs:
            try:
                env.close()
            except BaseException as error:  # SystemExit, too
                errors.append(error)
        if errors:
            raise unusable(f"{self._env_id}: close raised {summary(errors[0])}") from errors[0]

    def hold_at_most(self, environments: int) -> None:
        """Make no more than these, but one in any case."""
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
                kind = type(own.unwrapped).__name__
                text = f"{kind}: its function returned the same environment twice"
                raise unusable(f"{text}: make a new one at every call, or play with --slots 1")
            self._envs.append(own)
        self._allow_slots()
        return self._envs[place]


class PlainSimulator(EnvironmentsSimulator):
    """A Gymnasium environment per slot, stepped one after another."""

    def __init__(self, environment: Environment, render_mode: str | None = None) -> None:
        """For the arguments see `plain_simulator`."""
        super().__init__(
            environment,
            lambda: making.make_environment(environment, render_mode),
            making.describe_environment,
        )
        space = self.spec.observation_space
        self._promised = space.dtype, space.shape
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
            observation, holder = self.masks.of(*returned.first_returned(given), slot, "reset")
            returned.take_observation(self._parts, observation, self.raw[slot], "reset", slot)
            if self.masks.read:
                self.masks.take(slot, holder, "reset")
        if self.masks.read:
            self.masks.write(self, slots, "reset")
        self._convert(slots)

    def step(self, actions: np.ndarray, slots: np.ndarray) -> None:
        chosen = self._to_environment(actions)
        rows = as_rows(slots)
        self.terminated[rows] = False
        self.truncated[rows] = False
        raw, rewards, (dtype, shape) = self._raw_by_shape, self.rewards, self._promised
        is_box = raw is not None
        is_number = rewards.ndim == 1
        has_info = bool(self.part_names or self.outcome_names)
        masks = self.masks if self.masks.read else None
        holder = None
        envs = self._envs
        for slot in slots.tolist():
            try:
                observation, reward, terminated, truncated, info = envs[slot].step(chosen[slot])
            except BaseException as error:
                raise returned.raised("step", error, slot) from error
            if masks is not None:
                observation, holder = masks.of(observation, info, slot, "step")
            if (
                is_box
                and type(observation) is np.ndarray
                and observation.dtype is dtype
                and observation.shape == shape
            ):
                raw[slot] = observation
            else:
                returned.take_observation(self._parts, observation, self.raw[slot], "step", slot)
            goes_on = terminated is False and truncated is False
            if is_number and isinstance(reward, float) and goes_on:
                rewards[slot] = reward
            else:
                returned.take_outcome(self, slot, reward, terminated, truncated)
            if has_info:
                returned.take_info(self, slot, info)
            if masks is not None:
                ended = self.terminated[slot] or self.truncated[slot]
                masks.take(slot, holder, "step", ended)
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
