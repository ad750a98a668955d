"""REINFORCE (Williams 1992; Sutton and Barto 2018, section 13.3).

Complete episodes, discounted returns normalised over the whole batch, one gradient step:

    maximise  mean_t [ log pi(a_t | s_t) * G_t ]  +  entropy_coefficient * mean_t [ H(pi(. | s_t)) ]
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.config import TrainConfig
from flame_rl.learner.adam import Adam
from flame_rl.learner.guard import refused_unless_finite
from flame_rl.learner.returns import constant_value, discounted_returns, normalize
from flame_rl.learner.slices import accumulate_gradients
from flame_rl.messages import Episode, PolicySnapshot


class Reinforce:
    """The learner: a policy and what Adam remembers."""

    def __init__(self, config: TrainConfig, policy: nn.Module) -> None:
        """Take over `policy`, a module as in model.py, and update it in place."""
        self._config = config
        self._policy = policy
        self._adam = Adam(policy, config.learning_rate)
        self._updates = 0

    def snapshot(self) -> PolicySnapshot:
        """The weights for the actors; the version is the number of updates so far."""
        return self._policy.snapshot(self._updates)

    def update(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """One gradient step over all steps of all episodes.

        Args:
            episodes: complete ones, collected with the latest snapshot, sorted by index.

        Returns:
            loss, gradient_norm (before clipping) and policy_entropy (in nats).
        """
        advantages = torch.from_numpy(self._advantages(episodes))
        observations = torch.from_numpy(np.concatenate([e.observations[:-1] for e in episodes]))
        actions = torch.from_numpy(np.concatenate([e.actions for e in episodes]))
        if not actions.is_floating_point():
            actions = actions.long()
        steps = len(advantages)

        def loss_of(part: slice) -> tuple[Tensor, Tensor]:
            log_probs, entropies = self._policy.log_prob_and_entropy(
                observations[part], actions[part]
            )
            gain = (log_probs * advantages[part]).sum() / steps
            entropy = entropies.sum() / steps
            return -gain - self._config.entropy_coefficient * entropy, entropy

        parameters = list(self._policy.parameters())
        loss, entropy = accumulate_gradients(parameters, steps, loss_of)
        norm = nn.utils.clip_grad_norm_(parameters, self._config.max_grad_norm).item()
        with refused_unless_finite(self, {"loss": loss, "gradient norm": norm}):
            self._adam.step()
        self._updates += 1
        return {"loss": loss, "gradient_norm": norm, "policy_entropy": entropy}

    def policy_state(self) -> dict[str, Tensor]:
        """The policy's weights by name."""
        return self._policy.state_dict()

    def state_dict(self) -> dict[str, Tensor]:
        """All that the next update depends on, by name."""
        state = {f"policy.{name}": tensor for name, tensor in self.policy_state().items()}
        state |= {f"adam.{name}": tensor for name, tensor in self._adam.state_dict().items()}
        return state | {"updates": torch.tensor(self._updates)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state_dict`. Raises KeyError or RuntimeError if it does not fit."""
        parts: dict[str, dict[str, Tensor]] = {"policy": {}, "adam": {}}
        for name, tensor in state.items():
            part, _, rest = name.partition(".")
            if part in parts:
                parts[part][rest] = tensor
        self._policy.load_state_dict(parts["policy"])
        self._adam.load_state_dict(parts["adam"])
        self._updates = int(state["updates"])

    def weights_digest(self) -> str:
        """SHA-256 over names, types, shapes and bytes of all weights."""
        return tensors_digest(self._policy.state_dict())

    def _advantages(self, episodes: Sequence[Episode]) -> np.ndarray:
        """Normalised returns, float32 [N]."""
        rewards = np.concatenate([e.rewards for e in episodes])
        lengths = np.array([e.length for e in episodes])
        # An episode that terminated in the very step of its time limit has really ended.
        cut = np.array([e.truncated and not e.terminated for e in episodes])
        discount = self._config.gamma
        # Rewards beyond all bounds become NaN here, and the update is refused.
        with np.errstate(over="ignore", invalid="ignore"):
            value = constant_value(rewards, lengths, cut, discount)
            returns = discounted_returns(rewards, lengths, discount, np.where(cut, value, 0.0))
            return normalize(returns).astype(np.float32)


def tensors_digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 in hexadecimal over names, types, shapes and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name].detach().numpy()
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
