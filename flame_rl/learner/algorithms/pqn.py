"""Q-learning from fresh episodes, without a replay memory or a target network: PQN (Gallici et al.
2025, "Simplifying Deep Temporal Difference Learning", algorithm 1).

    Q(s_t, a_t) -> G_t = r_t + gamma (lambda G_{t+1} + (1 - lambda) max_a Q(s_{t+1}, a))

These are the returns of Peng's Q(lambda) (Peng and Williams 1996, "Incremental Multi-Step
Q-Learning"), which take exploring actions for greedy ones. An update makes several epochs over the
iteration's episodes, and computes the returns anew before each. Layer normalisation is what keeps
values finite in place of a target network.
"""

import numpy as np
from torch import nn

from flame_rl.learner.learner import Algorithm
from flame_rl.learner.off_policy.gradient_step import refuse_missing_masks
from flame_rl.learner.off_policy.update import refuse_other_actions, with_exploration
from flame_rl.learner.off_policy.values import apply_weights, of_actions
from flame_rl.learner.on_policy.actor_critic import PolicyTraining, policy_epoch
from flame_rl.learner.on_policy.batch import Batch, make_batch
from flame_rl.learner.own_model import model_of
from flame_rl.learner.state import Counter, Stateful, learning_rate_factor
from flame_rl.learner.training.choose import in_training
from flame_rl.learner.training.epoch import StepConfig
from flame_rl.learner.training.frames import time_steps
from flame_rl.learner.training.network import LossResult, Samples
from flame_rl.learner.training.slices import outputs
from flame_rl.settings.algorithms import PQNSettings
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.masks import ACTION_MASKS, masked
from flame_rl.wire.messages import EnvironmentSpec, Episodes, PolicySnapshot


class PQN(Algorithm):
    """See `Algorithm`. N is the number of steps in a batch, E of episodes, A of actions."""

    metrics = ("loss", "gradient_norm", "value", "td_error", "policy_steps")

    def __init__(
        self, config: TrainConfig, spec: EnvironmentSpec, demonstrations: object | None
    ) -> None:
        """Make a new network. Raises UsageError for actions that are no single choice, and for
        demonstrations."""
        refuse_other_actions("discrete", spec)
        if demonstrations is not None:
            raise UsageError(
                "--demonstrations: pqn learns from what its latest policy has done; choose dqn, "
                "which replays demonstrations, too"
            )
        trained = in_training(model_of(config).action_values(spec, config))  # output [N, A]
        self.config, self._training = config, PolicyTraining(trained, trained.adam)
        self._env_steps = Counter()  # of the run so far, for epsilon

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        return self._training.parts | {"env_steps": self._env_steps}

    def snapshot(self) -> PolicySnapshot:
        epsilon = self.config.algorithm.epsilon(self._env_steps.count)
        return with_exploration(self._training.policy.module.snapshot(), {"epsilon": epsilon})

    def update(
        self, episodes: Episodes, generator: np.random.Generator, progress: float
    ) -> dict[str, float]:
        """Some epochs over the episodes; see `Algorithm.update`."""
        settings: PQNSettings = self.config.algorithm
        refuse_missing_masks(episodes)
        self._env_steps.count += episodes.steps
        training = self._training
        batch = training.prepare(make_batch(episodes, training.remembers, training.frames))
        rate = settings.learning_rate * learning_rate_factor(settings.learning_rate_decay, progress)
        step = StepConfig(rate, settings.max_grad_norm)
        numbers: list[dict[str, float]] = []  # of each minibatch
        for _ in range(settings.epochs):
            targets = self.targets(batch).astype(np.float32)
            epoch = policy_epoch(batch, {"targets": targets}, settings.minibatches, generator)
            numbers += training.fit_policy(epoch, squared_error, step)
        means = {name: float(np.mean([each[name] for each in numbers])) for name in numbers[0]}
        return means | {"policy_steps": float(len(numbers))}

    def targets(self, batch: Batch) -> np.ndarray:
        """G_t of each step of a prepared batch, float64 [N]."""
        samples = {"inputs": batch.policy_inputs}
        if batch.time is not None:
            samples["time"] = time_steps(batch.lengths + 1)
        (q,) = outputs(self._training.policy.network, samples)
        # Of what masks allow; after an end, where they may allow nothing, no value counts.
        columns = {name: batch.columns[name] for name in (ACTION_MASKS,) if name in batch.columns}
        best = masked(q, columns, -np.inf).max(axis=1).astype(np.float64)
        gamma, decay = self.config.experiment.gamma, self.config.algorithm.q_lambda
        # G_t - V_t = delta_t + gamma lambda (G_{t+1} - V_{t+1}), with V = max_a Q.
        return best[batch.rows] + batch.advantages(best, gamma, decay)


def squared_error(samples: Samples, q: np.ndarray) -> LossResult:
    """(Q(s_t, a_t) - G_t)^2 / 2. A `Loss` of the values of all actions, [B, A]; "targets" are
    [B], and "td_error" is absolute."""
    value = of_actions(q, samples["actions"])
    errors = value - samples["targets"]
    numbers = {"loss": 0.5 * errors * errors, "td_error": np.abs(errors), "value": value}
    return apply_weights(samples, numbers, errors, q)
