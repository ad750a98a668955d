"""Soft actor-critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications").

    Q(s_t, a_t) -> r_t + gamma [ min Q'(s_{t+1}, a') - alpha log pi(a' | s_{t+1}) ]
    maximise  mean [ min Q(s_t, a) - alpha log pi(a | s_t) ]

a' and a are drawn by the current policy, a Gaussian that tanh brings within the bounds; the minimum
is over two critics, or with --average-critics the mean, and Q' are their target networks. The
temperature alpha keeps the policy's entropy at a target. With n-step returns, every state between
s_t and s_{t+n} adds -gamma^i alpha log pi(a' | s_{t+i}) as well, of an action a' that the current
policy draws there: the log-probability of the one that was taken cannot be computed precisely from
what tanh left of it.
"""

import math
from functools import partial

import numpy as np
import torch
from torch import nn

from flame_rl.learner.off_policy import critics
from flame_rl.learner.off_policy.gradient_step import GradientStep
from flame_rl.learner.off_policy.replay.views import StoredSteps, n_step
from flame_rl.learner.own_model import model_of
from flame_rl.learner.training.choose import in_training
from flame_rl.learner.training.network import Numbers, Samples
from flame_rl.learner.training.slices import run_parallel
from flame_rl.learner.training.trained import Adam, flat_parameters
from flame_rl.settings.algorithms import SACSettings
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import EnvironmentSpec


class Temperature(nn.Module):
    """log alpha, the only parameter."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor([math.log(initial)]))


class SAC(GradientStep):
    """See `GradientStep`. B is the number of samples, A that of action dimensions."""

    actions = "continuous"
    metrics = ("loss", "value_loss", "value", "td_error", "policy_entropy", "temperature")

    def __init__(self, config: TrainConfig, spec: EnvironmentSpec) -> None:
        settings: SACSettings = config.algorithm
        self._settings = settings
        self._gamma, self._width = config.experiment.gamma, spec.action_dim
        self.policy = model_of(config).squashed_policy(spec, config)
        self._pi = in_training(self.policy)
        self._critics = critics.CriticEnsemble(config, spec, 2, settings.average_critics)
        self.record = self._critics.record
        temperature = Temperature(settings.initial_temperature)
        self._log_alpha = Adam(flat_parameters(temperature))
        self._target_entropy = settings.target_entropy * self._width
        self.parts = {
            "policy": self.policy,
            "policy_adam": self._pi.adam,
            **self._critics.parts,
            "temperature": temperature,
            "temperature_adam": self._log_alpha,
        }

    def view(self, store: StoredSteps, positions: np.ndarray) -> Samples:
        """Transitions of up to `n_step` steps."""
        return n_step(store, positions, self._settings.n_step, self._gamma)

    def step(self, samples: Samples, generator: np.random.Generator, decay: float) -> Numbers:
        """One gradient step of the critics, the policy and the temperature."""
        count, steps = len(samples["rewards"]), self._settings.n_step
        # Of the next actions, those between, and the actions.
        noise = generator.standard_normal((1 + steps, count, self._width), np.float32)
        rate = self._settings.learning_rate * decay
        # Not math.exp, which raises on overflow: an infinite alpha is refused with the update.
        alpha = float(np.exp(self._log_alpha.parameters[0], dtype=np.float64))
        observations, following = samples["observations"], samples["next_observations"]
        between = samples["between"].swapaxes(0, 1).reshape(-1, *following.shape[1:])
        # Both with the policy before this step, each on a core of its own.
        network = self._pi.network
        (next_output,), forward = run_parallel(
            [
                partial(network.outputs, {"inputs": np.concatenate([following, between])}),
                partial(network.forward, {"inputs": observations}),
            ]
        )

        next_noise = noise[:-1].reshape(-1, self._width)
        next_actions, next_log_probs, _ = critics.squashed_gaussian(next_output, next_noise)
        entropies = -np.float32(alpha) * next_log_probs.reshape(steps, count)
        next_values = self._critics.target_values(following, next_actions[:count])
        discounts = np.concatenate([samples["discounts"][None], samples["between_discounts"].T])
        bonus = (discounts * entropies).sum(axis=0)
        numbers = self._critics.learn(samples, next_values, decay, bonus)

        actions, log_probs, backward = critics.squashed_gaussian(forward.outputs[0], noise[-1])
        values, gradients = self._critics.action_gradients(observations, actions)
        gradient = backward(-gradients, np.full_like(log_probs, alpha))
        self._pi.descend(forward, (gradient,), rate)

        # Eq. 18, but with log alpha in alpha's place, as in the authors' code: the step does not
        # shrink with alpha.
        self._log_alpha.gradient[0] = -float(log_probs.mean()) - self._target_entropy
        self._log_alpha.step(rate)
        self._critics.follow(self._settings.tau)
        return numbers | {
            "loss": alpha * log_probs - values,
            "policy_entropy": -log_probs,
            "temperature": np.array(alpha),
        }
