"""Observations of any space as one vector, in the order of `gymnasium.spaces.flatten`; a picture's
channels come last. flame_rl/wire/inputs.py has the parts of a space.

What an environment returns is checked here. Errors name the part, as in "observation['arm'][0]".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from gymnasium import spaces

from flame_rl.wire.inputs import ObservationPart


def write_observation(
    parts: Sequence[ObservationPart], observation: object, row: np.ndarray
) -> None:
    """Check an observation, and flatten it into `row`, of `observation_dtype`. NaN and infinity of
    a space that is one Box are written as they are: the caller checks all rows together. Raises
    ValueError, which begins with the part's name, if the observation is not in its space."""
    for part in parts:
        value, space, where = observation, part.space, f"observation{part.name}"
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
            target[:] = (np.moveaxis(array, 0, -1) if part.channels_first else array).ravel()
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
        # Python integers do not wrap around.
        places = int(array) - int(space.start)
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
