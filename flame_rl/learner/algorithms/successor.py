"""Successor features with a deep network (Barreto et al. 2017, "Successor Features for Transfer in
Reinforcement Learning", eq. 3 and 4; Kulkarni et al. 2016, "Deep Successor Reinforcement
Learning").

    psi(s_t, a_t) -> phi_t + gamma psi'(s_{t+1}, argmax_a psi'(s_{t+1}, a) . w),   Q = psi . w

phi_t are the parts of the reward of step t, w their weights, and psi' the target network. psi
predicts each part's return apart, so that the values of the same policy under other weights follow
without learning anew.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import model
from flame_rl.learner.off_policy import values
from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.learner.off_policy.replay.views import transitions
from flame_rl.learner.off_policy.target import TargetNetwork
from flame_rl.learner.off_policy.update import (
    OffPolicy,
    exploring,
    off_policy,
    refuse_unless_discrete,
)
from flame_rl.learner.state import Part
from flame_rl.learner.training.choose import raw_network
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.nets.network import Samples
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.successor import SuccessorSettings
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import Column, EnvironmentSpec, Episodes, PolicySnapshot


def successor(config: TrainConfig, spec: EnvironmentSpec) -> OffPolicy:
    """The algorithm with new networks. Raises UsageError for actions that are not Discrete, and
    where the reward that is learned from is no weighted sum of parts."""
    refuse_unless_discrete(spec)
    experiment = config.experiment
    if experiment.reward is not None or (experiment.reward_parts and not experiment.reward_weights):
        raise UsageError(
            "--reward-weights: successor learns the return of each part of the reward, and needs a "
            "weight for each of them, in place of --reward"
        )
    inner = Successor(config, spec)
    parts = Column("reward_parts", "float32", inner.weights.shape, per_observation=False)
    return off_policy(config, spec, inner, columns=(parts,), record=with_parts)


def with_parts(episodes: Episodes) -> Episodes:
    """The episodes with the parts of their rewards in float32; without parts, the reward is the
    only one."""
    columns = episodes.columns
    parts = columns.get("reward_parts", columns["rewards"][:, None]).astype(np.float32)
    return replace(episodes, columns=columns | {"reward_parts": parts})


class Successor:
    """See `GradientStep`. B is the number of samples, A that of actions, P that of parts.

    Attributes:
        weights: of the parts, float32 [P].
    """

    metrics = ("loss", "value", "td_error")

    def __init__(self, config: TrainConfig, spec: EnvironmentSpec) -> None:
        experiment, settings = config.experiment, config.algorithm
        self._settings: SuccessorSettings = settings
        self._gamma = experiment.gamma
        self.weights = np.array(experiment.reward_weights or (1.0,), np.float32)
        module = model.SuccessorNetwork(
            spec,
            experiment.hidden_sizes,
            experiment.activation,
            weights=self.weights,
            frames=experiment.frame_stack,
        )
        self._online = TrainedNetwork(module, raw_network)
        self._target = TargetNetwork(self._online, raw_network)

    @property
    def parts(self) -> dict[str, Part]:
        """See `GradientStep.parts`."""
        return {
            "policy": self._online.module,
            "policy_adam": self._online.adam,
            "target": self._target.module,
        }

    def snapshot(self, env_steps: int) -> PolicySnapshot:
        """The action values by the weights, with the epsilon that is due."""
        epsilon = values.epsilon_due(self._settings, env_steps)
        return exploring(self._online.module.snapshot(), {"epsilon": epsilon})

    def view(self, store: ReplayStore, positions: np.ndarray) -> Samples:
        """Single steps."""
        return transitions(store, positions, self._gamma)

    def step(
        self, samples: Samples, generator: np.random.Generator, decay: float
    ) -> dict[str, np.ndarray]:
        """One step down the loss, and one of the target network."""
        settings = self._settings
        samples = samples | {"targets": self._targets(samples)}
        forward = self._online.network.forward({"inputs": samples["observations"]})
        numbers, slopes = values.successor_loss(self.weights)(samples, *forward.outputs)
        self._online.descend(
            forward, slopes, settings.learning_rate * decay, settings.max_grad_norm
        )
        self._target.follow(settings.tau)
        return numbers

    def _targets(self, samples: Samples) -> np.ndarray:
        """What the successor features should become, [B, P]."""
        output = self._target.output({"inputs": samples["next_observations"]})
        following = output.reshape(len(output), -1, len(self.weights))
        best = values.greedy_actions(following @ self.weights)
        chosen = values.of_actions(following, best)
        return samples["reward_parts"] + samples["discounts"][:, None] * chosen
