"""Convert a policy's actions to those that `env.step` takes."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
import numpy as np
from gymnasium import spaces


def environment_actions(space: gymnasium.Space, actions: np.ndarray) -> Sequence[int | np.ndarray]:
    """Convert actions as they are recorded to actions of the environment's space.

    Args:
        space: Box, Discrete, MultiDiscrete or MultiBinary.
        actions: float32 [B, A], which are clipped to the bounds, or choices from 0, int32 [B] or
            [B, F].

    Returns:
        B actions, one for each row.
    """
    if isinstance(space, spaces.Box):
        # np.clip takes several times as long on arrays this small.
        clipped = np.minimum(np.maximum(actions, space.low.ravel()), space.high.ravel())
        return clipped.reshape(-1, *space.shape).astype(space.dtype, copy=False)
    if isinstance(space, spaces.Discrete):
        return (actions + space.start).tolist()
    shaped = actions.reshape(-1, *space.shape)
    if isinstance(space, spaces.MultiDiscrete):
        return (shaped + space.start).astype(space.dtype)
    return shaped.astype(space.dtype)
