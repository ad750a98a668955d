"""The episodes of an iteration, or their fragments, as arrays, ready for an update."""

from dataclasses import dataclass

import numpy as np

from flame_rl.learner.on_policy.returns import discounted_returns
from flame_rl.learner.training.frames import (
    SideBySide,
    Stacks,
    observations_of,
    step_rows,
    time_steps,
)
from flame_rl.learner.training.network import Samples
from flame_rl.wire.masks import ACTION_MASKS
from flame_rl.wire.messages import Episodes

# Steps. The gradient of a smaller minibatch is mostly noise, and takes as long.
LEAST_MINIBATCH = 64
_TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class Batch:
    """E episodes, N steps in all, one after another.

    Attributes:
        columns: what actors recorded, by name: [N, ...], or [N + E, ...] where an episode has a
            row for each observation.
        rows: int64 [N], the rows of the steps' observations among all N + E.
        lengths: int64 [E].
        terminated: bool [E]; others, cut by a time limit or into fragments, bootstrap.
        time: int64 [N], the time step of each step in its episode, where a network remembers and
            episodes must stay whole; else None.
        frames: k, the number of observations that are stacked into one input.
        log_probs: log-probabilities of the actions by the policy before the update, float32 [N];
            None until they are computed.
        ratios: float64 [N], pi(a | s) / mu(a | s) of the steps' actions, pi the policy before the
            update and mu the older one that collected; None where pi itself did.
        policy_inputs, value_inputs: the inputs of each network, [N + E, ...], or None until
            `Network.prepare` makes them.
    """

    columns: dict[str, np.ndarray]
    rows: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    time: np.ndarray | None = None
    frames: int = 1
    log_probs: np.ndarray | None = None
    ratios: np.ndarray | None = None
    policy_inputs: np.ndarray | SideBySide | Stacks | None = None
    value_inputs: np.ndarray | SideBySide | Stacks | None = None

    @property
    def weights(self) -> np.ndarray | None:
        """How much each step counts, 0 to 1, float64 [N]; None: all alike."""
        return None if self.ratios is None else np.minimum(self.ratios, 1)

    @property
    def self_normalized_weights(self) -> np.ndarray | float:
        """Weights over their mean, float64 [N]; 1 where all count alike."""
        return _over_mean(self.weights)

    @property
    def self_normalized_ratios(self) -> np.ndarray | float:
        """Ratios over their mean, which turn a mean over steps into one under the policy before the
        update (Sutton and Barto 2018, eq. 5.6), float64 [N]; 1 where that policy collected."""
        return _over_mean(self.ratios)

    @property
    def steps(self) -> int:
        """N."""
        return len(self.rows)

    @property
    def observations(self) -> np.ndarray | SideBySide:
        """float32 or uint8 [N + E, D]."""
        return observations_of(self.columns)

    @property
    def network_inputs(self) -> np.ndarray | SideBySide | Stacks:
        """The inputs of networks at each observation: [N + E, D], or `Stacks` of [N + E, k, D]."""
        if self.frames == 1:
            return self.observations
        rows = np.arange(len(self.observations))
        return Stacks(self.observations, time_steps(self.lengths + 1), rows, self.frames)

    @property
    def actions(self) -> np.ndarray:
        """float32 [N, A]; int32 [N] if discrete, [N, F] of F factors."""
        return self.columns["actions"]

    @property
    def rewards(self) -> np.ndarray:
        """float64 [N]."""
        return self.columns["rewards"]

    @property
    def for_policy(self) -> Samples:
        """What a policy's outputs and loss need besides inputs and advantages, [N, ...] by name:
        actions, and where there are any, masks, times, log-probabilities, `self_normalized_ratios`
        as "kl_weights", and, for a `torch_loss` alone, `self_normalized_weights` as "weights"."""
        masks, older = self.columns.get(ACTION_MASKS), self.ratios is not None
        optional = {
            ACTION_MASKS: None if masks is None else masks.take(self.rows, axis=0),
            "time": self.time,
            "log_probs": self.log_probs,
            "weights": self.self_normalized_weights.astype(np.float32) if older else None,
            "kl_weights": self.self_normalized_ratios.astype(np.float32) if older else None,
        }
        present = {name: column for name, column in optional.items() if column is not None}
        return {"actions": self.actions} | present

    def minibatch_count(self, wanted: int) -> int:
        """`wanted`, or fewer, so that each minibatch has `LEAST_MINIBATCH` steps."""
        return min(wanted, max(1, self.steps // LEAST_MINIBATCH))

    def random_order(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """The order of the steps in an epoch of `count` minibatches, int64 [N]: random, or their
        own if there is only one. Where a network remembers, whole episodes are shuffled."""
        if count == 1:
            return np.arange(self.steps)
        if self.time is None:
            return generator.permutation(self.steps)
        order = generator.permutation(len(self.lengths))
        lengths = self.lengths[order]
        starts = np.cumsum(self.lengths) - self.lengths
        return np.repeat(starts[order], lengths) + time_steps(lengths)

    def transitions(self) -> dict[str, np.ndarray]:
        """Columns that auxiliary losses see besides the actions, [N, ...] by name."""
        terminated = np.zeros(self.steps, np.float32)
        terminated[self.lengths.cumsum() - 1] = self.terminated
        return {
            "rewards": self.rewards.astype(np.float32),
            "next_observations": self.observations.take(self.rows + 1, axis=0),
            "terminated": terminated,
        }

    def returns(self, discount: float, last: np.ndarray) -> np.ndarray:
        """G_t of each step, float64 [N]; `last`, float64 [E], is the value of the state after a
        truncated episode."""
        bootstrap = np.where(self.terminated, 0.0, last)
        return discounted_returns(self.rewards, self.lengths, discount, bootstrap)

    def estimated_returns(self, discount: float) -> np.ndarray:
        """The same without a value network: the value of going on is one number v for all states,
        the mean return over all steps when v itself bootstraps the truncated episodes.

        It is the fixed point of v = mean(G0_t + discount^(T-t) v 1[truncated]), where G0 are the
        returns without bootstrap. For discount 1 there may be none, and v is 0: returns are then
        sums up to the time limit.
        """
        truncated, rest = ~self.terminated, 0.0
        if discount < 1 and truncated.any():
            plain = self.returns(discount, np.zeros(len(self.lengths)))
            none, indicator = np.zeros_like(self.rewards), truncated.astype(float)
            weight = discounted_returns(none, self.lengths, discount, indicator)
            rest = float(plain.mean() / (1.0 - weight.mean()))
        return self.returns(discount, np.full(len(self.lengths), rest))

    def advantages(self, values: np.ndarray, discount: float, gae_lambda: float) -> np.ndarray:
        """A_t = delta_t + discount * lambda * A_{t+1} of each step, float64 [N], with delta_t = r_t
        + discount * V_{t+1} - V_t (Schulman et al. 2016, "High-Dimensional Continuous Control Using
        GAE", eq. 16), given the values of all observations, float64 [N + E], and lambda, from 0
        (one step) to 1 (the whole episode).

        With ratios, A_t = w_t (delta_t + discount * lambda * A_{t+1}): V-trace's v_t - V_t
        (Espeholt et al. 2018, "IMPALA", eq. 1, with both thresholds 1 and c_t = lambda w_t), the
        advantage of step t and, added to V_t, the value's target.
        """
        following = values[self.rows + 1]
        following[np.cumsum(self.lengths)[self.terminated] - 1] = 0.0
        errors = self.rewards + discount * following - values[self.rows]
        weights = 1.0 if self.weights is None else self.weights
        decay, none = discount * gae_lambda, np.zeros(len(self.lengths))
        return discounted_returns(weights * errors, self.lengths, decay * weights, none)


def _over_mean(weights: np.ndarray | None) -> np.ndarray | float:
    # All weights are 0 if no recorded action is still possible.
    return 1.0 if weights is None else weights / max(weights.mean(), _TINY)


def make_batch(episodes: Episodes, remembers: bool = False, frames: int = 1) -> Batch:
    """The episodes as one batch; nothing is copied. `remembers` says whether a network does, and
    `frames` how many observations are stacked into one input."""
    lengths = episodes.lengths
    time = time_steps(lengths) if remembers else None
    # An episode that terminates in the last step before its time limit counts as terminated.
    return Batch(episodes.columns, step_rows(lengths), lengths, episodes.terminated, time, frames)
