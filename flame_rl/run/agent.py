"""Choose one action for one observation, both in the environment's own form."""

from __future__ import annotations

import numpy as np

from flame_rl.actor.environments.actions import action_converter
from flame_rl.actor.environments.observations import observation_parts, write_observation
from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.layers import ROW_BLOCK
from flame_rl.wire.messages import EnvironmentSpec, PolicySnapshot
from flame_rl.wire.steps import observation_dtype


class Agent:
    """Acts, by the policy that the actors run, in an environment that the caller steps."""

    def __init__(self, snapshot: PolicySnapshot, spec: EnvironmentSpec) -> None:
        """`spec` has the environment's spaces."""
        self.version = snapshot.version
        self._policy = ActingPolicy(snapshot)
        self._parts = observation_parts(spec.observation_space)
        self._dtype = observation_dtype(spec.observation_space)
        self._to_environment = action_converter(spec.action_space)
        self._states = self._policy.states(ROW_BLOCK)
        self._begun = False
        # Of the last action that was sampled.
        self._noise: np.ndarray | None = None

    def begin(self) -> None:
        """An episode begins: its actions do not depend on what was before."""
        self._states.begin(np.arange(ROW_BLOCK))
        self._noise = None
        self._begun = True

    def act(
        self, observation: object, generator: np.random.Generator | None = None
    ) -> int | np.ndarray:
        """Choose the action for an observation.

        Args:
            observation: an element of the environment's observation space.
            generator: samples the action; None: take the policy's mean, or the choice that is
                likeliest or worth most. Noise that depends on the step before goes on from call to
                call until `begin`.

        Returns:
            An element of the action space: an integer, or an array within the bounds of a Box.

        Raises:
            ValueError: the observation is not in the observation space, or is not finite; or the
                policy remembers, and no episode has begun.
        """
        policy = self._policy
        if policy.remembers and not self._begun:
            raise ValueError(
                "episode: none has begun, and this policy remembers what it observed in one; "
                "say that one begins whenever the environment was reset"
            )
        rows = np.zeros((ROW_BLOCK, policy.observation_dim), self._dtype)
        write_observation(self._parts, observation, rows[0])
        if not np.isfinite(rows[0]).all():
            raise ValueError(f"observation: not finite: {observation!s:.200}")
        noise = None
        if generator is not None:
            noise = policy.draw_noise(generator, ROW_BLOCK, self._noise)
            self._noise = noise[0]
        return self._to_environment(policy.act(rows, noise, self._states)[:1])[0]
