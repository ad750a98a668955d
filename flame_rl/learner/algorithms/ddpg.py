"""Deep deterministic policy gradient (Lillicrap et al. 2016, "Continuous Control with Deep
Reinforcement Learning", algorithm 1).

    Q(s_t, a_t) -> r_t + gamma Q'(s_{t+1}, mu'(s_{t+1}))
    maximise  mean Q(s_t, mu(s_t))

Q' and mu' are target networks, which follow slowly; noise explores.
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
from flame_rl.settings.ddpg import DDPGSettings
from flame_rl.wire.messages import EnvironmentSpec, PolicySnapshot

# Standard deviation of the noise during the warm-up: wide enough for any action.
_WARM_UP_NOISE = 1.0


def ddpg(config: TrainConfig, spec: EnvironmentSpec) -> OffPolicy:
    """The algorithm with new networks. Raises UsageError for actions that are not continuous."""
    refuse_unless_continuous(spec)
    normalizes = config.algorithm.normalize_observations
    return off_policy(config, spec, DDPG(config, spec), normalizes=normalizes)


class DDPG:
    """See `GradientStep`. B is the number of samples, A that of action dimensions."""

    metrics = ("loss", "value_loss", "value", "td_error")

    def __init__(self, config: TrainConfig, spec: EnvironmentSpec) -> None:
        experiment, settings = config.experiment, config.algorithm
        self._settings: DDPGSettings = settings
        self._gamma = experiment.gamma
        policy = model.DeterministicPolicy(spec, experiment.hidden_sizes, experiment.activation)
        self._policy = TrainedNetwork(policy, raw_network)
        self._target_policy = TargetNetwork(self._policy, raw_network)
        self._critic = Critics(config, spec, count=1)

    @property
    def parts(self) -> dict[str, Part]:
        """See `GradientStep.parts`."""
        return {
            "policy": self._policy.module,
            "policy_adam": self._policy.adam,
            "policy_target": self._target_policy.module,
            **self._critic.parts,
        }

    def snapshot(self, env_steps: int) -> PolicySnapshot:
        """The policy, with the noise that is due."""
        settings = self._settings
        if env_steps < settings.warm_up_steps:
            return exploring(self._policy.module.snapshot(), {"std": _WARM_UP_NOISE})
        theta = settings.noise_theta if settings.noise_process == "ornstein-uhlenbeck" else 1.0
        numbers = {"std": settings.noise, "theta": theta}
        return exploring(self._policy.module.snapshot(), numbers)

    def view(self, store: ReplayStore, positions: np.ndarray) -> Samples:
        """Up to `n_step` steps as one."""
        return n_step(store, positions, self._settings.n_step, self._gamma)

    def step(
        self, samples: Samples, generator: np.random.Generator, decay: float
    ) -> dict[str, np.ndarray]:
        """One step of the critic, the policy and the target networks."""
        settings, following = self._settings, samples["next_observations"]
        actions = self._target_policy.output({"inputs": following})
        next_values = self._critic.target_values(following, actions)
        numbers = self._critic.learn(samples, next_values, decay)

        observations = samples["observations"]
        forward = self._policy.network.forward({"inputs": observations})
        values, slopes = self._critic.slopes(observations, forward.outputs[0])
        self._policy.descend(forward, (-slopes,), settings.learning_rate * decay)
        self._target_policy.follow(settings.tau)
        self._critic.follow(settings.tau)
        return numbers | {"loss": -values}
