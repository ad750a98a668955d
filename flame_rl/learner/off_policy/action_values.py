"""What learners of action values share: Q in training, its target network, and epsilon."""

from __future__ import annotations

import numpy as np
from torch import nn

from flame_rl.learner.state import Part
from flame_rl.learner.training.network import Gradient, Loss, Pass, Samples
from flame_rl.learner.training.trained import TargetNetwork, TrainedNetwork
from flame_rl.settings.config import TrainConfig


class ActionValues:
    """The values Q of discrete actions, and their target network Q' (Mnih et al. 2015,
    "Human-Level Control through Deep Reinforcement Learning").

    Attributes:
        online: Q, in training.
        target: Q'.
    """

    def __init__(self, config: TrainConfig, online: TrainedNetwork, target_period: int = 1) -> None:
        """
        Args:
            config: its `algorithm` has `EpsilonGreedy` settings.
            online: Q; its output is [B, A], or more numbers for each action.
            target_period: gradient steps for each move of the target network.
        """
        self._settings = config.algorithm
        self._target_period = target_period
        self.online = online
        self.target = TargetNetwork(self.online)

    @property
    def parts(self) -> dict[str, Part | nn.Module]:
        """See `GradientStep.parts`."""
        return {
            "policy": self.online.module,
            "policy_adam": self.online.adam,
            "target": self.target.module,
        }

    def epsilon(self, env_steps: int) -> float:
        """The probability of a random action after `env_steps` env steps of the run: linear from
        epsilon_start to epsilon_end, then constant."""
        settings = self._settings
        start, end = settings.epsilon_start, settings.epsilon_end
        if env_steps >= settings.epsilon_steps:
            return end
        return start + (end - start) * env_steps / settings.epsilon_steps

    def step(
        self, samples: Samples, targets: np.ndarray, loss: Loss, decay: float
    ) -> dict[str, np.ndarray]:
        """One gradient step, Q(s, a) -> target; then the target network follows.

        Args:
            samples: "observations", "actions" and what else the loss needs, [B, ...].
            targets: what the loss gets as "targets", [B] or [B, ...].
            loss: of Q's output for the observations.
            decay: factor of the learning rate.

        Returns:
            The loss's numbers, [B] each.
        """
        forward = self.online.network.forward({"inputs": samples["observations"]})
        numbers, slopes = loss(samples | {"targets": targets}, *forward.outputs)
        self.descend(forward, slopes, decay)
        return numbers

    def descend(self, forward: Pass, slopes: tuple[Gradient, ...], decay: float) -> None:
        """As `step`, given a forward pass of Q and the loss's slopes; see
        `TrainedNetwork.descend`."""
        settings = self._settings
        self.online.descend(forward, slopes, settings.learning_rate * decay, settings.max_grad_norm)
        if self.online.adam.steps % self._target_period == 0:
            self.target.follow(settings.tau)
