"""The parts of an observation, in the order of `gymnasium.spaces.flatten`, what a network sees of
them: pictures, each by itself, and numbers; and the columns that are recorded at every step. An
observation of several inputs has at least one picture beside other parts, in a Dict or a Tuple.
Each Box of one byte in it is an input, and so are the parts between two of them together."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import gymnasium
from gymnasium import spaces

from flame_rl.wire.masks import ACTION_MASKS, mask_bytes
from flame_rl.wire.messages import OBSERVATIONS, Column, EnvironmentSpec

# Spaces of numbers; Dict and Tuple have parts.
LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
OF_ONE_BYTE = ("uint8", "bool")  # types of a Box whose numbers one byte holds
_LEAST_OF_A_PICTURE = 3  # the least sides of a picture, for one convolution of 3 rows and columns


@dataclass(frozen=True)
class ObservationPart:
    """A space inside Dicts and Tuples, or the whole one, and its slice of the flattened vector.
    `name`: as Python indexes an observation, "['arm'][0]"; empty for the whole. `path`: keys and
    places, from the outermost. `one_byte`: whether it is an input of its own, of bytes."""

    name: str
    path: tuple[str | int, ...]
    space: gymnasium.Space
    start: int
    stop: int
    one_byte: bool = False


@dataclass(frozen=True)
class ObservationInput:
    """A slice of a flattened observation, which a network sees apart from the others, and the name
    of the column that records it; `space` is a Box of one byte, or None of numbers of float32."""

    name: str
    start: int
    stop: int
    space: spaces.Box | None = None

    @property
    def width(self) -> int:
        return self.stop - self.start

    @property
    def dtype(self) -> str:
        """The type in which it is recorded, sent and kept."""
        return "float32" if self.space is None else "uint8"

    @property
    def picture(self) -> tuple[int, int, int] | None:
        """Its `picture_size`; None: it is a vector."""
        return None if self.space is None else picture_size(self.space)


def observation_parts(space: gymnasium.Space) -> tuple[ObservationPart, ...]:
    """The parts of an observation space in the order in which they are flattened."""
    leaves = list(_leaves(space, ()))
    apart = any(not path or picture_size(each) is not None for path, each in leaves)
    parts, start = [], 0
    for path, each in leaves:
        name = "".join(f"[{key!r}]" for key in path)
        stop = start + (spaces.flatdim(each) if isinstance(each, LEAVES) else 0)
        parts.append(ObservationPart(name, path, each, start, stop, apart and _has_bytes(each)))
        start = stop
    return tuple(parts)


def _leaves(
    space: gymnasium.Space, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], gymnasium.Space]]:
    """The spaces of numbers in a space that lies at `path`, with their paths."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key in space if isinstance(space, spaces.Dict) else range(len(space)):
            yield from _leaves(space[key], (*path, key))
    else:
        yield path, space


def observation_inputs(space: gymnasium.Space) -> tuple[ObservationInput, ...]:
    """What a network sees of an observation, in the order of the flattened vector."""
    inputs: list[ObservationInput] = []
    first = ""
    for part in observation_parts(space):
        name = OBSERVATIONS + part.name
        if part.one_byte:
            inputs.append(ObservationInput(name, part.start, part.stop, part.space))
        elif inputs and inputs[-1].space is None:
            inputs[-1] = ObservationInput(f"{first} to {part.name}", inputs[-1].start, part.stop)
        else:
            inputs.append(ObservationInput(first := name, part.start, part.stop))
    return (replace(inputs[0], name=OBSERVATIONS),) if len(inputs) == 1 else tuple(inputs)


def keys_alone(space: spaces.Dict, keys: Sequence[str]) -> tuple[spaces.Dict, list[int]]:
    """The space of these keys of a Dict, and the places of their numbers among all."""
    # A list keeps the order.
    own = spaces.Dict([(key, part) for key, part in space.spaces.items() if key in keys])
    parts = [part for part in observation_parts(space) if part.path[0] in keys]
    return own, [place for part in parts for place in range(part.start, part.stop)]


def why_no_keys(env_id: str, space: gymnasium.Space, keys: Sequence[str]) -> str:
    """Why these keys do not name parts of an environment's observations; "" where they do."""
    if not isinstance(space, spaces.Dict):
        return (
            f"{' '.join(keys)}, and the observation space of {env_id} is no Dict, whose keys it "
            f"names: {space!s:.200}; leave the flag out"
        )
    missing = [key for key in keys if key not in space.spaces]
    known = ", ".join(space.spaces)[:200]
    return f"{env_id} observes no {missing[0]!r}; it has {known}" if missing else ""


def observation_dtype(space: gymnasium.Space) -> str:
    """The type of a flattened observation: "uint8" of one input of one byte, else "float32"."""
    inputs = observation_inputs(space)
    return inputs[0].dtype if len(inputs) == 1 else "float32"


def is_channels_first(space: gymnasium.Space) -> bool:
    """Whether observations are pictures [channels, rows, columns], as torch has them: a Box of one
    byte whose first axis, at most half as long as the others, becomes the last when it is read."""
    shape = space.shape or ()
    return _has_bytes(space) and len(shape) == 3 and 2 * shape[0] <= min(shape[1:])


def picture_size(space: gymnasium.Space) -> tuple[int, int, int] | None:
    """Rows, columns and channels of observations that are pictures: a Box of one byte, [rows,
    columns], [rows, columns, channels] or `is_channels_first`. None: they are vectors."""
    shape = space.shape or ()
    if len(shape) not in (2, 3) or not _has_bytes(space):
        return None
    rows, columns, *channels = (*shape[1:], shape[0]) if is_channels_first(space) else shape
    size = rows, columns, math.prod(channels)
    return size if min(rows, columns) >= _LEAST_OF_A_PICTURE else None


def _has_bytes(space: gymnasium.Space) -> bool:
    return isinstance(space, spaces.Box) and space.dtype in OF_ONE_BYTE


def observation_columns(space: gymnasium.Space) -> tuple[Column, ...]:
    """A column for each input of an observation, flattened, in their order."""
    return tuple(
        Column(each.name, each.dtype, (each.width,), per_observation=True)
        for each in observation_inputs(space)
    )


def step_columns(
    spec: EnvironmentSpec, reward_parts: tuple[str, ...] = (), outcomes: tuple[str, ...] = ()
) -> tuple[Column, ...]:
    """What actors record: observations, actions as the policy sampled them (real numbers before
    clipping, choices counted from 0), rewards as the environment returns them and, where there are
    any, masks of allowed actions; and the reward parts and outcomes of these names, each side by
    side in one column; outcomes are 0 but at an episode's last step."""
    choices = spec.choices
    scalar = isinstance(spec.action_space, spaces.Discrete)
    shape = () if scalar else (len(choices) or spec.action_dim,)
    columns = [
        *observation_columns(spec.observation_space),
        Column("actions", "float32" if spec.continuous else "int32", shape, False, choices),
        Column("rewards", "float64", spec.reward_shape, per_observation=False),
    ]
    if spec.masked:
        columns.append(Column(ACTION_MASKS, "uint8", (mask_bytes(spec.action_dim),), True))
    for name, named in (("reward_parts", reward_parts), ("outcomes", outcomes)):
        if named:
            columns.append(Column(name, "float64", (len(named),), per_observation=False))
    return tuple(columns)
