"""What games of two agents that take turns have in common."""

from __future__ import annotations

from pettingzoo import AECEnv


class TwoInTurns(AECEnv):
    """The agents a and b; a begins, and nobody draws anything."""

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.possible_agents = ["a", "b"]

    def begin(self) -> None:
        """What a reset does whatever is played."""
        self.agents = list(self.possible_agents)
        self.agent_selection = "a"
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def close(self):
        pass
