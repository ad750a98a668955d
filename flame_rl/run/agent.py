"""One observation at a time to one action, as the environment gives and takes them."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.actor.policy.acting import ROW_BLOCK, ActingPolicy
from flame_rl.wire.messages import PolicySnapshot


class Agent:
    """Acts in an environment that someone else steps; the same policy that the actors run."""

    def __init__(self, snapshot: PolicySnapshot, env: gymnasium.Env) -> None:
        """Of the environment, only the spaces are read."""
        self.version = snapshot.version
        self._policy = ActingPolicy(snapshot)
        self._observation_space = env.observation_space
        self._action_space = env.action_space

    def act(
        self, observation: object, generator: np.random.Generator | None = None
    ) -> int | np.ndarray:
        """What to do.

        Args:
            observation: one of the environment's observation space.
            generator: to sample the action with; None: the policy's mean, or its likeliest choice.

        Returns:
            One of the action space: an integer, or an array clipped to the bounds.

        Raises:
            ValueError: the observation has another shape, or is not finite.
        """
        space, policy = self._observation_space, self._policy
        array = np.asarray(observation)
        if array.shape != space.shape:
            raise ValueError(f"observation: shape {array.shape} where {space.shape} is expected")
        if isinstance(space, spaces.Discrete):
            array = spaces.flatten(space, array)  # one-hot
        rows = np.zeros((ROW_BLOCK, policy.observation_dim), np.float32)
        rows[0] = array.ravel()
        if not np.isfinite(rows[0]).all():
            raise ValueError(f"observation: not finite: {observation!s:.200}")
        noise = None if generator is None else policy.draw_noise(generator, ROW_BLOCK)
        action = policy.act(rows, noise)[0]
        if not isinstance(self._action_space, spaces.Box):
            return int(action + self._action_space.start)
        low, high = self._action_space.low, self._action_space.high
        clipped = np.clip(action.reshape(low.shape), low, high)
        return clipped.astype(self._action_space.dtype, copy=False)
