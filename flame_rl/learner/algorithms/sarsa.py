"""SARSA with a deep network (Sutton and Barto 2018, "Reinforcement Learning: An Introduction", eq.
6.7 and 6.9).

    Q(s_t, a_t) -> r_t + gamma Q'(s_{t+1}, a_{t+1})

or, expected SARSA, the expectation of Q' over the actions of the epsilon-greedy policy in place of
a_{t+1}. Q' is the target network. Unlike Q-learning it values the policy with its random actions.
The network is DQN's; only the targets differ.
"""

import numpy as np

from flame_rl.learner.off_policy import values
from flame_rl.learner.off_policy.gradient_step import GradientStep
from flame_rl.learner.off_policy.replay.views import StoredSteps, n_step
from flame_rl.learner.own_model import model_of
from flame_rl.learner.training.network import Numbers, Samples
from flame_rl.learner.training.trained import Trainable
from flame_rl.settings.algorithms import SarsaSettings
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.masks import allowed_in
from flame_rl.wire.messages import EnvironmentSpec


class Sarsa(GradientStep):
    """See `GradientStep`. B is the number of samples, A that of actions."""

    actions = "discrete"
    metrics = ("loss", "value", "td_error")

    def __init__(self, config: TrainConfig, spec: EnvironmentSpec, trainable: Trainable) -> None:
        self._settings: SarsaSettings = config.algorithm
        self._gamma = config.experiment.gamma
        self.policy = model_of(config).action_values(spec, config)
        self._q = values.ActionValues(config, trainable(self.policy))
        self.parts = self._q.parts

    def exploration(self, env_steps: int) -> dict[str, float]:
        """Epsilon."""
        return {"epsilon": self._q.epsilon(env_steps)}

    def view(self, store: StoredSteps, positions: np.ndarray) -> Samples:
        """Single steps, with the "next_actions" and whether they were "taken", [B] each: after an
        episode's last step there is none. And "epsilon", the latest, [B]."""
        samples = n_step(store, positions, 1, self._gamma)
        samples["next_actions"] = store.read(store.rows(positions) + 1)["actions"]
        samples["taken"] = store.left(positions) > 1
        epsilon = self._q.epsilon(store.steps)
        samples["epsilon"] = np.full(len(positions), epsilon, np.float32)
        return samples

    def step(self, samples: Samples, generator: np.random.Generator, decay: float) -> Numbers:
        """One step down the Huber loss of the TD errors, and one of the target network."""
        return self._q.step(samples, self.targets(samples), values.q_loss, decay)

    def targets(self, samples: Samples) -> np.ndarray:
        """What the actions' values should become, [B]."""
        q = self._q.target.output({"inputs": samples["next_observations"]})
        allowed = allowed_in(samples, q.shape[1], prefix="next_")
        next_values = expected_values(q, samples["epsilon"], allowed)
        if not self._settings.expected:
            # Where a time limit cut the episode, no action was taken: the expectation stands in.
            of_taken = values.of_actions(q, samples["next_actions"])
            next_values = np.where(samples["taken"], of_taken, next_values)
        return values.td_targets(samples["rewards"], samples["discounts"], next_values)


def expected_values(
    next_values: np.ndarray, epsilon: np.ndarray | float, allowed: np.ndarray | None = None
) -> np.ndarray:
    """The expectation of Q(S', A') under the epsilon-greedy policy (Sutton and Barto, eq. 6.9).

    Args:
        next_values: [B, A].
        epsilon: the probability of a uniformly random action, one number or [B].
        allowed: which actions are allowed, bool [B, A]; None: all.

    Returns:
        [B].
    """
    values.check_shape("next_values", next_values, len(next_values), None)
    greatest, mean = next_values.max(axis=1), next_values.mean(axis=1)
    if allowed is not None:
        greatest = next_values.max(axis=1, where=allowed, initial=-np.inf)
        mean = next_values.mean(axis=1, where=allowed)
    return (1 - epsilon) * greatest + epsilon * mean
