"""SARSA with a deep network (Sutton and Barto 2018, "Reinforcement Learning: An Introduction", eq.
6.7 and 6.9).

    Q(s_t, a_t) -> r_t + gamma Q'(s_{t+1}, a_{t+1})

or, expected SARSA, the expectation of Q' over the actions of the epsilon-greedy policy in place of
a_{t+1}. Q' is the target network. Unlike Q-learning it values the policy with its random actions.
The network is DQN's; only the targets differ.
"""

import numpy as np

from flame_rl.learner.off_policy import values
from flame_rl.learner.off_policy.replay.views import StoredSteps, n_step
from flame_rl.learner.training.network import Numbers, Samples
from flame_rl.wire.masks import allowed_in


class Sarsa(values.ActionValues):
    """See `ActionValues`. B is the number of samples, A that of actions."""

    def view(self, store: StoredSteps, positions: np.ndarray) -> Samples:
        """Single steps, with the "next_actions" and whether they were "taken", [B] each: after an
        episode's last step there is none. And "epsilon", the latest, [B]."""
        samples = n_step(store, positions, 1, self.gamma)
        samples["next_actions"] = store.read(store.rows(positions) + 1)["actions"]
        samples["taken"] = store.left(positions) > 1
        epsilon = self.settings.epsilon(store.steps)
        samples["epsilon"] = np.full(len(positions), epsilon, np.float32)
        return samples

    def step(self, samples: Samples, generator: np.random.Generator, decay: float) -> Numbers:
        """One step down the Huber loss of the TD errors, and one of the target network."""
        return self.learn(samples, self.targets(samples), values.q_loss, decay)

    def targets(self, samples: Samples) -> np.ndarray:
        """What the actions' values should become, [B]."""
        q = self.target.output({"inputs": samples["next_observations"]})
        allowed = allowed_in(samples, q.shape[1], prefix="next_")
        next_values = expected_values(q, samples["epsilon"], allowed)
        if not self.settings.expected:
            # Where a time limit cut the episode, no action was taken: the expectation stands in.
            of_taken = values.of_actions(q, samples["next_actions"])
            next_values = np.where(samples["taken"], of_taken, next_values)
        return values.td_targets(samples["rewards"], samples["discounts"], next_values)


def expected_values(
    next_values: np.ndarray, epsilon: np.ndarray | float, allowed: np.ndarray | None = None
) -> np.ndarray:
    """The expectation of Q(S', A') under the epsilon-greedy policy (Sutton and Barto, eq. 6.9),
    [B], given the values, [B, A], the probability of a uniformly random action, one number or [B],
    and which actions are allowed, bool [B, A]; None: all."""
    greatest, mean = next_values.max(axis=1), next_values.mean(axis=1)
    if allowed is not None:
        greatest = next_values.max(axis=1, where=allowed, initial=-np.inf)
        mean = next_values.mean(axis=1, where=allowed)
    return (1 - epsilon) * greatest + epsilon * mean
