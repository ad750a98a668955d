"""Twin delayed DDPG (Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic
Methods", algorithm 1).

    Q(s_t, a_t) -> r_t + gamma min Q'(s_{t+1}, mu'(s_{t+1}) + noise)
    maximise  mean Q1(s_t, mu(s_t))

The minimum is over two critics, noise smooths the target policy mu', and the policy and the target
networks move only every other step.
"""

from __future__ import annotations

import numpy as np

import model
from flame_rl.learner.off_policy.critics import Critics
from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.learner.off_policy.replay.views import n_step
from flame_rl.learner.off_policy.target import TargetNetwork
from flame_rl.learner.off_policy.update import (
    OffPolicy,
    exploring,
    off_policy,
    refuse_unless_continuous,
)
from flame_rl.learner.state import Part
from flame_rl.learner.training.choose import raw_network
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.nets.network import Samples
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.td3 import TD3Settings
from flame_rl.wire.messages import EnvironmentSpec, PolicySnapshot

# Standard deviation of the noise during the warm-up: wide enough for any action.
_WARM_UP_NOISE = 1.0


def td3(config: TrainConfig, spec: EnvironmentSpec) -> OffPolicy:
    """The algorithm with new networks. Raises UsageError for actions that are not continuous."""
    refuse_unless_continuous(spec)
    normalizes = config.algorithm.normalize_observations
    return off_policy(config, spec, TD3(config, spec), normalizes=normalizes)


class TD3:
    """See `GradientStep`. B is the number of samples, A that of action dimensions."""

    metrics = ("loss", "value_loss", "value", "td_error")

    def __init__(self, config: TrainConfig, spec: EnvironmentSpec) -> None:
        experiment, settings = config.experiment, config.algorithm
        self._settings: TD3Settings = settings
        self._gamma = experiment.gamma
        policy = model.DeterministicPolicy(spec, experiment.hidden_sizes, experiment.activation)
        self._policy = TrainedNetwork(policy, raw_network)
        self._target_policy = TargetNetwork(self._policy, raw_network)
        self._critics = Critics(config, spec, count=2)

    @property
    def parts(self) -> dict[str, Part]:
        """See `GradientStep.parts`."""
        return {
            "policy": self._policy.module,
            "policy_adam": self._policy.adam,
            "policy_target": self._target_policy.module,
            **self._critics.parts,
        }

    def snapshot(self, env_steps: int) -> PolicySnapshot:
        """The policy, with the noise that is due."""
        settings = self._settings
        warm = env_steps >= settings.warm_up_steps
        std = settings.noise if warm else _WARM_UP_NOISE
        return exploring(self._policy.module.snapshot(), {"std": std})

    def view(self, store: ReplayStore, positions: np.ndarray) -> Samples:
        """Up to `n_step` steps as one."""
        return n_step(store, positions, self._settings.n_step, self._gamma)

    def step(
        self, samples: Samples, generator: np.random.Generator, decay: float
    ) -> dict[str, np.ndarray]:
        """One step of the critics; every `policy_delay` steps one of policy and target networks."""
        settings = self._settings
        numbers = self._critics.learn(samples, self._next_values(samples, generator), decay)
        if self._critics.steps % settings.policy_delay:
            return numbers

        observations = samples["observations"]
        forward = self._policy.network.forward({"inputs": observations})
        values, slopes = self._critics.slopes(observations, forward.outputs[0], first=True)
        self._policy.descend(forward, (-slopes,), settings.learning_rate * decay)
        self._target_policy.follow(settings.tau)
        self._critics.follow(settings.tau)
        return numbers | {"loss": -values}

    def _next_values(self, samples: Samples, generator: np.random.Generator) -> np.ndarray:
        """Of the next observations and smoothed actions, float32 [B]."""
        settings, following = self._settings, samples["next_observations"]
        actions = self._target_policy.output({"inputs": following})
        limit = settings.target_noise_clip
        noise = generator.standard_normal(actions.shape, np.float32)
        noise = np.clip(noise * np.float32(settings.target_noise), -limit, limit)
        return self._critics.target_values(following, np.clip(actions + noise, -1, 1))
