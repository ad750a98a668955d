"""Soft actor-critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications").

    Q(s_t, a_t) -> r_t + gamma [ min Q'(s_{t+1}, a') - alpha log pi(a' | s_{t+1}) ]
    maximise  mean [ min Q(s_t, a) - alpha log pi(a | s_t) ]

a' and a are drawn by the current policy, a Gaussian that tanh brings within the bounds; the minimum
is over two critics, or with --average-critics the mean, and Q' are their target networks. The
temperature alpha keeps the policy's entropy at a target.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from torch import nn

import model
from flame_rl.learner.off_policy.critics import Critics
from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.learner.off_policy.replay.views import n_step
from flame_rl.learner.off_policy.squashed import squashed_gaussian, temperature_slope
from flame_rl.learner.off_policy.update import OffPolicy, off_policy, refuse_unless_continuous
from flame_rl.learner.state import Part
from flame_rl.learner.training.choose import raw_network
from flame_rl.learner.training.flat import adam_of
from flame_rl.learner.training.slices import at_once
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.nets.network import Samples
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.sac import SACSettings
from flame_rl.wire.messages import EnvironmentSpec, PolicySnapshot


def sac(config: TrainConfig, spec: EnvironmentSpec) -> OffPolicy:
    """The algorithm with new networks. Raises UsageError for actions that are not continuous."""
    refuse_unless_continuous(spec)
    normalizes = config.algorithm.normalize_observations
    return off_policy(config, spec, SAC(config, spec), normalizes=normalizes)


class Temperature(nn.Module):
    """log alpha, the only parameter."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor([math.log(initial)]))


class SAC:
    """See `GradientStep`. B is the number of samples, A that of action dimensions."""

    metrics = ("loss", "value_loss", "value", "td_error", "policy_entropy", "temperature")

    def __init__(self, config: TrainConfig, spec: EnvironmentSpec) -> None:
        experiment, settings = config.experiment, config.algorithm
        self._settings: SACSettings = settings
        self._gamma, self._width = experiment.gamma, spec.action_dim
        policy = model.SquashedGaussianPolicy(
            spec, experiment.hidden_sizes, experiment.activation, settings.initial_std
        )
        self._policy = TrainedNetwork(policy, raw_network)
        self._critics = Critics(config, spec, count=2, average=settings.average_critics)
        self._temperature = Temperature(settings.initial_temperature)
        self._temperature_adam = adam_of(self._temperature)
        self._target_entropy = settings.target_entropy * self._width

    @property
    def parts(self) -> dict[str, Part]:
        """See `GradientStep.parts`."""
        return {
            "policy": self._policy.module,
            "policy_adam": self._policy.adam,
            **self._critics.parts,
            "temperature": self._temperature,
            "temperature_adam": self._temperature_adam,
        }

    def snapshot(self, env_steps: int) -> PolicySnapshot:
        """The policy, which explores by itself."""
        return self._policy.module.snapshot()

    def view(self, store: ReplayStore, positions: np.ndarray) -> Samples:
        """Up to `n_step` steps as one."""
        return n_step(store, positions, self._settings.n_step, self._gamma)

    def step(
        self, samples: Samples, generator: np.random.Generator, decay: float
    ) -> dict[str, np.ndarray]:
        """One step of the critics, the policy and the temperature."""
        shape = 2, len(samples["rewards"]), self._width
        noise = generator.standard_normal(shape, np.float32)
        # NumPy's, because math.exp raises where this is infinite, and the update is refused.
        alpha = float(np.exp(self._temperature_adam.parameters[0], dtype=np.float64))
        observations, settings = samples["observations"], self._settings
        network, following = self._policy.network, {"inputs": samples["next_observations"]}
        # Both by the policy before this step, each by a core.
        (output,), forward = at_once(
            [
                partial(network.outputs, following),
                partial(network.forward, {"inputs": observations}),
            ]
        )
        next_values = self._next_values(samples, output, alpha, noise[0])
        numbers = self._critics.learn(samples, next_values, decay)
        actions, log_probs, backward = squashed_gaussian(forward.outputs[0], noise[1])
        values, value_slopes = self._critics.slopes(observations, actions)
        slope = backward(-value_slopes, np.full_like(log_probs, alpha))
        self._policy.descend(forward, (slope,), settings.learning_rate * decay)

        adam = self._temperature_adam
        adam.gradient[0] = temperature_slope(log_probs, self._target_entropy)
        adam.step(settings.learning_rate * decay)
        self._critics.follow(settings.tau)
        return numbers | {
            "loss": alpha * log_probs - values,
            "policy_entropy": -log_probs,
            "temperature": np.array(alpha),
        }

    def _next_values(
        self, samples: Samples, output: np.ndarray, alpha: float, noise: np.ndarray
    ) -> np.ndarray:
        """Values with entropy, float32 [B]; `output` is the policy's for the next observations."""
        following = samples["next_observations"]
        actions, log_probs, _ = squashed_gaussian(output, noise)
        return self._critics.target_values(following, actions) - np.float32(alpha) * log_probs
