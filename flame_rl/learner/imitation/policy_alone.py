"""A policy that learns without values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import nn

from flame_rl.learner.on_policy.batch import Batch
from flame_rl.learner.state import Part
from flame_rl.learner.training.epoch import Epoch, StepConfig
from flame_rl.learner.training.minibatches import descend
from flame_rl.learner.training.network import Loss, Samples
from flame_rl.learner.training.normalize import RunningMoments
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.modules.observations import normalizers_of


class PolicyAlone:
    """What behaviour cloning needs of a `flame_rl.learner.on_policy.actor_critic.ActorCritic`."""

    def __init__(self, policy: TrainedNetwork) -> None:
        self.policy, self.adam = policy, policy.adam
        self.remembers, self.frames = policy.network.remembers, policy.network.frames

    @property
    def parts(self) -> dict[str, Part | nn.Module]:
        """Everything with state, by name."""
        return {"policy": self.policy.module, "policy_adam": self.adam}

    def prepare(self, batch: Batch) -> Batch:
        """Normalise observations by the statistics of this batch, where they are normalised, and
        add the network's inputs to it."""
        normalizers = normalizers_of(self.policy.module)
        if normalizers:
            moments = RunningMoments(np.asarray(batch.observations[:1]).shape[1])
            moments.update(batch.observations)
            for numbers, normalizer in normalizers:
                normalizer.set(moments.mean[numbers], moments.std[numbers])
        return replace(batch, policy_inputs=self.policy.network.prepare(batch.network_inputs))

    def columns(self, batch: Batch, targets: np.ndarray) -> Samples:
        """See `ActorCritic`."""
        return {}

    def descend(self, epoch: Epoch, loss: Loss, config: StepConfig) -> list[dict[str, float]]:
        """See `ActorCritic`."""
        return descend(self.policy.network, self.adam, epoch, loss, config)
