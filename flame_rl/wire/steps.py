"""The columns recorded at every step, derived from an environment's spaces."""

from __future__ import annotations

import gymnasium
from gymnasium import spaces

from flame_rl.wire.inputs import observation_inputs
from flame_rl.wire.masks import ACTION_MASKS, mask_bytes
from flame_rl.wire.messages import Column, EnvironmentSpec


def observation_columns(space: gymnasium.Space) -> tuple[Column, ...]:
    """A column for each input of an observation, flattened, in their order."""
    return tuple(
        Column(each.name, each.dtype, (each.width,), per_observation=True)
        for each in observation_inputs(space)
    )


def step_columns(spec: EnvironmentSpec) -> tuple[Column, ...]:
    """The columns that every algorithm needs: observations, actions as the policy sampled them
    (real numbers before clipping, choices counted from 0), rewards as the environment returns them
    and, where there are any, masks of allowed actions."""
    choices = spec.choices
    scalar = isinstance(spec.action_space, spaces.Discrete)
    shape = () if scalar else (len(choices) or spec.action_dim,)
    columns = (
        *observation_columns(spec.observation_space),
        Column("actions", "float32" if spec.continuous else "int32", shape, False, choices),
        Column("rewards", "float64", spec.reward_shape, per_observation=False),
    )
    masks = Column(ACTION_MASKS, "uint8", (mask_bytes(spec.action_dim),), per_observation=True)
    return (*columns, masks) if spec.masked else columns


def recorded_columns(
    spec: EnvironmentSpec, reward_parts: tuple[str, ...], outcomes: tuple[str, ...] = ()
) -> tuple[Column, ...]:
    """What actors record: `step_columns`, and the reward parts and outcomes of these names, if any,
    each side by side in one column; outcomes are 0 but at an episode's last step."""
    named = {"reward_parts": reward_parts, "outcomes": outcomes}
    return step_columns(spec) + tuple(
        Column(column, "float64", (len(names),), per_observation=False)
        for column, names in named.items()
        if names
    )
