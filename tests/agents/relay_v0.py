"""A probe of two agents: each is paid for another action, and one ends early."""

import os

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from tests.environments import CHECKED, first_time, happen

SHORT, LONG = 2, 5


class Relay(ParallelEnv):
    """`first` is paid for action 0 and terminates after 2 steps, `second` for action 1 and goes on;
    after 5 steps a time limit truncates it.

    Both observe a random bit, which means nothing, and the number of the step, at most 2. Who
    knows its number earns 2 as `first` and 5 as `second`, the mean of which is 3.5; without it, one
    of the two is wrong in each step that they share, and the best mean is 2.5.
    """

    metadata = {"name": "relay_v0", "render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.possible_agents = ["first", "second"]
        self.agents = []
        self.resets = 0

    def observation_space(self, agent):
        return spaces.Box(0, 2, (2,), np.float64)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        # An environment must not be asked for agents that have ended, nor forget a seed.
        assert seed is not None
        self.random, _ = gymnasium.utils.seeding.np_random(seed)
        self.agents = list(self.possible_agents)
        self.resets += 1
        self.dies = seed not in CHECKED  # not in the episodes of the check at a run's start
        self.number = 0
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        marker = self.dies and os.environ.get("RELAY_DIES")
        if marker and self.number == 3 and first_time(marker):
            happen("kill")
        self.number += 1
        right = {"first": 0, "second": 1}
        rewards = {agent: float(action == right[agent]) for agent, action in actions.items()}
        observations = self._observations()
        terminated = {agent: agent == "first" and self.number == SHORT for agent in self.agents}
        truncated = {agent: self.number == LONG for agent in self.agents}
        infos = {agent: {"place": right[agent]} for agent in self.agents}
        self.agents = [a for a in self.agents if not (terminated[a] or truncated[a])]
        return observations, rewards, terminated, truncated, infos

    def render(self):
        picture = np.zeros((8, 16, 3), np.uint8)
        picture[:, :, 0] = 50 * self.number
        return picture

    def close(self):
        pass

    def _observations(self):
        bit = self.random.integers(2)
        row = np.array([bit, min(self.number, SHORT)], np.float64)
        return {agent: row for agent in self.agents}


parallel_env = Relay
