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

# Limits on a received space: its depth, its subspaces and its numbers, all levels together.
MAX_NESTING = 16
MAX_PARTS = 1024
MAX_NUMBERS = 1 << 24
_MAX_RANK = 8
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
    """The inverse of `space_to_data`, for untrusted data. Raises WireError, which says where in
    `name`, if the data is no space, or one that is nested too deeply or too large."""
    return _Reader().read(data, name, 0)


class _Reader:
    """Reads one space, and counts its subspaces and numbers against the limits."""

    def __init__(self) -> None:
        self._parts = self._numbers = 0

    def read(self, data: object, where: str, depth: int) -> gymnasium.Space:
        self._parts += 1
        try:
            if depth > MAX_NESTING or self._parts > MAX_PARTS:
                raise ValueError(f"more than {MAX_NESTING} levels or {MAX_PARTS} parts")
            if not isinstance(data, dict):
                raise TypeError(f"not a space: {data!s:.40}")
            return self._space(data, where, depth)
        except WireError:
            raise
        except (KeyError, TypeError, ValueError, AssertionError, OverflowError) as error:
            raise WireError(f"{where}: {type(error).__name__}: {error!s:.200}") from error

    def _space(self, data: dict[str, Any], where: str, depth: int) -> gymnasium.Space:
        kind = data.get("type")
        if kind == "tuple":
            parts = enumerate(_list(data["spaces"]))
            return spaces.Tuple([self.read(part, f"{where}[{i}]", depth + 1) for i, part in parts])
        if kind == "dict":
            parts = [(_name(name), part) for name, part in _list(data["spaces"])]
            if len(dict(parts)) < len(parts):
                raise ValueError("a name comes twice")
            # A list keeps the order; a dictionary would be sorted.
            return spaces.Dict(
                [(name, self.read(part, f"{where}[{name!r}]", depth + 1)) for name, part in parts]
            )
        if kind == "discrete":
            n, start = self._counted(_integer(data["n"])), _integer(data["start"])
            return spaces.Discrete(n, start=start, dtype=_dtype(data, "iu"))
        if kind == "multibinary" and type(data["n"]) is int:
            return spaces.MultiBinary(self._counted(data["n"]))
        if kind not in ("box", "multidiscrete", "multibinary"):
            raise ValueError(f"{kind!s:.40} is no known kind of space")
        shape = tuple(map(_integer, _list(data["n" if kind == "multibinary" else "shape"])))
        if len(shape) > _MAX_RANK or min(shape, default=0) < 0:
            raise ValueError(f"shape: {shape!s:.80}")
        self._counted(math.prod(shape))
        if kind == "multibinary":
            return spaces.MultiBinary(list(shape))
        if kind == "box":
            dtype = _dtype(data, "fiub")
            low, high = (_array(data[name], shape, dtype) for name in ("low", "high"))
            return spaces.Box(low, high, shape, dtype.type)
        dtype = _dtype(data, "iu")
        nvec, start = (_array(data[name], shape, dtype) for name in ("nvec", "start"))
        self._counted(sum(nvec.ravel().tolist()))
        return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)

    def _counted(self, numbers: int) -> int:
        self._numbers += numbers
        if self._numbers > MAX_NUMBERS:
            raise ValueError(f"a space of more than {MAX_NUMBERS} numbers")
        return numbers


def _runs(array: np.ndarray) -> Any:
    values = [_number(value) for value in array.ravel().tolist()]
    runs = [[value, len(list(group))] for value, group in groupby(values)]
    return runs[0][0] if len(runs) == 1 else runs


def _number(value: float) -> float | str:
    if isinstance(value, int):  # JSON has another word for a bool
        return int(value)
    return value if math.isfinite(value) else str(value)


def _array(data: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape)
    values, counts = [], []
    for value, count in data if isinstance(data, list) else [[data, size]]:
        number = _INFINITE[value] if isinstance(value, str) else value
        if type(number) not in (int, float) or math.isnan(number):
            raise ValueError(f"not a number: {value!s:.40}")
        values.append(number)
        counts.append(_integer(count))
    if sum(counts) != size or min(counts, default=0) < 0:
        raise ValueError(f"{sum(counts)} numbers where {size} are expected")
    exact = np.array(values, dtype)
    if exact.tolist() != values:
        raise ValueError(f"numbers that {dtype} does not hold")
    return np.repeat(exact, counts).reshape(shape)


def _dtype(data: dict[str, Any], kinds: str) -> np.dtype:
    dtype = _DTYPES.get(_name(data.get("dtype")))
    if dtype is None or dtype.kind not in kinds:
        raise ValueError(f"dtype: {data['dtype']!r:.40}")
    return dtype


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"not a list: {value!s:.40}")
    return value


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"not an integer: {value!s:.40}")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise TypeError(f"not a name: {value!s:.40}")
    return value
