"""SARSA with a deep network (Sutton and Barto 2018, "Reinforcement Learning: An Introduction", eq.
6.7 and 6.9).

    Q(s_t, a_t) -> r_t + gamma Q'(s_{t+1}, a_{t+1})

or, expected SARSA, the expectation of Q' over the actions of the epsilon-greedy policy in place of
a_{t+1}. Q' is the target network. Unlike Q-learning it values the policy with its random actions.
The network is DQN's; only the targets differ.
"""

from __future__ import annotations

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
from flame_rl.settings.sarsa import SarsaSettings
from flame_rl.wire.messages import EnvironmentSpec, PolicySnapshot


def sarsa(config: TrainConfig, spec: EnvironmentSpec) -> OffPolicy:
    """The algorithm with new networks. Raises UsageError for actions that are not Discrete."""
    refuse_unless_discrete(spec)
    return off_policy(config, spec, Sarsa(config, spec))


class Sarsa:
    """See `GradientStep`. B is the number of samples, A that of actions."""

    metrics = ("loss", "value", "td_error")

    def __init__(self, config: TrainConfig, spec: EnvironmentSpec) -> None:
        experiment, settings = config.experiment, config.algorithm
        self._settings: SarsaSettings = settings
        self._gamma = experiment.gamma
        module = model.ActionValueNetwork(
            spec, experiment.hidden_sizes, experiment.activation, frames=experiment.frame_stack
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
        """The action values, with the epsilon that is due."""
        epsilon = values.epsilon_due(self._settings, env_steps)
        return exploring(self._online.module.snapshot(), {"epsilon": epsilon})

    def view(self, store: ReplayStore, positions: np.ndarray) -> Samples:
        """Single steps, with the "next_actions" and whether they were "taken", [B] each: after an
        episode's last step there is none. And "epsilon", the latest, [B]."""
        samples = transitions(store, positions, self._gamma)
        following = store.read(store.rows(positions) + 1)
        epsilon = np.full(
            len(positions), values.epsilon_due(self._settings, store.steps), np.float32
        )
        taken = store.left(positions) > 1
        return samples | {
            "next_actions": following["actions"],
            "taken": taken,
            "epsilon": epsilon,
        }

    def step(
        self, samples: Samples, generator: np.random.Generator, decay: float
    ) -> dict[str, np.ndarray]:
        """One step down the loss, and one of the target network."""
        settings = self._settings
        samples = samples | {"targets": self._targets(samples)}
        forward = self._online.network.forward({"inputs": samples["observations"]})
        numbers, slopes = values.q_loss(samples, *forward.outputs)
        self._online.descend(
            forward, slopes, settings.learning_rate * decay, settings.max_grad_norm
        )
        self._target.follow(settings.tau)
        return numbers

    def _targets(self, samples: Samples) -> np.ndarray:
        """What the actions' values should become, [B]."""
        following = self._target.output({"inputs": samples["next_observations"]})
        values_next = values.expected_sarsa_values(following, samples["epsilon"])
        if not self._settings.expected:
            # Where a time limit cut the episode, no action was taken: the expectation stands in.
            by_action = values.sarsa_values(following, samples["next_actions"])
            values_next = np.where(samples["taken"], by_action, values_next)
        return values.td_targets(samples["rewards"], samples["discounts"], values_next)
