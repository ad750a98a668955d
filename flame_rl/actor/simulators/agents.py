"""PettingZoo's environments, in which several agents of the same spaces play by one policy, each in
a slot of its own. An environment is named as PettingZoo's module, `pettingzoo.sisl.multiwalker_v9`,
which has a function `parallel_env`, or, for agents that take turns, `env`."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Hashable, Mapping
from itertools import groupby
from types import ModuleType
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.actor.environments import making
from flame_rl.actor.environments.masks import beside_mask
from flame_rl.actor.environments.wrapping import constructor_arguments, wrapped
from flame_rl.actor.failure import SimulatorError, invalid, unusable
from flame_rl.actor.simulators import returned
from flame_rl.actor.simulators.plain import EnvironmentsSimulator, PlainSimulator
from flame_rl.actor.simulators.simulator import as_rows
from flame_rl.wire.messages import Environment, EnvironmentSpec

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv

# Dotted names of Python, of which the last has a version.
_NAME = re.compile(r"([A-Za-z_]\w*\.)*[A-Za-z_]\w*_v\d+")
# What the dependency group `agents` installs for environments themselves, by the names of modules.
PACKAGES = ("pettingzoo", "mpe2", "supersuit")


def has_agents(env_id: str) -> bool:
    """Whether the name is that of a module of PettingZoo's kind, and no Gymnasium id."""
    if _NAME.fullmatch(env_id) is None or env_id in gymnasium.registry:
        return False
    # Without a dot it may also be a Gymnasium id that was mistyped.
    return "." in env_id or importlib.util.find_spec(env_id) is not None


class AgentsSimulator(EnvironmentsSimulator):
    """An environment for each group of slots. All agents begin together; of one that ends early
    nothing is read until the next reset."""

    def __init__(self, environment: Environment, render_mode: str | None = None) -> None:
        super().__init__(environment, lambda: _make(environment, render_mode), _spec_of)
        self._names = list(self.first.possible_agents)
        self._has_numbers = environment.agent_number
        self._limit = _limit_of(environment, self.first)
        self._steps = np.zeros(self.most, np.int64)  # of each environment, since its reset

    def reset(self, slots: np.ndarray, seeds: np.ndarray) -> None:
        pairs = zip(slots.tolist(), seeds.tolist(), strict=True)
        for place, group in groupby(pairs, lambda pair: pair[0] // self.agents):
            first, seed = next(group)
            env = self._env(place)
            with returned.calling("reset", first):
                given = env.reset(seed=seed)
            observations, infos = returned.first_returned(given)
            self._steps[place] = 0
            for slot, name in enumerate(self._names, first):
                observation = _of(name, observations, "observation", slot, "reset")
                self._observe(slot, observation, infos.get(name), "reset")
            self._write_masks(place, np.arange(first, first + self.agents), "reset")

    def step(self, actions: np.ndarray, slots: np.ndarray) -> None:
        chosen = self._to_environment(actions)
        rows = as_rows(slots)
        self.terminated[rows] = False
        self.truncated[rows] = False
        for place, group in groupby(slots.tolist(), lambda slot: slot // self.agents):
            playing = {self._names[slot % self.agents]: slot for slot in group}
            first = next(iter(playing.values()))
            with returned.calling("step", first):
                observations, rewards, terminations, truncations, infos = self._envs[place].step(
                    {name: chosen[slot] for name, slot in playing.items()}
                )
            given = (("observation", observations), ("reward", rewards))
            given += (("termination", terminations), ("truncation", truncations))
            self._steps[place] += 1
            cut = self._limit is not None and self._steps[place] >= self._limit
            infos = infos if isinstance(infos, Mapping) else {}
            for name, slot in playing.items():
                observation, *outcome = [_of(name, each, what, slot) for what, each in given]
                returned.take_reward_and_ends(self, slot, *outcome)
                self.truncated[slot] |= cut
                self._observe(slot, observation, infos.get(name), "step")
                if self.part_names or self.outcome_names:
                    returned.take_info(self, slot, _of(name, infos, "info", slot))
            self._write_masks(place, np.array(list(playing.values())), "step")
            for name in self._envs[place].agents:
                if name not in playing:
                    text = f"agents: after step, {name} plays, which ended before or was not there"
                    raise invalid(f"{text} at reset; this cannot be recorded", first)

    def _observe(self, slot: int, observation: object, info: object, source: str) -> None:
        ended = source == "step" and (self.terminated[slot] or self.truncated[slot])
        observation = self.masks.take(observation, info, slot, source, ended)
        if self._has_numbers:
            observation = observation, slot % self.agents
        returned.take_observation(self._parts, observation, self.observations[slot], source, slot)

    def _write_masks(self, place: int, slots: np.ndarray, source: str) -> None:
        if not self.masks.read:
            return
        from pettingzoo.utils.conversions import turn_based_aec_to_parallel_wrapper

        env = self._envs[place]
        if isinstance(env, turn_based_aec_to_parallel_wrapper):
            for slot in slots.tolist():
                if self._names[slot % self.agents] != env.aec_env.agent_selection:
                    self.masks.wait(slot)
        self.masks.write(self, slots, source)


def _of(
    name: Hashable, given: Mapping[Hashable, object], what: str, slot: int, source: str = "step"
) -> object:
    try:
        return given[name]
    except KeyError:
        why = "which has neither terminated nor been truncated; all agents must begin together"
        raise invalid(f"agents: {source} returned no {what} of {name}, {why}", slot) from None


def plain_simulator(
    environment: Environment, render_mode: str | None = None
) -> PlainSimulator | AgentsSimulator:
    """The simulator that works with any environment, whatever `environment.simulator` says;
    `render_mode` is Gymnasium's. Raises SimulatorError of kind "environment"."""
    kind = AgentsSimulator if has_agents(environment.env_id) else PlainSimulator
    return kind(environment, render_mode)


def _make(environment: Environment, render_mode: str | None) -> ParallelEnv:
    """A parallel environment. Raises SimulatorError unless its agents have the same spaces."""
    env_id = environment.env_id
    options = constructor_arguments(environment, render_mode)
    try:
        env = _made(env_id, importlib.import_module(env_id), options)
    except SimulatorError:
        raise
    except (Exception, SystemExit) as error:
        raise making.cannot_be_made(env_id, error, "agents") from error
    if environment.wrapper:
        from pettingzoo import ParallelEnv

        env = wrapped(environment, env, ParallelEnv)
    if not getattr(env, "possible_agents", None):
        raise unusable(f"{env_id}: possible_agents names nobody")
    first, *others = env.possible_agents
    for kind, space_of in (("observation", env.observation_space), ("action", env.action_space)):
        for other in others:
            if space_of(other) != space_of(first):
                raise unusable(
                    f"the {kind} spaces of {env_id} differ between agents, which share one policy: "
                    f"{first} has {space_of(first)!s:.300}, {other} has {space_of(other)!s:.300}; "
                    "SuperSuit's pad_observations_v0 and pad_action_space_v0 make them alike"
                )
    return env


def _spec_of(environment: Environment, env: ParallelEnv) -> EnvironmentSpec:
    """The spec of an environment of `_make`. Raises SimulatorError as `check_spaces` does."""
    first, *_ = agents = env.possible_agents
    actions = env.action_space(first)
    space, masks = beside_mask(environment, env.observation_space(first), actions)
    making.check_spaces(environment.env_id, space, actions)
    if environment.agent_number:
        space = spaces.Tuple((space, spaces.Discrete(len(agents))))
    limits = _limit_of(environment, env), _own_limit(env)
    return EnvironmentSpec(
        environment.env_id,
        space,
        actions,
        time_limit=min((limit for limit in limits if limit is not None), default=None),
        agents=tuple(map(str, agents)),
        limited_by_default=environment.max_episode_steps is None and limits[0] is not None,
        action_mask=masks or "none",
        renders=making.can_be_drawn(env),
    )


def _limit_of(environment: Environment, env: ParallelEnv) -> int | None:
    """The time limit besides the environment's own, as `Environment.max_episode_steps` says."""
    if environment.max_episode_steps is None and _own_limit(env) is None:
        return making.DEFAULT_LIMIT
    return environment.max_episode_steps or None


def _own_limit(env: ParallelEnv) -> int | None:
    """What PettingZoo's own environments call `max_cycles`."""
    limit = getattr(env.unwrapped, "max_cycles", None)
    return limit if isinstance(limit, int) else None


def _made(env_id: str, module: ModuleType, options: dict[str, Any]) -> ParallelEnv:
    if hasattr(module, "parallel_env"):
        return module.parallel_env(**options)
    if not hasattr(module, "env"):
        raise unusable(f"module {env_id} has no function parallel_env, nor env, as PettingZoo's do")
    from pettingzoo import AECEnv
    from pettingzoo.utils.conversions import aec_to_parallel, turn_based_aec_to_parallel

    env = module.env(**options)
    if not isinstance(env, AECEnv):
        name = type(env).__name__
        raise unusable(f"{env_id}: env() returned a {name}, which is no AECEnv of PettingZoo")
    cycles = env.metadata.get("is_parallelizable", False)
    return aec_to_parallel(env) if cycles else turn_based_aec_to_parallel(env)
