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
    """E episodes of N steps together, one after another.

    Attributes:
        observations: float32 [N + E, D], of each episode one more than it has steps.
        rows: int64 [N], where in `observations` the steps are.
        actions: float32 [N, A], or int64 [N] if discrete.
        log_probs: log-probabilities of the actions by the policy that took them, float32 [N]; None
            until that policy has been asked.
        rewards: float64 [N].
        lengths: int64 [E].
        terminated: bool [E]; what did not terminate was cut and would have gone on.
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
        """The observations at some steps: int64 [B] -> float32 [B, D]."""
        # Several times as quick as indexing with the rows.
        return self.observations.index_select(0, self.rows[steps])


def make_batch(episodes: Episodes) -> Batch:
    """The episodes as tensors; nothing is copied but discrete actions."""
    actions = torch.from_numpy(episodes.actions)
    if not actions.is_floating_point():
        actions = actions.long()
    return Batch(
        observations=torch.from_numpy(episodes.observations),
        rows=torch.from_numpy(step_rows(episodes.lengths)),
        actions=actions,
        rewards=episodes.rewards,
        lengths=episodes.lengths,
        # An episode that terminated in the very step of its time limit has really ended.
        terminated=episodes.terminated,
    )
