"""Twin delayed DDPG (Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic
Methods", algorithm 1).

    Q(s_t, a_t) -> r_t + gamma min Q'(s_{t+1}, mu'(s_{t+1}) + noise)
    maximise  mean Q1(s_t, mu(s_t))

The minimum is over two critics, noise smooths the target policy mu', and the policy and the target
networks move only every other step. The policy explores with noise.
"""

import numpy as np

from flame_rl.learner.off_policy.critics import CriticEnsemble
from flame_rl.learner.off_policy.gradient_step import GradientStep
from flame_rl.learner.off_policy.replay.views import StoredSteps, n_step
from flame_rl.learner.own_model import model_of
from flame_rl.learner.training.choose import in_training
from flame_rl.learner.training.network import Numbers, Samples
from flame_rl.learner.training.trained import TargetNetwork
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import EnvironmentSpec

# Standard deviation of the noise during the warm-up: wide enough for any action.
_WARM_UP_NOISE = 1.0


class TD3(GradientStep):
    """See `GradientStep`. B is the number of samples, A that of action dimensions. `critics`: their
    number. `policy_delay`: gradient steps of the critics for each of the policy and the targets."""

    actions = "continuous"
    metrics = ("loss", "value_loss", "value", "td_error")
    critics = 2

    def __init__(self, config: TrainConfig, spec: EnvironmentSpec) -> None:
        self._settings, self._gamma = config.algorithm, config.experiment.gamma
        self.policy = model_of(config).deterministic_policy(spec, config)
        self._mu = in_training(self.policy)
        self._target_mu = TargetNetwork(self._mu)
        self._critics = CriticEnsemble(config, spec, self.critics)
        self.record = self._critics.record
        self.parts = {
            "policy": self.policy,
            "policy_adam": self._mu.adam,
            "policy_target": self._target_mu.module,
            **self._critics.parts,
        }

    @property
    def policy_delay(self) -> int:
        return self._settings.policy_delay

    def exploration(self, env_steps: int) -> dict[str, float]:
        """The noise of actions, wide during the warm-up."""
        warm_up = env_steps < self._settings.warm_up_steps
        return {"std": _WARM_UP_NOISE if warm_up else self._settings.noise}

    def view(self, store: StoredSteps, positions: np.ndarray) -> Samples:
        """Transitions of up to `n_step` steps."""
        return n_step(store, positions, self._settings.n_step, self._gamma)

    def step(self, samples: Samples, generator: np.random.Generator, decay: float) -> Numbers:
        """One gradient step of the critics; every `policy_delay` steps, one of the others."""
        settings = self._settings
        following = samples["next_observations"]
        actions = self.smoothed(self._target_mu.output({"inputs": following}), generator)
        next_values = self._critics.target_values(following, actions)
        numbers = self._critics.learn(samples, next_values, decay)
        if self._critics.steps % self.policy_delay:
            return numbers

        observations = samples["observations"]
        forward = self._mu.network.forward({"inputs": observations})
        actions = forward.outputs[0]
        values, gradients = self._critics.action_gradients(observations, actions, first=True)
        self._mu.descend(forward, (-gradients,), settings.learning_rate * decay)
        self._target_mu.follow(settings.tau)
        self._critics.follow(settings.tau)
        return numbers | {"loss": -values}

    def smoothed(self, actions: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """The target policy's actions, float32 [B, A], with noise."""
        std, limit = self._settings.target_noise, self._settings.target_noise_clip
        noise = generator.standard_normal(actions.shape, np.float32)
        return np.clip(actions + np.clip(noise * np.float32(std), -limit, limit), -1, 1)
