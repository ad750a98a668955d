"""Deep Q-learning with a memory, from replayed sequences (Kapturowski et al. 2019, "Recurrent
Experience Replay in Distributed Reinforcement Learning", section 3).

    Q(h_t, a_t) -> r_t + gamma Q'(h'_{t+1}, argmax_a Q(h_{t+1}, a))

h_t is what the network remembers of a sequence until step t, h'_t what the target network does.
Both begin a sequence with an empty memory and burn in: they are unrolled over steps that are not
learned from, until what they remember is nearly what an actor remembers there. Without the paper's
priorities, n-step returns and rescaled values.
"""

from __future__ import annotations

import numpy as np

import model
from flame_rl.learner.off_policy import values
from flame_rl.learner.off_policy.replay.store import ReplayStore
from flame_rl.learner.off_policy.replay.views import sequences
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
from flame_rl.settings.r2d2 import R2D2Settings
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec, PolicySnapshot


def r2d2(config: TrainConfig, spec: EnvironmentSpec) -> OffPolicy:
    """The algorithm with new networks. Raises UsageError for actions that are not Discrete, and for
    a network without a memory."""
    refuse_unless_discrete(spec)
    if config.experiment.memory == "none":
        raise UsageError("--memory: r2d2 is for networks with one; choose gru or lstm, or dqn")
    return off_policy(config, spec, R2D2(config, spec), remembers=True)


class R2D2:
    """See `GradientStep`. B is the number of sequences, L that of steps in each."""

    metrics = ("loss", "value", "td_error")

    def __init__(self, config: TrainConfig, spec: EnvironmentSpec) -> None:
        self._settings: R2D2Settings = config.algorithm
        self._gamma = config.experiment.gamma
        self._online = TrainedNetwork(model.RecurrentValueNetwork(spec, config), raw_network)
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
        """The sequences that these steps lie in, and "learned", 1 for a step that is learned from,
        [B, L]."""
        burn_in = self._settings.burn_in
        length = burn_in + self._settings.sequence_length
        samples = sequences(store, positions, length, burn_in, self._gamma)
        begins = store.times(samples["starts"]) == 0
        burnt_in = np.arange(length) >= burn_in
        samples["learned"] = samples["mask"] * (begins[:, None] | burnt_in)
        return samples

    def step(
        self, samples: Samples, generator: np.random.Generator, decay: float
    ) -> dict[str, np.ndarray]:
        """One step down the Huber loss of the TD errors, and one of the target network."""
        settings = self._settings
        count, length = samples["learned"].shape
        observations = np.concatenate(
            [samples["observations"][:, :1], samples["next_observations"]], axis=1
        )
        # One sequence after another; what follows the last step is one of its rows.
        rows = {
            "inputs": observations.reshape(-1, *observations.shape[2:]),
            "time": np.tile(np.arange(length + 1), count),
        }
        forward = self._online.network.forward(rows)
        online = forward.outputs[0].reshape(count, length + 1, -1)
        target = self._target.output(rows).reshape(online.shape)

        best = online[:, 1:].argmax(axis=2)[..., None]
        following = np.take_along_axis(target[:, 1:], best, axis=2)[..., 0]
        targets = samples["rewards"] + samples["discounts"] * following
        actions = samples["actions"][..., None]
        value = np.take_along_axis(online[:, :-1], actions, axis=2)[..., 0]
        errors = value - targets

        # The mean is over the steps that are learned from, and `descend` divides by all rows.
        share = samples["learned"] * np.float32(errors.size / samples["learned"].sum())
        slope = share * np.clip(errors, -1, 1) * np.float32(len(rows["time"]) / errors.size)
        slopes = np.zeros_like(online)
        np.put_along_axis(slopes[:, :-1], actions, slope[..., None], axis=2)
        slopes = slopes.reshape(forward.outputs[0].shape)
        self._online.descend(
            forward, (slopes,), settings.learning_rate * decay, settings.max_grad_norm
        )
        self._target.follow(settings.tau)
        of_sequence = samples["learned"] / samples["learned"].sum(axis=1, keepdims=True)
        return {
            "loss": share * values.huber(errors),
            "value": share * value,
            "td_error": (of_sequence * np.abs(errors)).sum(axis=1),
        }
