"""What behaviour cloning is in a run: every update learns from the demonstrations, and the
iteration's episodes only say how good the policy was before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from gymnasium import spaces
from torch import nn

import model
from flame_rl.learner.demonstrations.demonstrations import Demonstrations
from flame_rl.learner.imitation.policy_alone import PolicyAlone
from flame_rl.learner.on_policy.batch import Batch, make_batch
from flame_rl.learner.on_policy.update import Update
from flame_rl.learner.state import Part, learning_rate_factor
from flame_rl.learner.training.choose import in_training
from flame_rl.modules.networks import PolicyNetwork
from flame_rl.settings.algorithms import BCSettings
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec, Episodes, PolicySnapshot


@dataclass(frozen=True)
class Imitation:
    """An algorithm that learns from demonstrations alone, as `flame_rl.learner.learner.Algorithm`
    describes it.

    Attributes:
        config: the run's settings.
        networks: the policy.
        algorithm: see `Update`.
        demonstrations: what it learns from.
    """

    config: TrainConfig
    networks: PolicyAlone
    algorithm: Update
    demonstrations: Demonstrations

    files = None
    notice = ""
    lag = 0
    metrics = ("loss", "gradient_norm", "policy_steps")

    @property
    def parts(self) -> dict[str, Part | nn.Module]:
        return self.networks.parts

    def snapshot(self) -> PolicySnapshot:
        return self.networks.policy.module.snapshot()

    def collector_snapshot(self) -> PolicySnapshot:
        return self.snapshot()

    def close(self) -> None:
        """Nothing is open."""

    def update(
        self, episodes: Episodes, generator: np.random.Generator, progress: float
    ) -> dict[str, float]:
        """Learn from the demonstrations; see `Algorithm.update`."""
        decay = learning_rate_factor(self.config.algorithm.learning_rate_decay, progress)
        batch = self.networks.prepare(self._batch)
        return self.algorithm(self.networks, batch, self.config, decay, generator)

    @cached_property
    def _batch(self) -> Batch:
        networks = self.networks
        return make_batch(self.demonstrations.episodes, networks.remembers, networks.frames)


def imitation(
    config: TrainConfig,
    spec: EnvironmentSpec,
    algorithm: Update,
    demonstrations: Demonstrations | None,
) -> Imitation:
    """An algorithm with a new policy. Raises UsageError without demonstrations, or where actions
    have no policy of the kind that is asked for."""
    if demonstrations is None:
        raise UsageError(
            f"--demonstrations: {config.algorithm_name} learns from nothing else; name an .npz "
            "file, as main.py evaluate RUN --record FILE.npz writes it, the folder of a run with a "
            "replay memory, or a Minari dataset"
        )
    policy = in_training(make_policy(config, spec))
    return Imitation(config, PolicyAlone(policy), algorithm, demonstrations)


def make_policy(config: TrainConfig, spec: EnvironmentSpec) -> PolicyNetwork:
    """A new policy of the kind that --policy names; for choices there is only one."""
    settings: BCSettings = config.algorithm
    kinds: dict[str, Callable[[EnvironmentSpec, TrainConfig], PolicyNetwork]] = {
        "squashed": model.squashed_policy,
        "deterministic": model.deterministic_policy,
    }
    if settings.policy not in kinds:
        return model.policy(spec, config)
    if not isinstance(spec.action_space, spaces.Box):
        raise UsageError(
            f"--policy: {settings.policy} is for real-valued actions, a Box, and {spec.env_id} has "
            f"{spec.action_space}; leave the flag out"
        )
    policy = kinds[settings.policy](spec, config)
    # Those of sac, ddpg and td3 are normalised elsewhere.
    _, policy.normalizer = model.preprocessing(spec, config, settings.normalize_observations)
    return policy
