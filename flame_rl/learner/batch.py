"""The episodes of an iteration as concatenated arrays, ready for an update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flame_rl.learner.returns import step_rows
from flame_rl.wire.messages import Episodes


@dataclass(frozen=True)
class Batch:
    """E episodes, N steps in all, one after another.

    Attributes:
        observations: float32 [N + E, D]; each episode has one more observation than steps.
        rows: int64 [N], the row of `observations` in which each step begins.
        actions: float32 [N, A], or int64 [N] if discrete.
        log_probs: log-probabilities of the actions under the policy that took them, float32 [N];
            None until they are computed.
        rewards: float64 [N].
        lengths: int64 [E].
        terminated: bool [E]; the other episodes were truncated by a time limit.
    """

    observations: Tensor
    rows: Tensor
    actions: Tensor
    rewards: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    log_probs: Tensor | None = None

    @property
    def steps(self) -> int:
        return len(self.rewards)

    def observations_at(self, steps: Tensor) -> Tensor:
        """The observations of the given steps: int64 [B] -> float32 [B, D]."""
        # Several times as quick as indexing with the rows.
        return self.observations.index_select(0, self.rows[steps])


def make_batch(episodes: Episodes) -> Batch:
    """The episodes as tensors; only discrete actions are copied."""
    actions = torch.from_numpy(episodes.actions)
    if not actions.is_floating_point():
        actions = actions.long()
    return Batch(
        observations=torch.from_numpy(episodes.observations),
        rows=torch.from_numpy(step_rows(episodes.lengths)),
        actions=actions,
        rewards=episodes.rewards,
        lengths=episodes.lengths,
        # An episode that terminates in the last step before its time limit counts as terminated.
        terminated=episodes.terminated,
    )
