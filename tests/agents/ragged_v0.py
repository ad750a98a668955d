"""Three agents whose ends are random, and who feel what the others do."""

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Ragged(ParallelEnv):
    """Every agent draws at reset how long it plays, 1 to 12 steps, and whether it then terminates
    or is truncated. All observe the sum of all actions so far, and a number of their own."""

    metadata = {"name": "ragged_v0", "render_modes": []}  # noqa: RUF012

    def __init__(self):
        # Any hashable object may be an agent.
        self.possible_agents = [7, "b", ("c", 1)]

    def observation_space(self, agent):
        return spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def action_space(self, agent):
        return spaces.Box(np.array([-1, 0]), np.array([3, 5]), dtype=np.float64)

    def reset(self, seed=None, options=None):
        self.random, _ = gymnasium.utils.seeding.np_random(seed)
        self.agents = list(self.possible_agents)
        self.lengths = dict(zip(self.agents, self.random.integers(1, 13, 3), strict=True))
        self.terminates = dict(zip(self.agents, self.random.integers(2, size=3), strict=True))
        self.sum, self.number = np.zeros(2), 0
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert list(actions) == self.agents
        assert all(self.action_space(a).contains(action) for a, action in actions.items())
        self.number += 1
        self.sum = self.sum + sum(actions.values())
        observations = self._observations()
        ended = {a: bool(self.number == self.lengths[a]) for a in self.agents}
        terminated = {a: end and self.terminates[a] == 1 for a, end in ended.items()}
        truncated = {a: end and self.terminates[a] == 0 for a, end in ended.items()}
        rewards = {a: float(observations[a][2]) for a in self.agents}
        infos = {a: {"left": int(self.lengths[a] - self.number)} for a in self.agents}
        self.agents = [a for a in self.agents if not ended[a]]
        return observations, rewards, terminated, truncated, infos

    def close(self):
        pass

    def _observations(self):
        return {a: np.array([*self.sum, self.random.normal()]) for a in self.agents}


parallel_env = Ragged
