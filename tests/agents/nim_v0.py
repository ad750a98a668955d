"""Two agents take turns at taking one to three sticks of a heap; whoever takes the last one wins.

As PettingZoo's games do, it has the mask beside the observation, which allows nothing to whoever is
not to move. It raises an exception at what is forbidden.
"""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from tests.agents.in_turns import TwoInTurns

STICKS = 9


class Nim(TwoInTurns):
    metadata = {"name": "nim_v0", "render_modes": [], "is_parallelizable": False}  # noqa: RUF012

    def observation_space(self, agent):
        # The sticks, and whether it is the agent's turn.
        seen = spaces.Box(0, 1, (STICKS + 2,), np.float32)
        return spaces.Dict(observation=seen, action_mask=spaces.Box(0, 1, (3,), np.int8))

    def action_space(self, agent):
        return spaces.Discrete(3)

    def observe(self, agent):
        seen = np.zeros(STICKS + 2, np.float32)
        moves = agent == self.agent_selection
        seen[self.left], seen[-1] = 1, moves
        mask = (np.arange(1, 4) <= self.left) & moves
        return {"observation": seen, "action_mask": mask.astype(np.int8)}

    def reset(self, seed=None, options=None):
        self.left = int(np.random.default_rng(seed).integers(4, STICKS + 1))
        self.begin()

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        taken = int(action) + 1
        if taken > self.left:
            raise ValueError(f"{taken} of {self.left} sticks")
        self.left -= taken
        ended = self.left == 0
        if ended:
            self.rewards = {a: 1 if a == agent else -1 for a in self.agents}
        self.terminations = dict.fromkeys(self.agents, ended)
        self.agent_selection = "b" if agent == "a" else "a"


env = Nim
