"""The episodes of an iteration as tensors, ready for an update."""

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
        columns: what was recorded, by name: [N, ...], or [N + E, ...] where an episode has a row
            for each observation. Integers are int64.
        rows: int64 [N], the rows of the steps' observations among all N + E.
        lengths: int64 [E].
        terminated: bool [E]; an episode that did not terminate was cut and would have gone on.
        log_probs: log-probabilities of the actions by the policy that took them, float32 [N]; None
            until that policy has been asked.
    """

    columns: dict[str, Tensor]
    rows: Tensor
    lengths: np.ndarray
    terminated: np.ndarray
    log_probs: Tensor | None = None

    @property
    def steps(self) -> int:
        """N."""
        return len(self.rows)

    @property
    def observations(self) -> Tensor:
        """float32 [N + E, D]."""
        return self.columns["observations"]

    @property
    def actions(self) -> Tensor:
        """float32 [N, A]; int64 [N] if discrete, [N, F] of F factors."""
        return self.columns["actions"]

    @property
    def rewards(self) -> np.ndarray:
        """float64 [N]."""
        return self.columns["rewards"].numpy()

    def observations_at(self, steps: Tensor) -> Tensor:
        """The observations of the given steps: int64 [B] -> float32 [B, D]."""
        # Several times as quick as indexing with the rows.
        return self.observations.index_select(0, self.rows[steps])


def make_batch(episodes: Episodes) -> Batch:
    """The episodes as tensors; only integers are copied."""
    columns = {name: torch.from_numpy(array) for name, array in episodes.columns.items()}
    return Batch(
        columns={n: t if t.is_floating_point() else t.long() for n, t in columns.items()},
        rows=torch.from_numpy(step_rows(episodes.lengths)),
        lengths=episodes.lengths,
        # An episode that terminates in the last step before its time limit counts as terminated.
        terminated=episodes.terminated,
    )
