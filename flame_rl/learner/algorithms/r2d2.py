"""Deep Q-learning with a memory, from replayed sequences (Kapturowski et al. 2019, "Recurrent
Experience Replay in Distributed Reinforcement Learning", section 3).

    Q(h_t, a_t) -> r_t + gamma Q'(h'_{t+1}, argmax_a Q(h_{t+1}, a))

h_t is what the network remembers of a sequence until step t, h'_t what the target network does.
Both begin a sequence with an empty memory and burn in: they are unrolled, without a gradient, over
steps that are not learned from, until what they remember is nearly what an actor remembers there.
Without the paper's priorities, n-step returns and rescaled values.
"""

import numpy as np

from flame_rl.learner.off_policy import values
from flame_rl.learner.off_policy.replay.views import StoredSteps, equal_shares, sequences
from flame_rl.learner.training.network import Numbers, Samples
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec


class R2D2(values.ActionValues):
    """See `ActionValues`. B is the number of sequences, L that of steps in each."""

    remembers = True

    def __init__(self, config: TrainConfig, spec: EnvironmentSpec) -> None:
        """Raises UsageError for a network without a memory."""
        if config.experiment.memory == "none":
            raise UsageError("--memory: r2d2 is for networks with one; choose gru or lstm, or dqn")
        super().__init__(config, spec)

    def view(self, store: StoredSteps, positions: np.ndarray) -> Samples:
        """The sequences in which these steps are learned from, and "learned", 1 for a step that is
        learned from, [B, L]."""
        burn_in = self.settings.burn_in
        length = burn_in + self.settings.sequence_length
        samples = sequences(store, positions, length, burn_in, self.gamma)
        begins = store.times(samples["starts"]) == 0
        burnt_in = np.arange(length) >= burn_in
        samples["learned"] = samples["mask"] * (begins[:, None] | burnt_in)
        return samples

    def step(self, samples: Samples, generator: np.random.Generator, decay: float) -> Numbers:
        """One step down the Huber loss of the TD errors, and one of the target network."""
        learned = samples["learned"]
        count, length = learned.shape
        first, others = samples["observations"][:, :1], samples["next_observations"]
        observations = np.concatenate([first, others], axis=1)
        # One sequence after another; what follows the last step is one of its rows.
        rows = {
            "inputs": observations.reshape(-1, *observations.shape[2:]),
            "time": np.tile(np.arange(length + 1), count),
        }
        burnt_in = np.zeros((count, length + 1), bool)
        burnt_in[:, :-1] = samples["mask"] > learned
        own = {} if not burnt_in.any() else {"burnt_in": burnt_in.ravel()}
        forward = self.online.network.forward(rows | own)
        online = forward.outputs[0].reshape(count, length + 1, -1)
        target = self.target.output(rows).reshape(online.shape)

        # The steps of all sequences, [B * L, ...].
        actions = samples["actions"].ravel()
        now, following = (q.reshape(len(actions), -1) for q in (online[:, :-1], target[:, 1:]))
        next_values = values.of_actions(
            following, values.best_actions(online[:, 1:], samples).ravel()
        )
        targets = values.td_targets(
            samples["rewards"].ravel(), samples["discounts"].ravel(), next_values
        )
        share = equal_shares(learned)
        numbers, (gradient,) = values.q_loss(
            {"actions": actions, "targets": targets, "weights": share.ravel()}, now
        )

        # `descend` divides by all rows.
        gradients = np.zeros_like(online)
        factor = np.float32(len(rows["time"]) / len(now))
        gradients[:, :-1] = gradient.reshape(count, length, -1) * factor
        self.descend(forward, (gradients.reshape(forward.outputs[0].shape),), decay)
        return {
            "loss": numbers["loss"],
            "value": share.ravel() * numbers["value"],
            "td_error": (share * numbers["td_error"].reshape(share.shape)).mean(axis=1),
        }
