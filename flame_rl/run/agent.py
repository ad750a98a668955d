"""One observation at a time to one action, as the environment gives and takes them."""

from __future__ import annotations

import numpy as np

from flame_rl.actor.environments.actions import environment_actions
from flame_rl.actor.environments.observations import parts_of, write_observation
from flame_rl.actor.policy.acting import ActingPolicy
from flame_rl.actor.policy.layers import ROW_BLOCK
from flame_rl.wire.messages import EnvironmentSpec, PolicySnapshot


class Agent:
    """Acts in an environment that someone else steps; the same policy that the actors run."""

    def __init__(self, snapshot: PolicySnapshot, spec: EnvironmentSpec) -> None:
        """`spec` has the environment's spaces."""
        self.version = snapshot.version
        self._policy = ActingPolicy(snapshot)
        self._parts = parts_of(spec.observation_space)
        self._action_space = spec.action_space

    def act(
        self, observation: object, generator: np.random.Generator | None = None
    ) -> int | np.ndarray:
        """An action.

        Args:
            observation: one of the environment's observation space.
            generator: to sample the action with; None: the policy's mean, or its likeliest choice.

        Returns:
            One of the action space: an integer, or an array, clipped to the bounds of a Box.

        Raises:
            ValueError: the observation is not of its space, or is not finite.
        """
        policy = self._policy
        rows = np.zeros((ROW_BLOCK, policy.observation_dim), np.float32)
        write_observation(self._parts, observation, rows[0])
        if not np.isfinite(rows[0]).all():
            raise ValueError(f"observation: not finite: {observation!s:.200}")
        noise = None if generator is None else policy.draw_noise(generator, ROW_BLOCK)
        return environment_actions(self._action_space, policy.act(rows, noise)[:1])[0]
