"""Twin delayed DDPG (Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic
Methods", algorithm 1).

    Q(s_t, a_t) -> r_t + gamma min Q'(s_{t+1}, mu'(s_{t+1}) + noise)
    maximise  mean Q1(s_t, mu(s_t))

The minimum is over two critics, noise smooths the target policy mu', and the policy and the target
networks move only every other step. The policy explores with noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flame_rl.learner.off_policy.critics import CriticEnsemble
from flame_rl.learner.off_policy.gradient_step import GradientStep
from flame_rl.learner.off_policy.replay.views import StoredSteps, n_step
from flame_rl.learner.own_model import model_of
from flame_rl.learner.training.network import Numbers, Samples
from flame_rl.learner.training.trained import TargetNetwork, Trainable
from flame_rl.settings.algorithms import TD3Settings
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import EnvironmentSpec

# Standard deviation of the noise during the warm-up: wide enough for any action.
_WARM_UP_NOISE = 1.0


@dataclass(frozen=True)
class Variant:
    """What TD3 has and DDPG has not.

    Attributes:
        critics: their number, 1 or 2.
        policy_delay: gradient steps of the critics for each of the policy and target networks.
        smoothing: standard deviation and bound of the target policy's noise; None: no noise.
        theta: the share of the exploration noise that is lost at each step, from 0 to 1.
    """

    critics: int
    policy_delay: int
    smoothing: tuple[float, float] | None
    theta: float = 1.0


def td3(config: TrainConfig, spec: EnvironmentSpec, trainable: Trainable) -> TD3:
    """The algorithm with new networks."""
    settings: TD3Settings = config.algorithm
    smoothing = settings.target_noise, settings.target_noise_clip
    return TD3(config, spec, trainable, Variant(2, settings.policy_delay, smoothing))


class TD3(GradientStep):
    """See `GradientStep`; its configuration has `ActionNoise` settings. B is the number of samples,
    A that of action dimensions."""

    actions = "continuous"
    metrics = ("loss", "value_loss", "value", "td_error")

    def __init__(
        self, config: TrainConfig, spec: EnvironmentSpec, trainable: Trainable, variant: Variant
    ) -> None:
        self._settings, self._gamma = config.algorithm, config.experiment.gamma
        self._variant = variant
        self.policy = model_of(config).deterministic_policy(spec, config)
        self._mu = trainable(self.policy)
        self._target_mu = TargetNetwork(self._mu)
        self._critics = CriticEnsemble(config, spec, trainable, variant.critics)
        self.parts = {
            "policy": self.policy,
            "policy_adam": self._mu.adam,
            "policy_target": self._target_mu.module,
            **self._critics.parts,
        }

    def exploration(self, env_steps: int) -> dict[str, float]:
        """The noise of actions, wide during the warm-up."""
        if env_steps < self._settings.warm_up_steps:
            return {"std": _WARM_UP_NOISE}
        return {"std": self._settings.noise, "theta": self._variant.theta}

    def view(self, store: StoredSteps, positions: np.ndarray) -> Samples:
        """Transitions of up to `n_step` steps."""
        return n_step(store, positions, self._settings.n_step, self._gamma)

    def step(self, samples: Samples, generator: np.random.Generator, decay: float) -> Numbers:
        """One gradient step of the critics; every `policy_delay` steps, one of the others."""
        settings = self._settings
        numbers = self._critics.learn(samples, self._next_values(samples, generator), decay)
        if self._critics.steps % self._variant.policy_delay:
            return numbers

        observations = samples["observations"]
        forward = self._mu.network.forward({"inputs": observations})
        actions = forward.outputs[0]
        values, gradients = self._critics.action_gradients(observations, actions, first=True)
        self._mu.descend(forward, (-gradients,), settings.learning_rate * decay)
        self._target_mu.follow(settings.tau)
        self._critics.follow(settings.tau)
        return numbers | {"loss": -values}

    def _next_values(self, samples: Samples, generator: np.random.Generator) -> np.ndarray:
        """Q'(s', mu'(s') + noise), float32 [B]."""
        following = samples["next_observations"]
        actions = self._target_mu.output({"inputs": following})
        if self._variant.smoothing is not None:
            std, limit = self._variant.smoothing
            noise = generator.standard_normal(actions.shape, np.float32)
            noise = np.clip(noise * np.float32(std), -limit, limit)
            actions = np.clip(actions + noise, -1, 1)
        return self._critics.target_values(following, actions)
