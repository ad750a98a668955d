"""Continuous actions: one or two critics with their target networks, and the squashed Gaussian
policy of soft actor-critic.

With two critics, the value is the smaller of the two, because the policy exploits a single critic's
errors (Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods",
section 4.2); or it is their mean, which is less cautious; the task decides which is better
(Moskovitz et al. 2021, "Tactical Optimism and Pessimism for Deep Reinforcement Learning"). Each
critic computes on a core of its own.

Haarnoja et al. 2018 is "Soft Actor-Critic Algorithms and Applications". B is the number of samples,
D the width of an observation, A that of an action.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from torch import nn

from flame_rl.learner.own_model import model_of
from flame_rl.learner.state import Stateful
from flame_rl.learner.training.choose import in_training
from flame_rl.learner.training.network import Numbers, Samples
from flame_rl.learner.training.slices import run_parallel
from flame_rl.learner.training.trained import TargetNetwork, TrainedNetwork
from flame_rl.nets.heads import LOG_STD_RANGE
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec


class CriticEnsemble:
    """The networks of Q(s, a), in training, each with its Adam and its target network Q'."""

    def __init__(
        self, config: TrainConfig, spec: EnvironmentSpec, count: int, average: bool = False
    ) -> None:
        """Make 1 or 2 new critics; the value is the smaller one of both, or their mean. The
        algorithm has `Critics` settings. Raises UsageError for stacked frames."""
        frames = config.experiment.frame_stack
        if frames > 1:
            raise UsageError(
                f"--frame-stack: {config.algorithm_name} learns from one observation, not "
                f"{frames}; leave the flag out, or choose ppo"
            )
        self._average = average
        self._rate = config.algorithm.value_learning_rate
        self._reward_scale = config.algorithm.reward_scale
        self._observation_dim = spec.observation_dim
        self._critics = [in_training(model_of(config).critic(spec, config)) for _ in range(count)]
        self._targets = [TargetNetwork(critic) for critic in self._critics]

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        """See `GradientStep.parts`."""
        parts: dict[str, Stateful | nn.Module] = {}
        pairs = zip(self._critics, self._targets, strict=True)
        for number, (critic, target) in enumerate(pairs, start=1):
            parts[f"critic{number}"] = critic.module
            parts[f"critic{number}_adam"] = critic.adam
            parts[f"critic{number}_target"] = target.module
        return parts

    @property
    def steps(self) -> int:
        """Gradient steps so far."""
        return self._critics[0].adam.steps

    def target_values(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Q'(s, a), float32 [B], of observations [B, D] and actions [B, A]."""
        inputs = _inputs(observations, actions)
        values = run_parallel([partial(target.output, inputs) for target in self._targets])
        return (np.mean(values, axis=0) if self._average else np.minimum.reduce(values))[:, 0]

    def learn(
        self,
        samples: Samples,
        next_values: np.ndarray,
        decay: float,
        bonus: np.ndarray | float = 0.0,
    ) -> Numbers:
        """One gradient step of each critic: Q(s, a) -> scale * r + bonus + discount * next value,
        given the values of the next states and the bonus, float32 [B] each, and the factor of the
        learning rate, `decay`.

        Returns "value_loss", the squared errors, and "value", [critics, B] each; "td_error", [B],
        the absolute error, mean over the critics.
        """
        rewards = self._reward_scale * samples["rewards"] + bonus
        targets = rewards + samples["discounts"] * next_values
        inputs = _inputs(samples["observations"], samples["actions"])
        weights = samples.get("weights", np.float32(1))

        def step(critic: TrainedNetwork) -> np.ndarray:
            forward = critic.network.forward(inputs)
            values = forward.outputs[0][:, 0]
            gradient = 2 * weights * (values - targets)
            critic.descend(forward, (gradient[:, None],), self._rate * decay)
            return values

        values = np.stack(run_parallel([partial(step, critic) for critic in self._critics]))
        errors = np.abs(values - targets)
        numbers = {"value_loss": errors * errors, "value": values}
        return numbers | {"td_error": errors.mean(axis=0)}

    def action_gradients(
        self, observations: np.ndarray, actions: np.ndarray, first: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Q(s, a), float32 [B], and dQ/da, float32 [B, A], by all critics or the `first` alone, of
        observations, float32 [B, D], and actions, float32 [B, A]."""
        inputs = _inputs(observations, actions)
        critics = self._critics[:1] if first else self._critics
        passes = run_parallel([partial(critic.network.forward, inputs) for critic in critics])
        values = np.stack([forward.outputs[0][:, 0] for forward in passes])
        # The share of each critic in each sample's value: of the smaller one all.
        shares = np.full_like(values, 1 / len(values))
        if len(values) == 2 and not self._average:
            lower = values[0] <= values[1]
            shares[:] = lower, ~lower
        back = [
            partial(forward.backward_inputs, (share[:, None],))
            for forward, share in zip(passes, shares, strict=True)
        ]
        gradients = sum(run_parallel(back))
        return (values * shares).sum(axis=0), gradients[:, self._observation_dim :]

    def follow(self, tau: float) -> None:
        """Let the target networks follow; see `TargetNetwork.follow`."""
        for target in self._targets:
            target.follow(tau)


def _inputs(observations: np.ndarray, actions: np.ndarray) -> Samples:
    return {"inputs": np.concatenate([observations, actions], axis=1)}


# Given the gradients of a loss for actions, [B, A], and for their log-probabilities, [B], returns
# that for the output, [B, 2A].
Backward = Callable[[np.ndarray, np.ndarray], np.ndarray]


def squashed_gaussian(
    output: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Backward]:
    """Actions a = tanh(u) with u = mean + std * noise, and their log-probabilities,
    log N(u; mean, std) - sum log(1 - tanh(u)^2) (Haarnoja et al. 2018, eq. 26), by
    reparameterisation: both are functions of the output, with the noise held fixed.

    With a = tanh(u): da / du = 1 - a^2, d log p / du = 2 a, and besides u's part
    d log p / d log std = -1; du / d mean = 1, du / d log std = std * noise.

    A policy's output, float32 or float64 [B, 2A], is the means, then the logarithms of the standard
    deviations, which are clipped to `LOG_STD_RANGE`; where they are, their gradient is 0. The noise
    is standard normal, [B, A]. Returns actions in [-1, 1], [B, A], their log-probabilities, [B],
    and the backward pass, see `Backward`, all of the output's type.
    """
    width = noise.shape[1]
    mean, raw_log_std = output[:, :width], output[:, width:]
    log_std = np.clip(raw_log_std, *LOG_STD_RANGE)
    shift = np.exp(log_std) * noise
    u = mean + shift
    actions = np.tanh(u)
    # log(1 - tanh(u)^2), which for large u would be the logarithm of 0; the function is even.
    size = np.abs(u)
    log_derivative = 2 * (math.log(2) - size - np.log1p(np.exp(-2 * size)))
    constant = 0.5 * math.log(2 * math.pi)
    log_probs = -(0.5 * noise * noise + log_std + constant + log_derivative).sum(axis=1)

    def backward(of_actions: np.ndarray, of_log_probs: np.ndarray) -> np.ndarray:
        column = of_log_probs[:, None]
        gradient = np.empty_like(output)
        of_u = of_actions * np.exp(log_derivative) + 2 * column * actions
        gradient[:, :width] = of_u
        gradient[:, width:] = (of_u * shift - column) * (raw_log_std == log_std)
        return gradient

    return actions, log_probs, backward
