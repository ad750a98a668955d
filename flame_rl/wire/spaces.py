"""The spaces of Gymnasium as data that JSON can hold, and back.

    Box(0, 255, (84, 84), uint8)     {"type": "box", "dtype": "uint8", "shape": [84, 84],
                                      "low": 0, "high": 255}
    Discrete(3, start=1)             {"type": "discrete", "dtype": "int64", "shape": [],
                                      "n": 3, "start": 1}
    MultiDiscrete([2, 3])            {"type": "multidiscrete", "dtype": "int64", "shape": [2],
                                      "nvec": [[2, 1], [3, 1]], "start": 0}
    MultiBinary(4)                   {"type": "multibinary", "n": 4}, or "n": [2, 2]
    Dict(a=..., b=...)               {"type": "dict", "spaces": [["a", ...], ["b", ...]]}
    Tuple([..., ...])                {"type": "tuple", "spaces": [..., ...]}

An array (low, high, nvec, start) is one number if all its elements are equal, otherwise run-length
pairs [number, count]. Infinity, for which JSON has no number, is "inf" or "-inf"."""

import math
from itertools import groupby
from typing import Annotated, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.wire.fields import Whole, WireError, Within, value_from_data
from flame_rl.wire.packing import MAX_RANK

# Limits on a received space: its depth, its subspaces and its numbers, all levels together.
MAX_NESTING = 16
MAX_PARTS = 1024
MAX_NUMBERS = 1 << 24
Shape = Annotated[tuple[Whole, ...], Within(0, MAX_RANK)]
_INFINITE = {"inf": math.inf, "-inf": -math.inf}
_DTYPES = {str(np.dtype(code)): np.dtype(code) for code in "efdbhiqBHIQ?"}


def choices_of(space: gymnasium.Space) -> tuple[int, ...]:
    """The number of choices of each factor of an action; empty for real vectors."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(space.nvec.ravel().tolist())
    if isinstance(space, spaces.MultiBinary):
        return (2,) * int(np.prod(space.shape))
    return ()


# By type: the class, the kinds of its numbers, and its arrays. Those of a Discrete are numbers.
_KINDS = {
    "box": (spaces.Box, "fiub", ("low", "high")),
    "discrete": (spaces.Discrete, "iu", ("n", "start")),
    "multidiscrete": (spaces.MultiDiscrete, "iu", ("nvec", "start")),
}


def space_to_data(space: gymnasium.Space) -> dict[str, Any]:
    """A space as JSON data. Raises WireError for kinds of spaces that the module does not list."""
    if isinstance(space, spaces.Dict):
        parts = [[name, space_to_data(part)] for name, part in space.spaces.items()]
        return {"type": "dict", "spaces": parts}
    if isinstance(space, spaces.Tuple):
        return {"type": "tuple", "spaces": [space_to_data(part) for part in space.spaces]}
    if isinstance(space, spaces.MultiBinary):
        flat = space.shape == (space.n,)
        return {"type": "multibinary", "n": space.n if flat else list(space.shape)}
    for kind, (class_, _, names) in _KINDS.items():
        if isinstance(space, class_):
            data = {"type": kind, "dtype": str(np.dtype(space.dtype)), "shape": list(space.shape)}
            return data | {name: _runs(np.asarray(getattr(space, name))) for name in names}
    raise WireError(f"{space!s:.200} cannot be described as data")


def space_from_data(data: object, name: str) -> gymnasium.Space:
    """The inverse of `space_to_data`. Raises WireError, which says where in `name`, if the data is
    no space, or one that is nested too deeply or too large."""
    return _read(data, name, 0, {"parts": MAX_PARTS, "numbers": MAX_NUMBERS})


def _read(data: object, where: str, depth: int, left: dict[str, int]) -> gymnasium.Space:
    """One space; `left` are the numbers of subspaces and of numbers that may still come."""

    def count(what: str, number: int) -> None:
        left[what] -= number
        if left[what] < 0:
            raise ValueError(f"a space of more than {MAX_PARTS} parts or {MAX_NUMBERS} numbers")

    try:
        count("parts", 1)
        if depth > MAX_NESTING:
            raise ValueError(f"more than {MAX_NESTING} levels")
        kind = data.get("type") if isinstance(data, dict) else "what is not a space"
        if kind in ("tuple", "dict"):
            parts = value_from_data(tuple[Any, ...], data["spaces"], f"{where}.spaces")
            named = [*enumerate(parts)]
            if kind == "dict":
                named = [(value_from_data(str, n, f"{where}: name"), part) for n, part in parts]
            if len(dict(named)) < len(named):
                raise ValueError("a name comes twice")
            read = [(n, _read(part, f"{where}[{n!r}]", depth + 1, left)) for n, part in named]
            # A list keeps the order; a dictionary would be sorted.
            return spaces.Dict(read) if kind == "dict" else spaces.Tuple([p for _, p in read])
        if kind == "multibinary":
            flat = type(data["n"]) is int
            shape = value_from_data(Shape, [data["n"]] if flat else data["n"], f"{where}.n")
            count("numbers", math.prod(shape))
            return spaces.MultiBinary(shape[0] if flat else list(shape))
        if kind not in _KINDS:
            raise ValueError(f"{kind!s:.40} is no known kind of space")
        _, types, names = _KINDS[kind]
        dtype = _DTYPES.get(data["dtype"])
        if dtype is None or dtype.kind not in types:
            raise ValueError(f"dtype: {data['dtype']!r:.40}")
        shape = value_from_data(Shape, data.get("shape", []), f"{where}.shape")
        count("numbers", math.prod(shape) if shape else 0)
        arrays = [_array(data[name], f"{where}.{name}", shape, dtype) for name in names]
        if kind == "box":
            return spaces.Box(*arrays, shape, dtype.type)
        nvec, start = arrays
        count("numbers", sum(nvec.ravel().tolist()))
        if kind == "multidiscrete":
            return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)
        # Gymnasium before 1.2.2 has no other type, and no argument for it.
        other = {} if dtype == np.int64 else {"dtype": dtype}
        return spaces.Discrete(int(nvec), start=int(start), **other)
    except WireError:
        raise
    except (KeyError, TypeError, ValueError, AssertionError, OverflowError) as error:
        raise WireError(f"{where}: {type(error).__name__}: {error!s:.200}") from error


def _runs(array: np.ndarray) -> Any:
    # JSON has another word for a bool, and none for infinity.
    numbers = array.astype(np.uint8) if array.dtype == bool else array
    values = [v if math.isfinite(v) else str(v) for v in numbers.ravel().tolist()]
    runs = [[value, len(list(group))] for value, group in groupby(values)]
    return runs[0][0] if len(runs) == 1 else runs


def _array(data: Any, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape)
    values, counts = [], []
    for value, count in data if isinstance(data, list) else [[data, size]]:
        number = _INFINITE[value] if isinstance(value, str) else value
        if type(number) not in (int, float) or math.isnan(number):
            raise ValueError(f"not a number: {value!s:.40}")
        values.append(number)
        counts.append(value_from_data(Whole, count, name))
    if sum(counts) != size:
        raise ValueError(f"{sum(counts)} numbers where {size} are expected")
    exact = np.array(values, dtype)
    if exact.tolist() != values:
        raise ValueError(f"numbers that {dtype} does not hold")
    return np.repeat(exact, counts).reshape(shape)
