"""PettingZoo's parallel environments: several agents in each, with a slot for every agent."""

from collections.abc import Hashable, Mapping
from itertools import groupby

import numpy as np

from flame_rl.actor.environments.agents import limit_of, make_agents, spec_of, turn_of
from flame_rl.actor.failure import invalid
from flame_rl.actor.simulators import returned
from flame_rl.actor.simulators.plain import EnvironmentsSimulator
from flame_rl.actor.simulators.simulator import as_rows
from flame_rl.wire.messages import Environment


class AgentsSimulator(EnvironmentsSimulator):
    """An environment for each group of slots, stepped one after another. All agents begin together;
    of one that ends early nothing is read until the next reset."""

    def __init__(self, environment: Environment, render_mode: str | None = None) -> None:
        """For the arguments see `plain_simulator`."""
        super().__init__(environment, lambda: make_agents(environment, render_mode), spec_of)
        self._names = list(self.first.possible_agents)
        self._has_numbers = environment.agent_number
        self._limit = limit_of(environment, self.first)
        # Of each environment, since its reset.
        self._steps = np.zeros(self.most, np.int64)

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
                returned.take_outcome(self, slot, *outcome)
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
        observation, holder = self.masks.of(observation, info, slot, source)
        if self._has_numbers:
            observation = observation, slot % self.agents
        returned.take_observation(self._parts, observation, self.observations[slot], source, slot)
        if self.masks.read:
            ended = source == "step" and (self.terminated[slot] or self.truncated[slot])
            self.masks.take(slot, holder, source, ended)

    def _write_masks(self, place: int, slots: np.ndarray, source: str) -> None:
        """Write the masks of the agents in these slots, of one environment."""
        if not self.masks.read:
            return
        turn = turn_of(self._envs[place])
        for slot in slots.tolist():
            if turn is not None and self._names[slot % self.agents] != turn:
                self.masks.wait(slot)
        self.masks.write(self, slots, source)


def _of(
    name: Hashable, given: Mapping[Hashable, object], what: str, slot: int, source: str = "step"
) -> object:
    """What was returned for an agent."""
    try:
        return given[name]
    except KeyError:
        why = "which has neither terminated nor been truncated; all agents must begin together"
        raise invalid(f"agents: {source} returned no {what} of {name}, {why}", slot) from None
