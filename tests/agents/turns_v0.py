"""Two agents that take turns: whoever counts to three ends the game for both."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from tests.agents.in_turns import TwoInTurns


class Turns(TwoInTurns):
    """An agent's action 1 raises the count. At 3 both end, and whoever raised it is paid 1."""

    metadata = {"name": "turns_v0", "render_modes": []}  # noqa: RUF012

    def observation_space(self, agent):
        return spaces.Discrete(4)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def observe(self, agent):
        return self.count

    def reset(self, seed=None, options=None):
        self.count = 0
        self.begin()

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self.count += int(np.asarray(action))
        self.rewards = {a: float(a == agent and self.count == 3) for a in self.agents}
        self.terminations = dict.fromkeys(self.agents, self.count == 3)
        self.agent_selection = "b" if agent == "a" else "a"


env = Turns
