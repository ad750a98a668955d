"""Continuous actions: one or two critics with their target networks, and the squashed Gaussian
policy of soft actor-critic.

With two critics, the value is the smaller of the two, because the policy exploits a single critic's
errors (Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods",
section 4.2); or it is their mean, which is less cautious; the task decides which is better
(Moskovitz et al. 2021, "Tactical Optimism and Pessimism for Deep Reinforcement Learning"). Each
critic computes on a core of its own.

With --atoms, a critic predicts the distribution of the return on Z atoms, as logits, and not its
mean alone (Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning"), and
rewards are scaled so that returns stay within the atoms (as in Lee et al. 2025, "Hyperspherical
Normalization for Scalable Deep Reinforcement Learning", section 4.3).

Haarnoja et al. 2018 is "Soft Actor-Critic Algorithms and Applications". B is the number of samples,
D the width of an observation, A that of an action.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn

from flame_rl.learner.off_policy.values import c51_loss, project, softmax
from flame_rl.learner.on_policy.returns import discounted_returns
from flame_rl.learner.own_model import model_of
from flame_rl.learner.state import Stateful
from flame_rl.learner.training.choose import in_training
from flame_rl.learner.training.network import LossResult, Numbers, Samples
from flame_rl.learner.training.slices import run_parallel
from flame_rl.learner.training.trained import TargetNetwork, TrainedNetwork
from flame_rl.nets.heads import LOG_STD_RANGE
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec, Episodes

# Atoms lie between these returns, and rewards are scaled so that the greatest discounted return of
# an episode so far is half of that: the rest is for better policies, which have not played yet.
_ATOMS_END = 10.0


class GreatestReturn(nn.Module):
    """The greatest absolute discounted return so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("greatest", torch.zeros(()))


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
        self._gamma, self._seen = config.experiment.gamma, GreatestReturn()
        self._support, self._loss = None, squared_td_error
        if config.algorithm.atoms > 1:
            shape = -_ATOMS_END, _ATOMS_END, config.algorithm.atoms
            self._support = np.linspace(*shape, dtype=np.float32)
            self._loss = c51_loss(self._support)
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
        return parts if self._support is None else parts | {"critic_scale": self._seen}

    @property
    def steps(self) -> int:
        """Gradient steps so far."""
        return self._critics[0].adam.steps

    def record(self, episodes: Episodes) -> Episodes:
        """See `GradientStep.record`: with atoms, the episodes' returns set the rewards' scale."""
        if self._support is not None:
            ends = np.zeros(len(episodes))
            rewards = episodes.columns["rewards"]
            returns = discounted_returns(rewards, episodes.lengths, self._gamma, ends)
            # Targets look beyond a time limit: as if episodes went on like that, if it matters.
            rest = min(self._gamma, 0.999) ** episodes.lengths
            rest[episodes.terminated | (rest < 1e-3)] = 0
            returns[np.cumsum(episodes.lengths) - episodes.lengths] /= 1 - rest
            greatest = self._seen.greatest.numpy()
            greatest[...] = max(greatest, np.abs(returns).max())
        return episodes

    def target_values(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Q'(s, a), float32 [B], or with atoms their probabilities, [B, Z], of observations [B, D]
        and actions [B, A]."""
        inputs = _inputs(observations, actions)
        outputs = run_parallel([partial(target.output, inputs) for target in self._targets])
        if self._support is None:
            means = returns = np.stack(outputs)[:, :, 0]
        else:
            returns = np.stack([softmax(output, len(self._support))[:, 0] for output in outputs])
            means = returns @ self._support
        if self._average:
            return returns.mean(axis=0)
        return returns[means.argmin(axis=0), np.arange(len(observations))]

    def learn(
        self,
        samples: Samples,
        next_values: np.ndarray,
        decay: float,
        bonus: np.ndarray | float = 0.0,
    ) -> Numbers:
        """One gradient step of each critic: Q(s, a) -> scale * r + bonus + discount * next value,
        given the `target_values` of the next states, a bonus, float32 [B], and the factor of the
        learning rate, `decay`.

        Returns "value_loss", the squared errors, or with atoms the cross-entropies, and "value",
        [critics, B] each; "td_error" of `c51_loss` or absolute, [B], mean over the critics.
        """
        rewards = self._scale * samples["rewards"] + bonus
        if self._support is None:
            targets = rewards + samples["discounts"] * next_values
        else:
            targets = project(self._support, rewards, samples["discounts"], next_values)
        # The only "action" that a critic has values of.
        given = {"targets": targets, "actions": np.zeros(len(targets), np.int64)}
        given |= {"weights": samples["weights"]} if "weights" in samples else {}
        inputs = _inputs(samples["observations"], samples["actions"])

        def step(critic: TrainedNetwork) -> Numbers:
            forward = critic.network.forward(inputs)
            numbers, gradients = self._loss(given, forward.outputs[0])
            critic.descend(forward, gradients, self._rate * decay)
            return numbers

        both = run_parallel([partial(step, critic) for critic in self._critics])
        loss, value, error = (
            np.stack([numbers[name] for numbers in both]) for name in ("loss", "value", "td_error")
        )
        return {"value_loss": loss, "value": value, "td_error": error.mean(axis=0)}

    def action_gradients(
        self, observations: np.ndarray, actions: np.ndarray, first: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Q(s, a), float32 [B], and dQ/da, float32 [B, A], by all critics or the `first` alone, of
        observations, float32 [B, D], and actions, float32 [B, A]."""
        inputs = _inputs(observations, actions)
        critics = self._critics[:1] if first else self._critics
        passes = run_parallel([partial(critic.network.forward, inputs) for critic in critics])
        means = [self._mean(forward.outputs[0]) for forward in passes]
        values = np.stack([value for value, _ in means])
        # The share of each critic in each sample's value: of the smaller one all.
        shares = np.full_like(values, 1 / len(values))
        if len(values) == 2 and not self._average:
            lower = values[0] <= values[1]
            shares[:] = lower, ~lower
        back = [
            partial(forward.backward_inputs, (share[:, None] * gradient,))
            for forward, share, (_, gradient) in zip(passes, shares, means, strict=True)
        ]
        gradients = sum(run_parallel(back))
        return (values * shares).sum(axis=0), gradients[:, self._observation_dim :]

    def _mean(self, output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean return that a critic's output, [B, Z], predicts, [B], and its gradient."""
        if self._support is None:
            return output[:, 0], np.ones_like(output)
        probabilities = softmax(output, len(self._support))[:, 0]
        mean = probabilities @ self._support
        return mean, probabilities * (self._support - mean[:, None])

    @property
    def _scale(self) -> np.float32:
        """The factor of rewards."""
        if self._support is None:
            return np.float32(self._reward_scale)
        return np.float32(_ATOMS_END / 2 / max(float(self._seen.greatest), 1e-30))

    def follow(self, tau: float) -> None:
        """Let the target networks follow; see `TargetNetwork.follow`."""
        for target in self._targets:
            target.follow(tau)


def squared_td_error(samples: Samples, output: np.ndarray) -> LossResult:
    """The squared TD errors. A `Loss` of one value, [B, 1]; see values.py."""
    value = output[:, 0]
    errors = value - samples["targets"]
    numbers = {"loss": errors * errors, "td_error": np.abs(errors), "value": value}
    return numbers, ((2 * samples.get("weights", np.float32(1)) * errors)[:, None],)


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
