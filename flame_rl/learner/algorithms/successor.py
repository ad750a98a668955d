"""Successor features with a deep network (Barreto et al. 2017, "Successor Features for Transfer in
Reinforcement Learning", eq. 3 and 4; Kulkarni et al. 2016, "Deep Successor Reinforcement
Learning").

    psi(s_t, a_t) -> phi_t + gamma psi'(s_{t+1}, argmax_a psi'(s_{t+1}, a) . w),   Q = psi . w

phi_t are the reward parts of step t, w their weights, and psi' the target network. psi predicts the
return of each reward part apart, so that the values of the same policy under other weights follow
without learning anew.
"""

from dataclasses import replace

import numpy as np

from flame_rl.learner.off_policy import values
from flame_rl.learner.off_policy.replay.views import StoredSteps, n_step
from flame_rl.learner.training.network import Loss, LossResult, Numbers, Samples
from flame_rl.modules.networks import Returns
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import Column, EnvironmentSpec, Episodes


class Successor(values.ActionValues):
    """See `ActionValues`, whose networks are psi and psi' here. B is the number of samples, A that
    of actions, P that of reward parts."""

    def __init__(self, config: TrainConfig, spec: EnvironmentSpec) -> None:
        """Raises UsageError where the reward is no weighted sum of parts."""
        experiment = config.experiment
        weighted = experiment.reward_weights or not experiment.reward_parts
        if experiment.reward is not None or not weighted:
            raise UsageError(
                "--reward-weights: successor learns the return of each part; give a weight for each"
            )
        self._weights = np.array(experiment.reward_weights or (1.0,), np.float32)
        super().__init__(config, spec, Returns(weights=self._weights))
        self._loss = successor_loss(self._weights)
        self.columns = (
            Column("reward_parts", "float32", self._weights.shape, per_observation=False),
        )

    def record(self, episodes: Episodes) -> Episodes:
        """The episodes with their reward parts in float32; without, the reward is the only one."""
        columns = episodes.columns
        phi = columns.get("reward_parts", columns["rewards"][:, None]).astype(np.float32)
        return replace(episodes, columns=columns | {"reward_parts": phi})

    def view(self, store: StoredSteps, positions: np.ndarray) -> Samples:
        """Single steps."""
        return n_step(store, positions, 1, self.gamma)

    def step(self, samples: Samples, generator: np.random.Generator, decay: float) -> Numbers:
        """One step down the Huber losses of all reward parts, and one of the target network."""
        return self.learn(samples, self.targets(samples), self._loss, decay)

    def targets(self, samples: Samples) -> np.ndarray:
        """What the successor features should become, [B, P]."""
        output = self.target.output({"inputs": samples["next_observations"]})
        psi = output.reshape(len(output), -1, len(self._weights))
        best = values.best_actions(psi @ self._weights, samples)
        chosen = values.of_actions(psi, best)
        return samples["reward_parts"] + samples["discounts"][:, None] * chosen


def successor_loss(weights: np.ndarray) -> Loss:
    """The Huber losses of the errors of successor features, summed over the reward parts (Barreto
    et al. 2017, section 3, with Huber's loss in place of the square), whose weights are [P].

    The loss's samples have "targets", [B, P]; its output is the features of each action,
    [B, A * P]. "value" is Q(s, a), and "td_error" its absolute error."""

    def loss(samples: Samples, outputs: np.ndarray) -> LossResult:
        targets, chosen = values.distributions(samples, outputs, len(weights))
        errors, w = chosen - targets, weights.astype(chosen.dtype)
        numbers = {
            "loss": values.huber(errors).sum(axis=1),
            "td_error": np.abs(errors @ w),
            "value": chosen @ w,
        }
        return values.apply_weights(samples, numbers, np.clip(errors, -1, 1), outputs)

    return loss
