"""Acting, with observations and actions in the environment's own form: `Agent` by a snapshot, and
`Policy` by a saved policy, without the environment, workers or a Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flame_rl.actor.environments.actions import action_converter
from flame_rl.actor.environments.masks import allowed_choices, allows_something, first_choices
from flame_rl.actor.environments.observations import write_observation
from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.layers import ROW_BLOCK, SelectLayer
from flame_rl.nets.network import Samples
from flame_rl.run.checks import own_networks
from flame_rl.run.saved.folder import files_of
from flame_rl.run.saved.resume import find_checkpoint, load_state
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.inputs import ObservationPart, observation_dtype, observation_parts
from flame_rl.wire.masks import ACTION_MASKS, pack_masks
from flame_rl.wire.messages import EnvironmentSpec, PolicySnapshot
from flame_rl.wire.spaces import choices_of


class Agent:
    """Acts, by the policy that the actors run, in environments that the caller steps."""

    def __init__(self, snapshot: PolicySnapshot, spec: EnvironmentSpec) -> None:
        """`spec` has the environment's spaces."""
        self.version = snapshot.version
        self._policy = ActingPolicy(snapshot)
        self._parts = _seen_parts(snapshot, spec)
        self._dtype = observation_dtype(spec.observation_space)
        self._to_environment = action_converter(spec.action_space)
        self._actions, self._masked = spec.action_space, spec.masked
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
        self,
        observation: object,
        generator: np.random.Generator | None = None,
        action_mask: object | None = None,
    ) -> np.integer | np.ndarray:
        """Choose the action for an observation; see `act_all`."""
        masks = None if action_mask is None else [action_mask]
        return self.act_all([observation], generator, masks)[0]

    def act_all(
        self,
        observations: Sequence[object],
        generator: np.random.Generator | None = None,
        action_masks: Sequence[object] | None = None,
    ) -> Sequence[np.integer | np.ndarray]:
        """Choose an action for each observation, which does not depend on the others.

        Args:
            observations: elements of the environment's observation space, one of each episode.
            generator: samples the actions; None: take the policy's mean, or the choice that is
                likeliest or worth most. Noise that depends on the step before goes on from call to
                call until `begin`.
            action_masks: what each observation allows, as the environment returns it; for a policy
                that was trained with masks, and for no other.

        Returns:
            Elements of the action space, of the types that `sample` gives: integers of NumPy, or
            arrays.

        Raises:
            ValueError: an observation is not in the observation space, or is not finite; a mask is
                of another form, allows nothing, is missing or not wanted; or the policy remembers,
                and not as many episodes have begun.
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
        seen = self._seen(count, action_masks)
        return self._to_environment(policy.act(rows, noise, self._states, seen=seen)[:count])

    def _seen(self, count: int, action_masks: Sequence[object] | None) -> Samples:
        """The masks of `count` observations as the policy's head takes them."""
        if not self._masked:
            if action_masks is not None:
                raise ValueError("action_mask: this policy was trained without masks; give none")
            return {}
        if action_masks is None or len(action_masks) != count:
            raise ValueError(
                f"action_mask: {'none' if action_masks is None else len(action_masks)} for {count} "
                "observations, and this policy was trained with masks; give one for each, as "
                'action_mask=info["action_mask"]'
            )
        allowed = np.ones((self._width, sum(choices_of(self._actions))), np.uint8)
        for row, mask in zip(allowed, action_masks, strict=False):
            row[:] = allowed_choices(self._actions, mask)
            if not allows_something(row, first_choices(self._actions)):
                raise ValueError(f"action_mask: {mask!r:.80} allows nothing")
        return {ACTION_MASKS: pack_masks(allowed)}

    def _draw(self, generator: np.random.Generator) -> np.ndarray:
        """The noise of every row's next step, float64 [W, noise_width]."""
        for number, before in enumerate(self._noise):
            self._noise[number] = self._policy.draw_noise(generator, 1, before)[0]
        noise = np.zeros((self._width, len(self._noise[0])))
        noise[: len(self._noise)] = self._noise
        return noise


def _seen_parts(snapshot: PolicySnapshot, spec: EnvironmentSpec) -> list[ObservationPart]:
    """The parts of an observation that the policy needs; others may be left out."""
    parts = observation_parts(spec.observation_space)
    for layer in snapshot.layers:
        if layer.kind == SelectLayer.kind:
            # With stacked frames, those of a number follow each other.
            frames = layer.arrays["width"][0] // spec.observation_dim
            places = set((layer.arrays["places"] // frames).tolist())
            return [part for part in parts if places & {*range(part.start, part.stop)}]
    return list(parts)


class Policy:
    """Chooses actions as the policy of a run does, for observations from anywhere.

        policy = Policy.load("runs/cartpole-ppo-20261121-115727")
        action = policy.act(observation)
        actions = policy.act_all(observations)

    Attributes:
        spec: the description of the environment that it was trained in, with its spaces.
        updates: the number of updates that made it.
    """

    def __init__(self, snapshot: PolicySnapshot, spec: EnvironmentSpec, seed: int = 0) -> None:
        """`seed` decides the actions that are sampled."""
        self.spec, self.updates = spec, snapshot.version
        self._agent = Agent(snapshot, spec)
        self._generator = np.random.default_rng(seed)

    @classmethod
    def load(cls, path: str | Path, best: bool = False, seed: int = 0) -> Policy:
        """The policy of the newest checkpoint of a run folder, or of a checkpoint file.

        Args:
            path: a run folder, or a file that `Trainer.save` or a run wrote.
            best: use the run folder's best checkpoint, not its newest.
            seed: decides the actions that are sampled.

        Raises:
            UsageError: there is no sound checkpoint, or it does not fit the networks in model.py.
        """
        from flame_rl.learner.factory import make_learner
        from flame_rl.learner.state import REPLAY

        path = Path(path)
        checkpoint, _ = find_checkpoint(path, best)
        # Of the run's own modules none is needed to act.
        config = TrainConfig.from_data(checkpoint.config).changed(device="cpu", reward=None)
        with own_networks():
            learner = make_learner(config, checkpoint.spec)
            if (files := learner.parts.get(REPLAY)) is not None:
                files.read_from(files_of(path))
            load_state(learner, checkpoint, path)
        return cls(learner.snapshot(), checkpoint.spec, seed)

    def begin(self, episodes: int = 1) -> None:
        """Say that the next observations are the first of these episodes, side by side. A policy
        with a memory must know; for another, only noise that depends on the step before begins
        anew."""
        self._agent.begin(episodes)

    def act(
        self, observation: object, explore: bool = False, action_mask: object | None = None
    ) -> np.integer | np.ndarray:
        """The action for an observation, in the form that the environment takes.

        Args:
            observation: as the environment returns it.
            explore: whether to sample; otherwise the policy's mean, or the choice that is likeliest
                or worth most.
            action_mask: what is allowed, as the environment returns it; for a policy that was
                trained with masks.

        Raises:
            ValueError: the observation is not of the environment's space, or is not finite; the
                mask is wrong or missing; or the policy has a memory, and `begin` was not called.
        """
        masks = None if action_mask is None else [action_mask]
        return self.act_all([observation], explore, masks)[0]

    def act_all(
        self,
        observations: Sequence[object],
        explore: bool = False,
        action_masks: Sequence[object] | None = None,
    ) -> Sequence[np.integer | np.ndarray]:
        """An action for each observation: the same, to the bit, as for that observation alone. With
        a memory, one observation of each episode that has begun. See `act`."""
        generator = self._generator if explore else None
        return self._agent.act_all(observations, generator, action_masks)
