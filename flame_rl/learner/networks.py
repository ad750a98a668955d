"""What an algorithm improves, and the steps that all of them take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.learner.adam import Adam
from flame_rl.learner.batch import Batch
from flame_rl.learner.normalize import RunningMoments
from flame_rl.learner.slices import accumulate_gradients, without_gradient

# Per step, what to maximise: (log pi(a|s) now, the same when collected, advantage) -> [B].
Surrogate = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class PolicyStep:
    """What a step of the policy saw, before it was taken.

    Attributes:
        loss: minus the surrogate's mean, minus the entropy bonus.
        gradient_norm: before clipping.
        entropy: of the policy, in nats.
        kl: from the policy that collected; see `kl_terms`.
        taken: whether it was, or that was too far.
    """

    loss: float
    gradient_norm: float
    entropy: float
    kl: float
    taken: bool


class Networks:
    """A policy, a value network, and what Adam and the normalisation remember of them."""

    def __init__(self, policy: nn.Module, value: nn.Module) -> None:
        """Take over modules as in model.py; they are updated in place."""
        self.policy = policy
        self.value = value
        self.policy_adam = Adam(policy)
        self.value_adam = Adam(value)
        self._returns = RunningMoments(1)

    def values(self, batch: Batch) -> np.ndarray:
        """Of all observations, float64 [N + E]."""
        return without_gradient(self.value, batch.observations).double().numpy()

    def log_probs(self, observations: Tensor, rows: Tensor, actions: Tensor) -> Tensor:
        """Of the actions taken, float32 [N]; see `Batch` for the arguments."""

        def of(part: Tensor) -> Tensor:
            seen = observations.index_select(0, rows[part])
            return self.policy.log_prob_and_entropy(seen, actions[part])[0]

        return without_gradient(of, torch.arange(len(actions)))

    def step_policy(
        self,
        batch: Batch,
        index: Tensor,
        surrogate: Surrogate,
        advantages: Tensor,
        *,
        entropy_coefficient: float,
        max_grad_norm: float,
        learning_rate: float,
        max_kl: float,
    ) -> PolicyStep:
        """One step of Adam up the surrogate's mean over the steps of `index`, unless the policy is
        already further than `max_kl` from the one that collected.

        Args:
            batch: all steps.
            index: int64 [B], which of them.
            surrogate: what to maximise.
            advantages: float32 [N].
        """

        def loss_of(part: Tensor) -> tuple[Tensor, ...]:
            log_probs, entropies = self.policy.log_prob_and_entropy(
                batch.observations_of(part), batch.actions[part]
            )
            old = batch.log_probs[part]
            gain = surrogate(log_probs, old, advantages[part]).sum() / len(index)
            entropy = entropies.sum() / len(index)
            kl = kl_terms(log_probs.detach(), old).sum() / len(index)
            return -gain - entropy_coefficient * entropy, entropy, kl

        adam = self.policy_adam
        adam.zero_gradient()
        loss, entropy, kl = accumulate_gradients(adam.parameters, index, loss_of)
        norm = adam.clip_gradient(max_grad_norm)
        # Not "greater than": a KL that is not a number must not be taken for a small one.
        taken = kl <= max_kl
        if taken:
            adam.step(learning_rate)
        return PolicyStep(loss, norm, entropy, kl, taken)

    def step_value(
        self,
        batch: Batch,
        index: Tensor,
        targets: Tensor,
        *,
        max_grad_norm: float,
        learning_rate: float,
    ) -> float:
        """One step of Adam towards the targets (float32 [N]) at the steps of `index`; returns half
        the mean squared error, in units of the value network's scale."""

        def loss_of(part: Tensor) -> tuple[Tensor, ...]:
            predicted = self.value(batch.observations_of(part))
            errors = (predicted - targets[part]) / self.value.scale
            return (0.5 * (errors**2).sum() / len(index),)

        adam = self.value_adam
        adam.zero_gradient()
        (loss,) = accumulate_gradients(adam.parameters, index, loss_of)
        adam.clip_gradient(max_grad_norm)
        adam.step(learning_rate)
        return loss

    def take_in_returns(self, returns: np.ndarray) -> None:
        """Let the value network's scale follow the returns seen so far, float64 [N]: their root
        mean square."""
        self._returns.update(returns[:, None])
        (mean,), (std,) = self._returns.mean, self._returns.std
        self.value.scale.fill_(float(np.hypot(mean, std)))

    def state_dict(self) -> dict[str, Tensor]:
        """All that the next update depends on, by name."""
        return {
            f"{part}.{name}": tensor
            for part, owner in self._parts().items()
            for name, tensor in owner.state_dict().items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state_dict`. Raises KeyError, ValueError or RuntimeError if it does not
        fit."""
        for part, owner in self._parts().items():
            prefix = f"{part}."
            owner.load_state_dict(
                {
                    name.removeprefix(prefix): tensor
                    for name, tensor in state.items()
                    if name.startswith(prefix)
                }
            )

    def _parts(self) -> dict[str, nn.Module | Adam | RunningMoments]:
        return {
            "policy": self.policy,
            "value": self.value,
            "policy_adam": self.policy_adam,
            "value_adam": self.value_adam,
            "returns": self._returns,
        }


def kl_terms(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """Per step, an estimate of KL(old || new) whose mean is unbiased and never negative:
    r - 1 - log r, with r the ratio of the probabilities (Schulman 2020, "Approximating KL
    Divergence", k3)."""
    log_ratio = log_probs - old_log_probs
    return torch.expm1(log_ratio) - log_ratio
