"""The spaces of Gymnasium as data that JSON can hold, and back.

    Box(0, 255, (84, 84), uint8)     {"type": "box", "dtype": "uint8", "shape": [84, 84],
                                      "low": 0, "high": 255}
    Discrete(3, start=1)             {"type": "discrete", "dtype": "int64", "n": 3, "start": 1}
    MultiDiscrete([2, 3])            {"type": "multidiscrete", "dtype": "int64", "shape": [2],
                                      "nvec": [[2, 1], [3, 1]], "start": 0}
    MultiBinary(4)                   {"type": "multibinary", "n": 4}, or "n": [2, 2]
    Dict(a=..., b=...)               {"type": "dict", "spaces": [["a", ...], ["b", ...]]}
    Tuple([..., ...])                {"type": "tuple", "spaces": [..., ...]}

An array (low, high, nvec, start) is one number if all its elements are equal, otherwise run-length
pairs [number, count]. Infinity, for which JSON has no number, is "inf" or "-inf".
"""

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
    data: dict[str, Any] = {"dtype": str(np.dtype(space.dtype))}
    if isinstance(space, spaces.Discrete):
        return {"type": "discrete", **data, "n": int(space.n), "start": int(space.start)}
    data["shape"] = list(space.shape or ())
    if isinstance(space, spaces.Box):
        return {"type": "box", **data, "low": _runs(space.low), "high": _runs(space.high)}
    if isinstance(space, spaces.MultiDiscrete):
        runs = {"nvec": _runs(space.nvec), "start": _runs(space.start)}
        return {"type": "multidiscrete", **data, **runs}
    raise WireError(f"{space!s:.200} cannot be described as data")


def space_from_data(data: object, name: str) -> gymnasium.Space:
    """The inverse of `space_to_data`. Raises WireError, which says where in `name`, if the data is
    no space, or one that is nested too deeply or too large."""
    return _read(data, name, 0, {"parts": MAX_PARTS, "numbers": MAX_NUMBERS})


def _read(data: object, where: str, depth: int, left: dict[str, int]) -> gymnasium.Space:
    """One space; `left` are the numbers of subspaces and of numbers that may still come."""

    def count(what: str, number: int = 1) -> int:
        left[what] -= number
        if left[what] < 0:
            raise ValueError(f"a space of more than {MAX_PARTS} parts or {MAX_NUMBERS} numbers")
        return number

    def field(name: str, hint: Any) -> Any:
        return value_from_data(hint, data[name], f"{where}.{name}")

    def array(name: str) -> np.ndarray:
        return _array(data[name], f"{where}.{name}", shape, dtype)

    try:
        count("parts")
        if depth > MAX_NESTING:
            raise ValueError(f"more than {MAX_NESTING} levels")
        kind = data.get("type") if isinstance(data, dict) else "what is not a space"
        if kind in ("tuple", "dict"):
            parts = field("spaces", tuple[Any, ...])
            named = [*enumerate(parts)]
            if kind == "dict":
                named = [(value_from_data(str, n, f"{where}: name"), part) for n, part in parts]
            if len(dict(named)) < len(named):
                raise ValueError("a name comes twice")
            read = [(n, _read(part, f"{where}[{n!r}]", depth + 1, left)) for n, part in named]
            # A list keeps the order; a dictionary would be sorted.
            return spaces.Dict(read) if kind == "dict" else spaces.Tuple([p for _, p in read])
        if kind not in ("discrete", "box", "multidiscrete", "multibinary"):
            raise ValueError(f"{kind!s:.40} is no known kind of space")
        if kind == "discrete":
            n, start = count("numbers", field("n", int)), field("start", int)
            dtype = _dtype(data, "iu")
            # Gymnasium before 1.2.2 has no other, and no argument for it.
            other = {} if dtype == np.int64 else {"dtype": dtype}
            return spaces.Discrete(n, start=start, **other)
        if kind == "multibinary" and type(data["n"]) is int:
            return spaces.MultiBinary(count("numbers", data["n"]))
        shape = field("n" if kind == "multibinary" else "shape", Shape)
        count("numbers", math.prod(shape))
        if kind == "multibinary":
            return spaces.MultiBinary(list(shape))
        dtype = _dtype(data, "fiub" if kind == "box" else "iu")
        if kind == "box":
            return spaces.Box(array("low"), array("high"), shape, dtype.type)
        count("numbers", sum((nvec := array("nvec")).ravel().tolist()))
        return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=array("start"))
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


def _dtype(data: dict[str, Any], kinds: str) -> np.dtype:
    dtype = _DTYPES.get(data["dtype"])
    if dtype is None or dtype.kind not in kinds:
        raise ValueError(f"dtype: {data['dtype']!r:.40}")
    return dtype
