"""Convert a policy's actions to those that `env.step` takes.

A policy's continuous actions count from -1, the lower bound, to 1, the upper one. Without bounds,
or with ones so far out that they say nothing, an action is in the environment's own units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gymnasium
import numpy as np
from gymnasium import spaces

# Bounds beyond it are those of a number's type, and not of an action.
MAX_BOUND = 1e6

# Converts actions as they are recorded, a row for each slot, to as many actions of the space:
# float32 [B, A], or choices from 0, int32 [B] or [B, F].
ToEnvironment = Callable[[np.ndarray], Sequence[np.integer | np.ndarray]]


def action_converter(space: gymnasium.Space) -> ToEnvironment:
    """What turns a policy's actions into actions of `space`, of the types of `space.sample()`:
    Box (scaled to its bounds and clipped), Discrete, MultiDiscrete or MultiBinary."""
    if isinstance(space, spaces.Box):
        return _box_converter(space)
    if isinstance(space, spaces.Discrete):
        return lambda actions: list((actions + space.start).astype(space.dtype))
    if isinstance(space, spaces.MultiDiscrete):
        return lambda actions: (actions.reshape(-1, *space.shape) + space.start).astype(space.dtype)
    return lambda actions: actions.reshape(-1, *space.shape).astype(space.dtype)


def has_bounds(space: spaces.Box) -> np.ndarray:
    """Which numbers of the space are scaled to their bounds, bool [A]."""
    # Float64, because MAX_BOUND is infinite in float16.
    low, high = space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)
    return np.maximum(np.abs(low), np.abs(high)) <= MAX_BOUND


def _box_converter(space: spaces.Box) -> ToEnvironment:
    low, high = space.low.ravel(), space.high.ravel()
    scaled = has_bounds(space)
    # Float64, because float32 may round the middle of two bounds to one of them.
    ends = np.where(scaled, low, -1.0).astype(np.float64), np.where(scaled, high, 1.0)
    middle, half = (ends[1] + ends[0]) / 2, (ends[1] - ends[0]) / 2
    plain = bool((middle == 0).all() and (half == 1).all())

    def convert(actions: np.ndarray) -> Sequence[np.ndarray]:
        values = actions if plain else middle + half * actions
        # np.clip takes several times as long on arrays this small.
        clipped = np.minimum(np.maximum(values, low), high)
        taken = clipped.reshape(-1, *space.shape).astype(space.dtype, copy=False)
        # A row without axes would be a number.
        return taken if space.shape else [np.array(number) for number in taken]

    return convert
