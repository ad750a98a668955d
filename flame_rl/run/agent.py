"""Choose actions for observations, both in the environment's own form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flame_rl.actor.environments.actions import action_converter
from flame_rl.actor.environments.observations import observation_parts, write_observation
from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.layers import ROW_BLOCK
from flame_rl.wire.messages import EnvironmentSpec, PolicySnapshot
from flame_rl.wire.steps import observation_dtype


class Agent:
    """Acts, by the policy that the actors run, in environments that the caller steps."""

    def __init__(self, snapshot: PolicySnapshot, spec: EnvironmentSpec) -> None:
        """`spec` has the environment's spaces."""
        self.version = snapshot.version
        self._policy = ActingPolicy(snapshot)
        self._parts = observation_parts(spec.observation_space)
        self._dtype = observation_dtype(spec.observation_space)
        self._to_environment = action_converter(spec.action_space)
        self.begin()
        # Nobody has said yet that an episode begins.
        self._playing = 0

    def begin(self, episodes: int = 1) -> None:
        """Episodes begin, side by side: their actions do not depend on what was before."""
        self._playing = episodes
        # The policy acts for whole blocks of rows.
        self._width = -(-episodes // ROW_BLOCK) * ROW_BLOCK
        self._states = self._policy.states(self._width)
        # Of the last actions that were sampled.
        self._noise: list[np.ndarray | None] = [None] * episodes

    def act(
        self, observation: object, generator: np.random.Generator | None = None
    ) -> np.integer | np.ndarray:
        """Choose the action for an observation; see `act_all`."""
        return self.act_all([observation], generator)[0]

    def act_all(
        self, observations: Sequence[object], generator: np.random.Generator | None = None
    ) -> Sequence[np.integer | np.ndarray]:
        """Choose an action for each observation, which does not depend on the others.

        Args:
            observations: elements of the environment's observation space, one of each episode.
            generator: samples the actions; None: take the policy's mean, or the choice that is
                likeliest or worth most. Noise that depends on the step before goes on from call to
                call until `begin`.

        Returns:
            Elements of the action space, of the types that `sample` gives: integers of NumPy, or
            arrays.

        Raises:
            ValueError: an observation is not in the observation space, or is not finite; or the
                policy remembers, and not as many episodes have begun.
        """
        policy, count = self._policy, len(observations)
        if policy.remembers and not self._playing:
            raise ValueError(
                "episode: none has begun, and this policy remembers what it observed in one; "
                "say that one begins whenever the environment was reset"
            )
        if count != len(self._noise):
            if policy.remembers:
                raise ValueError(
                    f"observations: {count}, and this policy remembers what it observed in "
                    f"{self._playing} episodes, which began together; give one of each"
                )
            self.begin(count)
        rows = np.zeros((self._width, policy.observation_dim), self._dtype)
        for row, observation in zip(rows, observations, strict=False):
            write_observation(self._parts, observation, row)
            if not np.isfinite(row).all():
                raise ValueError(f"observation: not finite: {observation!s:.200}")
        noise = None if generator is None else self._draw(generator)
        return self._to_environment(policy.act(rows, noise, self._states)[:count])

    def _draw(self, generator: np.random.Generator) -> np.ndarray:
        """The noise of every row's next step, float64 [W, noise_width]."""
        for number, before in enumerate(self._noise):
            self._noise[number] = self._policy.draw_noise(generator, 1, before)[0]
        noise = np.zeros((self._width, len(self._noise[0])))
        noise[: len(self._noise)] = self._noise
        return noise
