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

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.wire.fields import WireError
from flame_rl.wire.packing import MAX_RANK

# Limits on a received space: its depth, its subspaces and its numbers, all levels together.
MAX_NESTING = 16
MAX_PARTS = 1024
MAX_NUMBERS = 1 << 24
_MAX_TEXT = 1000
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

    def array(name: str) -> np.ndarray:
        return _array(data[name], shape, dtype)

    try:
        count("parts")
        if depth > MAX_NESTING:
            raise ValueError(f"more than {MAX_NESTING} levels")
        kind = data.get("type") if isinstance(data, dict) else "what is not a space"
        if kind == "tuple":
            parts = enumerate(_a(list, data["spaces"]))
            return spaces.Tuple([_read(p, f"{where}[{i}]", depth + 1, left) for i, p in parts])
        if kind == "dict":
            named = [(_a(str, name), part) for name, part in _a(list, data["spaces"])]
            if len(dict(named)) < len(named):
                raise ValueError("a name comes twice")
            # A list keeps the order; a dictionary would be sorted.
            return spaces.Dict(
                [(name, _read(p, f"{where}[{name!r}]", depth + 1, left)) for name, p in named]
            )
        if kind not in ("discrete", "box", "multidiscrete", "multibinary"):
            raise ValueError(f"{kind!s:.40} is no known kind of space")
        if kind == "discrete":
            n, start = count("numbers", _a(int, data["n"])), _a(int, data["start"])
            return spaces.Discrete(n, start=start, dtype=_dtype(data, "iu"))
        if kind == "multibinary" and type(data["n"]) is int:
            return spaces.MultiBinary(count("numbers", data["n"]))
        listed = _a(list, data["n" if kind == "multibinary" else "shape"])
        shape = tuple(_a(int, length) for length in listed)
        if len(shape) > MAX_RANK or min(shape, default=0) < 0:
            raise ValueError(f"shape: {shape!s:.80}")
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


def _array(data: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape)
    values, counts = [], []
    for value, count in data if isinstance(data, list) else [[data, size]]:
        number = _INFINITE[value] if isinstance(value, str) else value
        if type(number) not in (int, float) or math.isnan(number):
            raise ValueError(f"not a number: {value!s:.40}")
        values.append(number)
        counts.append(_a(int, count))
    if sum(counts) != size or min(counts, default=0) < 0:
        raise ValueError(f"{sum(counts)} numbers where {size} are expected")
    exact = np.array(values, dtype)
    if exact.tolist() != values:
        raise ValueError(f"numbers that {dtype} does not hold")
    return np.repeat(exact, counts).reshape(shape)


def _dtype(data: dict[str, Any], kinds: str) -> np.dtype:
    dtype = _DTYPES.get(_a(str, data.get("dtype")))
    if dtype is None or dtype.kind not in kinds:
        raise ValueError(f"dtype: {data['dtype']!r:.40}")
    return dtype


def _a(kind: type, value: Any) -> Any:
    """The value, if it is a list, an integer (no bool) or a short text, as `kind` says."""
    if type(value) is not kind or (kind is str and len(value) > _MAX_TEXT):
        raise TypeError(f"not {_WORDS[kind]}: {value!s:.40}")
    return value


_WORDS = {list: "a list", int: "an integer", str: "a name"}
