"""Deep Q-learning (Mnih et al. 2015, "Human-Level Control through Deep Reinforcement Learning").

    Q(s_t, a_t) -> r_t + gamma max_a Q'(s_{t+1}, a)

Q' is the target network, which follows Q slowly. Switches add the components of Rainbow (Hessel et
al. 2018, "Rainbow: Combining Improvements in Deep Reinforcement Learning") except noisy layers:
double Q-learning, duelling networks, n-step returns, prioritised replay, and distributions of
returns, as atoms (C51) or quantiles (QR-DQN).
"""

from collections.abc import Iterator

import numpy as np
from numpy.random import Generator

from flame_rl.learner.off_policy import values
from flame_rl.learner.off_policy.replay.views import StoredSteps, n_step
from flame_rl.learner.training.network import Numbers, Samples
from flame_rl.modules.networks import Returns, dueling
from flame_rl.settings.algorithms import DQNSettings
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import EnvironmentSpec


class DQN(values.ActionValues):
    """See `ActionValues`; the formulas are in flame_rl/learner/off_policy/values.py.

    B is the number of samples, A of actions, Z of atoms or quantiles (1 without either).
    """

    def __init__(self, config: TrainConfig, spec: EnvironmentSpec) -> None:
        settings: DQNSettings = config.algorithm
        self.target_period, self._support = settings.target_period, None
        quantiles, loss = 1, values.q_loss
        if settings.distribution == "c51":
            low, high = settings.lowest_return, settings.highest_return
            self._support = np.linspace(low, high, settings.atoms, dtype=np.float32)
            loss = values.c51_loss(self._support)
        elif settings.distribution == "quantiles":
            quantiles = settings.atoms
            loss = values.quantile_loss(quantiles)
        returns = Returns(settings.dueling, quantiles, self._support)
        self._atoms = returns.numbers
        # Of a return's distribution: the values of its atoms, or equal shares of its quantiles.
        self._mean = np.full(self._atoms, 1 / self._atoms, np.float32)
        if self._support is not None:
            self._mean = self._support
        super().__init__(config, spec, returns)
        self._loss = values.dueling_loss(loss, self._atoms) if settings.dueling else loss

    def exploration(self, env_steps: int) -> dict[str, float]:
        """Epsilon, and the probability that a step has the noise of the step before."""
        return super().exploration(env_steps) | {"repeat": self.settings.epsilon_repeat}

    def view(self, store: StoredSteps, positions: np.ndarray) -> Samples:
        """Transitions of up to `n_step` steps."""
        return n_step(store, positions, self.settings.n_step, self.gamma)

    def steps(self, samples: Samples, generator: Generator, decay: float) -> Iterator[Numbers]:
        """See `GradientStep.steps`; all in one call of compiled code where nothing of Rainbow needs
        more than its `q_loss`."""
        if self._loss is values.q_loss and self.compiled:
            return self.q_steps(samples, self.settings.double, decay)
        return super().steps(samples, generator, decay)

    def step(self, samples: Samples, generator: Generator, decay: float) -> Numbers:
        """One gradient step; every `target_period` steps the target network follows."""
        return self.learn(samples, self.targets(samples), self._loss, decay)

    def targets(self, samples: Samples) -> np.ndarray:
        """Targets for the action that was taken: its value, [B], its quantiles, or the
        probabilities of its atoms, both [B, Z]."""
        following = {"inputs": samples["next_observations"]}
        returns = self._returns(self.target.output(following))
        selecting = returns
        if self.settings.double:
            # Van Hasselt et al. 2016, "Deep Reinforcement Learning with Double Q-Learning", eq. 4.
            (output,) = self.online.network.outputs(following)
            selecting = self._returns(output)
        best = values.best_actions(selecting @ self._mean, samples)
        chosen = values.of_actions(returns, best)
        rewards, discounts = samples["rewards"], samples["discounts"]
        if self._support is not None:
            return values.project(self._support, rewards, discounts, chosen)
        targets = values.td_targets(rewards, discounts, chosen)
        return targets if self.settings.distribution == "quantiles" else targets[:, 0]

    def _returns(self, output: np.ndarray) -> np.ndarray:
        """The network's output as values, quantiles or probabilities, [B, A, Z]."""
        if self.settings.dueling:
            output = dueling(output, self._atoms)
        if self._support is not None:
            return values.softmax(output, self._atoms)
        return output.reshape(len(output), -1, self._atoms)
