"""An actor-critic that learns from replayed experience, corrected by V-trace (Espeholt et al. 2018,
"IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures").

    V(s_t) -> v_t = V(s_t) + sum over k of gamma^k (c_t ... c_{t+k-1}) delta_{t+k}
    maximise  mean [ rho_t log pi(a_t | s_t) (r_t + gamma v_{t+1} - V(s_t)) ]  +  entropy bonus

with delta_t = rho_t (r_t + gamma V(s_{t+1}) - V(s_t)), rho_t = min(1, pi / mu) and c_t = lambda
rho_t, where mu is the policy that acted. Its log-probabilities are recorded when an episode
arrives. Advantages are divided by their root mean square in the minibatch, and value errors by the
scale of returns, so that both losses are near 1 in any unit of reward.
"""

from dataclasses import replace

import numpy as np

from flame_rl.learner.off_policy.gradient_step import GradientStep
from flame_rl.learner.off_policy.replay.views import StoredSteps, equal_shares, sequences
from flame_rl.learner.on_policy.batch import make_batch
from flame_rl.learner.on_policy.returns import discounted_returns
from flame_rl.learner.on_policy.update import log_probs_of, make_actor_critic, policy_samples
from flame_rl.learner.training.network import Network, Numbers, Samples
from flame_rl.settings.algorithms import ImpalaSettings
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.masks import ACTION_MASKS
from flame_rl.wire.messages import Column, EnvironmentSpec, Episodes

_LOG_PROBS = Column("log_probs", "float32", (), per_observation=False)
# Advantages that are this small, relative to returns, are rounding.
_LEAST = np.float32(1e-6)


class Impala(GradientStep):
    """See `GradientStep`. B is the number of sequences, L their length."""

    metrics = ("loss", "value_loss", "policy_entropy", "td_error", "importance")
    demonstrable = False
    columns = (_LOG_PROBS,)

    def __init__(self, config: TrainConfig, spec: EnvironmentSpec) -> None:
        self._settings: ImpalaSettings = config.algorithm
        self._gamma = config.experiment.gamma
        self._networks = make_actor_critic(config, spec)
        self.policy, self.parts = self._networks.policy.module, self._networks.parts

    def record(self, episodes: Episodes) -> Episodes:
        """Add the actions' log-probabilities to the episodes, and the episodes' observations and
        returns to the statistics."""
        batch = make_batch(episodes, frames=self._networks.frames)
        column = log_probs_of(self._networks.policy.network, policy_samples(batch))
        self._networks.statistics.add_observations(batch.observations)
        bootstrap = np.zeros(len(batch.lengths))
        self._networks.statistics.add_returns_and_rescale(
            discounted_returns(batch.rewards, batch.lengths, self._gamma, bootstrap)
        )
        return replace(episodes, columns=episodes.columns | {_LOG_PROBS.name: column})

    def view(self, store: StoredSteps, positions: np.ndarray) -> Samples:
        """The sequences that contain these steps."""
        return sequences(store, positions, self._settings.sequence_length, 0, self._gamma)

    def step(self, samples: Samples, generator: np.random.Generator, decay: float) -> Numbers:
        """One gradient step of the policy and one of the value network."""
        settings, policy, value = self._settings, self._networks.policy, self._networks.value
        mask = samples["mask"]
        # All steps of all sequences as one minibatch.
        steps = {n: c.reshape(-1, *c.shape[2:]) for n, c in samples.items() if c.ndim > 1}
        inputs = _inputs_of(policy.network, steps)
        taken = {name: steps[name] for name in ("actions", ACTION_MASKS) if name in steps}
        policy_pass = policy.network.forward(inputs | taken)
        value_pass = value.network.forward(_inputs_of(value.network, steps))
        (next_values,) = value.network.outputs(_inputs_of(value.network, steps, "next_"))
        log_pi, entropy, values, next_values = (
            output.reshape(mask.shape)
            for output in (*policy_pass.outputs, *value_pass.outputs, next_values)
        )

        rho = np.exp(np.minimum(log_pi - samples["log_probs"], 0))
        errors, advantages = v_trace(samples, values, next_values, rho, settings.trace_lambda)

        share = equal_shares(mask)
        scale, c = np.float32(value.module.scale), settings.entropy_coefficient
        errors = errors / scale
        advantages = advantages / (np.sqrt(np.mean(share * advantages**2)) + _LEAST * scale)
        loss = share * (-advantages * log_pi - c * entropy)
        value_loss = 0.5 * share * errors * errors

        gradients = (-share * advantages).ravel(), (-share * c).ravel()
        rate = settings.learning_rate * decay
        policy.descend(policy_pass, gradients, rate, settings.max_grad_norm)
        gradients = ((-share * errors / scale).ravel(),)
        rate = settings.value_learning_rate * decay
        value.descend(value_pass, gradients, rate, settings.max_grad_norm)
        return {
            "loss": loss,
            "value_loss": value_loss,
            "policy_entropy": share * entropy,
            "importance": share * rho,
            "td_error": (share * np.abs(errors)).mean(axis=1),
        }


def _inputs_of(network: Network, steps: Samples, prefix: str = "") -> Samples:
    """The observations of steps, or with the prefix "next_" those that follow, for the network."""
    inputs = {"inputs": network.prepare(steps[f"{prefix}observations"])}
    missing = steps.get(f"{prefix}missing")
    return inputs if missing is None else inputs | {"missing": missing}


def v_trace(
    samples: Samples,
    values: np.ndarray,
    next_values: np.ndarray,
    rho: np.ndarray,
    trace_lambda: float,
) -> tuple[np.ndarray, np.ndarray]:
    """V-trace on sequences (Espeholt et al. 2018, eq. 1 and section 4.2; remark 2 for lambda):
    v_t - V(s_t), and rho_t (r_t + gamma v_{t+1} - V(s_t)), both [B, L], 0 where the mask is 0.

    All arguments but lambda are [B, L]: of the samples "rewards", "discounts", gamma, or 0 after an
    end, and "mask", 1 for a step, 0 beyond the sequence's end; V(s_t) and V(s_{t+1}); and
    rho_t = min(1, pi / mu)."""
    discounts = samples["discounts"]
    deltas = samples["mask"] * rho * (samples["rewards"] + discounts * next_values - values)
    errors = np.zeros_like(deltas)
    following = np.zeros(len(deltas), deltas.dtype)
    for t in reversed(range(deltas.shape[1])):
        following = deltas[:, t] + discounts[:, t] * trace_lambda * rho[:, t] * following
        errors[:, t] = following
    # After a sequence's last step, v_{t+1} is V(s_{t+1}).
    later = np.concatenate([errors[:, 1:], np.zeros((len(errors), 1), errors.dtype)], axis=1)
    return errors, deltas + rho * discounts * later
