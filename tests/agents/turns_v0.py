"""Two agents that take turns: whoever counts to three ends the game for both."""

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv


class Turns(AECEnv):
    """An agent's action 1 raises the count. At 3 both end, and whoever raised it is paid 1; a
    begins, and nobody draws anything."""

    metadata = {"name": "turns_v0", "render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.possible_agents = ["a", "b"]

    def observation_space(self, agent):
        return spaces.Discrete(4)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def observe(self, agent):
        return self.count

    def reset(self, seed=None, options=None):
        self.count = 0
        self.agents = list(self.possible_agents)
        self.agent_selection = "a"
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self.count += int(np.asarray(action))
        self.rewards = {a: float(a == agent and self.count == 3) for a in self.agents}
        self.terminations = dict.fromkeys(self.agents, self.count == 3)
        self.agent_selection = "b" if agent == "a" else "a"

    def close(self):
        pass


env = Turns
