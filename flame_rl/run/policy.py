"""`Policy`: acts in the environment's own observations and actions, without a Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from flame_rl.actor.environments.converting import action_converter, write_observation
from flame_rl.actor.environments.masks import allowed_choices, allows_something, first_choices
from flame_rl.actor.randomness import acting_generator
from flame_rl.learner.training.network import Samples
from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.layers import ROW_BLOCK, SelectLayer
from flame_rl.run import checks, folder, transfer
from flame_rl.run.checkpoint import find_checkpoint
from flame_rl.settings.algorithms import ReplaySettings
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.inputs import ObservationPart, observation_dtype, observation_parts
from flame_rl.wire.masks import ACTION_MASKS, pack_masks
from flame_rl.wire.messages import EnvironmentSpec, PolicySnapshot
from flame_rl.wire.spaces import choices_of

Action = np.integer | np.ndarray


class Policy:
    """Chooses actions as the policy of a run does, by the arithmetic of the actors.

        policy = Policy.load("runs/cartpole-ppo-20261121-115727")
        action = policy.act(observation)
        actions = policy.act_all(observations)

    `spec` describes the environment that it was trained in; `updates` updates made it.
    """

    def __init__(
        self, snapshot: PolicySnapshot, spec: EnvironmentSpec, seed: int | np.random.Generator = 0
    ) -> None:
        """`seed` decides the actions that are sampled."""
        self.spec, self.updates = spec, snapshot.version
        self._policy = ActingPolicy(snapshot)
        self._generator = seed if isinstance(seed, np.random.Generator) else acting_generator(seed)
        self._parts = _observed_parts(snapshot, spec)
        self._dtype = observation_dtype(spec.observation_space)
        self._to_environment = action_converter(spec.action_space)
        self.begin()
        self._playing = 0  # nobody has said yet that an episode begins

    @classmethod
    def load(cls, path: str | Path, best: bool = False, seed: int = 0) -> Policy:
        """The policy of the newest checkpoint of a run folder (with `best`, of its best one), or of
        a checkpoint file. Raises UsageError if none is sound, or it does not fit model.py."""
        from flame_rl.learner.make import make_learner

        path = Path(path)
        checkpoint, _ = find_checkpoint(path, best)
        config = _to_act(TrainConfig.from_data(checkpoint.config), checkpoint.spec)
        folder.refuse_model_in(folder.run_of(path), config)
        with checks.own_networks():
            learner = make_learner(config, checkpoint.spec)
            # Moments of Adam are of all losses, auxiliary ones included; replay has less room here.
            own = {n: a for n, a in learner.state_dict().items() if "adam." in n or "replay." in n}
            state = {n: a for n, a in checkpoint.learner.items() if ".auxiliary." not in n} | own
            transfer.load_state(learner, replace(checkpoint, learner=state), path)
        return cls(learner.snapshot(), checkpoint.spec, seed)

    def begin(self, episodes: int = 1) -> None:
        """Say that the next observations are the first of these episodes, side by side. A policy
        with a memory must know; for another, noise that depends on earlier steps begins anew."""
        self._playing = episodes
        self._width = -(-episodes // ROW_BLOCK) * ROW_BLOCK  # whole blocks of rows
        self._states = self._policy.states(self._width)
        self._noise: list[np.ndarray | None] = [None] * episodes  # of each one's latest action

    def act(self, observation: object, explore: bool = False, action_mask: object = None) -> Action:
        """The action for one observation; see `act_all`."""
        masks = None if action_mask is None else [action_mask]
        return self.act_all([observation], explore, masks)[0]

    def act_all(
        self,
        observations: Sequence[object] | np.ndarray,
        explore: bool = False,
        action_masks: Sequence[object] | np.ndarray | None = None,
    ) -> Sequence[Action]:
        """An action for each observation, to the bit the same as for that observation alone.

        Args:
            observations: as the environment returns them; with a memory, one of each episode.
            explore: whether to sample, with noise that may depend on the step before; otherwise the
                policy's mean, or the choice that is likeliest or worth most.
            action_masks: what each observation allows, as the environment returns it; for a policy
                that was trained with masks, and for no other.

        Raises ValueError if an observation is not of the space, or not finite; a mask is wrong or
        missing; or the policy has a memory, and not as many episodes have begun.
        """
        policy, count = self._policy, len(observations)
        if policy.remembers and count != self._playing:
            begun = f"{self._playing} had begun" if self._playing else "none has begun"
            remedy = "call begin whenever environments are reset: this policy has a memory"
            raise ValueError(f"episode: {begun}, and {count} are observed; {remedy}")
        if count != len(self._noise):
            self.begin(count)
        rows = np.zeros((self._width, policy.observation_dim), self._dtype)
        for row, observation in zip(rows, observations, strict=False):
            write_observation(self._parts, observation, row)
            if not np.isfinite(row).all():
                raise ValueError(f"observation: not finite: {observation!s:.200}")
        noise = self._draw() if explore else None
        seen = self._masks(count, action_masks)
        return self._to_environment(policy.act(rows, noise, self._states, seen=seen)[:count])

    def _masks(self, count: int, action_masks: Sequence[object] | None) -> Samples:
        """The masks of `count` observations as the policy's head takes them."""
        given, space = 0 if action_masks is None else len(action_masks), self.spec.action_space
        if given != (wanted := count if self.spec.masked else 0):
            how = f'{"with" if wanted else "without"} masks, action_mask=info["action_mask"]'
            text = f"{given} for {count} observations; this policy was trained {how}"
            raise ValueError(f"action_mask: {text}")
        if not given:
            return {}
        allowed = np.ones((self._width, sum(choices_of(space))), np.uint8)
        for row, mask in zip(allowed, action_masks, strict=False):
            row[:] = allowed_choices(space, mask)
            if not allows_something(row, first_choices(space)):
                raise ValueError(f"action_mask: {mask!r:.80} allows nothing")
        return {ACTION_MASKS: pack_masks(allowed)}

    def _draw(self) -> np.ndarray:
        """The noise of every row's next step, float64 [W, noise_width]."""
        for number, before in enumerate(self._noise):
            self._noise[number] = self._policy.draw_noise(self._generator, 1, before)[0]
        noise = np.zeros((self._width, len(self._noise[0])))
        noise[: len(self._noise)] = self._noise
        return noise


def _to_act(config: TrainConfig, spec: EnvironmentSpec) -> TrainConfig:
    """The configuration without what only learning needs: own modules, and room for replay."""
    plain = {"policy_loss": None, "auxiliary": (), "auxiliary_weights": (), "hindsight": "none"}
    if isinstance(config.algorithm, ReplaySettings):
        plain["capacity"] = min(config.algorithm.capacity, spec.time_limit or 1)
    known = {name: value for name, value in plain.items() if hasattr(config.algorithm, name)}
    return config.changed(device="cpu", reward=None, **known)


def _observed_parts(snapshot: PolicySnapshot, spec: EnvironmentSpec) -> list[ObservationPart]:
    """The parts of an observation that the policy needs; others may be left out."""
    places = {*range(spec.observation_dim)}
    for layer in snapshot.layers:
        if layer.kind == SelectLayer.kind:
            # With stacked frames, those of a number follow each other.
            frames = layer.arrays["width"][0] // spec.observation_dim
            places = set((layer.arrays["places"] // frames).tolist())
    parts = observation_parts(spec.observation_space)
    return [part for part in parts if places & {*range(part.start, part.stop)}]
