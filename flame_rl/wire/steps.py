"""The columns recorded at every step, and what is a picture, derived from an environment's
spaces."""

from __future__ import annotations

import math

import gymnasium
from gymnasium import spaces

from flame_rl.wire.masks import ACTION_MASKS, mask_bytes
from flame_rl.wire.messages import Column, EnvironmentSpec

# Types of a Box whose numbers one byte holds.
_OF_ONE_BYTE = ("uint8", "bool")
# The least sides of a picture, for one convolution of 3 rows and columns.
_LEAST_OF_A_PICTURE = 3


def observation_dtype(space: gymnasium.Space) -> str:
    """The type in which observations of a space are recorded, sent and kept: "uint8" of a Box of
    uint8 or bool, such as pictures; of all others "float32"."""
    one_byte = isinstance(space, spaces.Box) and space.dtype in _OF_ONE_BYTE
    return "uint8" if one_byte else "float32"


def is_channels_first(space: gymnasium.Space) -> bool:
    """Whether observations are pictures [channels, rows, columns], as torch has them: a Box of one
    byte whose first axis is at most half as long as each other one. They become [rows, columns,
    channels] where they are read."""
    shape = space.shape or ()
    few = len(shape) == 3 and 2 * shape[0] <= min(shape[1:])
    return few and observation_dtype(space) == "uint8"


def picture_size(space: gymnasium.Space) -> tuple[int, int, int] | None:
    """Rows, columns and channels of observations that are pictures: a Box of one byte, [rows,
    columns], [rows, columns, channels] or `is_channels_first`. None: they are vectors."""
    shape = space.shape or ()
    if len(shape) not in (2, 3) or observation_dtype(space) != "uint8":
        return None
    rows, columns, *channels = (*shape[1:], shape[0]) if is_channels_first(space) else shape
    if min(rows, columns) < _LEAST_OF_A_PICTURE:
        return None
    return rows, columns, math.prod(channels)


def step_columns(spec: EnvironmentSpec) -> tuple[Column, ...]:
    """The columns that every algorithm needs: observations, actions and rewards, and where the
    environment gives them, masks of allowed actions.

    Observations are flattened. Actions are recorded as the policy sampled them: real numbers before
    clipping, choices counted from 0. Rewards are as the environment returns them.
    """
    choices = spec.choices
    scalar = isinstance(spec.action_space, spaces.Discrete)
    actions = Column(
        name="actions",
        dtype="float32" if spec.continuous else "int32",
        shape=() if scalar else (len(choices) or spec.action_dim,),
        per_observation=False,
        choices=choices,
    )
    return (
        Column(
            name="observations",
            dtype=observation_dtype(spec.observation_space),
            shape=(spec.observation_dim,),
            per_observation=True,
        ),
        actions,
        Column("rewards", "float64", spec.reward_shape, per_observation=False),
        *([_masks(spec)] if spec.masked else []),
    )


def _masks(spec: EnvironmentSpec) -> Column:
    shape = (mask_bytes(spec.action_dim),)
    return Column(ACTION_MASKS, "uint8", shape, per_observation=True)


def recorded_columns(
    spec: EnvironmentSpec, reward_parts: tuple[str, ...], outcomes: tuple[str, ...] = ()
) -> tuple[Column, ...]:
    """What actors record: `step_columns`, and the reward parts and outcomes of these names, if any,
    each side by side in one column; outcomes are 0 but at an episode's last step."""
    named = {"reward_parts": reward_parts, "outcomes": outcomes}
    return (
        *step_columns(spec),
        *(
            Column(column, "float64", (len(names),), per_observation=False)
            for column, names in named.items()
            if names
        ),
    )
