"""What passes between an environment and a policy: observations of any space as one vector, in the
order of `gymnasium.spaces.flatten` (a picture's channels come last; flame_rl/wire/inputs.py has the
parts of a space), and a policy's actions as those that `env.step` takes.

What an environment returns is checked here. Errors name the part, as in "observation['arm'][0]". A
policy's continuous actions count from -1, the lower bound, to 1, the upper one. Without bounds, or
with ones so far out that they say nothing, an action is in the environment's own units."""

from collections.abc import Callable, Mapping, Sequence

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.wire.inputs import ObservationPart, is_channels_first

MAX_BOUND = 1e6  # bounds beyond it are those of a number's type, and not of an action

# Converts actions as they are recorded, a row for each slot, to as many actions of the space:
# float32 [B, A], or choices from 0, int32 [B] or [B, F].
ToEnvironment = Callable[[np.ndarray], Sequence[np.integer | np.ndarray]]


def write_observation(parts: Sequence[ObservationPart], given: object, row: np.ndarray) -> None:
    """Check an observation, and flatten it into `row`, of `observation_dtype`. NaN and infinity of
    a space that is one Box are written as they are: the caller checks all rows together. Raises
    ValueError, which begins with the part's name, if the observation is not in its space."""
    for part in parts:
        value, space, where = given, part.space, f"observation{part.name}"
        for depth, key in enumerate(part.path):
            value = _inside(value, key, part.path[:depth])
        try:
            array = np.asarray(value)
        except Exception as error:  # rows of different lengths, a tensor with a gradient, …
            raise ValueError(f"{where}: {value!r:.80}: {error}") from error
        if array.shape != space.shape:
            promised = f"where the observation space promises {space.shape}"
            raise ValueError(f"{where}: shape {array.shape} {promised}")
        is_choice = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
        if array.dtype.kind not in ("biu" if is_choice else "biuf"):
            expected = "integers" if is_choice else "numbers"
            raise ValueError(f"{where}: {value!r:.80}: {array.dtype} instead of {expected}")
        target = row[part.start : part.stop]
        if is_choice:
            _write_choices(where, space, array, target)
            continue
        if isinstance(space, spaces.MultiBinary) and not ((array == 0) | (array == 1)).all():
            raise ValueError(f"{where}: {array.tolist()!s:.80} is not of 0 and 1")
        # What is cast may be no number of the other type: beyond a byte it is refused, beyond
        # float32 it becomes infinite and is reported as such later.
        with np.errstate(over="ignore", invalid="ignore"):
            bytes_cast = part.one_byte and array.dtype != np.uint8
            if bytes_cast and (array.astype(np.uint8) != array).any():
                text = f"{array!s:.80}: not integers from 0 to 255, in {space!s:.80}"
                raise ValueError(f"{where}: {text}")
            channels_first = part.one_byte and is_channels_first(space)
            target[:] = (np.moveaxis(array, 0, -1) if channels_first else array).ravel()
        if part.path and not part.one_byte and not np.isfinite(target).all():
            raise ValueError(f"{where}: NaN or infinity: {value!s:.200}")


def _inside(value: object, key: str | int, path: tuple[str | int, ...]) -> object:
    """The entry `key` of `value`, which lies at `path` in the observation."""
    where = "observation" + "".join(f"[{key!r}]" for key in path)
    wanted = Mapping if isinstance(key, str) else (tuple, list)
    if not isinstance(value, wanted):
        name = "dictionary" if wanted is Mapping else "tuple"
        raise ValueError(f"{where}: {value!r:.80} where a {name} with {key!r} is expected")
    try:
        return value[key]
    except (KeyError, IndexError):
        has_keys = isinstance(value, Mapping)
        present = sorted(map(str, value))[:20] if has_keys else f"{len(value)} entries"
        raise ValueError(f"{where}: {key!r} is missing; it has {present}") from None


def _write_choices(
    where: str, space: spaces.Discrete | spaces.MultiDiscrete, array: np.ndarray, row: np.ndarray
) -> None:
    """The one-hot vectors of the choices, one after another."""
    if isinstance(space, spaces.Discrete):
        places = int(array) - int(space.start)  # Python integers do not wrap around
        outside = not 0 <= places < space.n
    else:
        counts = space.nvec.ravel()
        chosen = array.ravel().astype(np.int64) - space.start.ravel()
        outside = (chosen < 0).any() or (chosen >= counts).any()
        places = np.cumsum(counts) - counts + chosen
    if outside:
        raise ValueError(f"{where}: {array.tolist()!s:.80} is outside of {space!s:.200}")
    row[:] = 0
    row[places] = 1


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
