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
        return {
            "type": "dict",
            "spaces": [[name, space_to_data(part)] for name, part in space.spaces.items()],
        }
    if isinstance(space, spaces.Tuple):
        return {"type": "tuple", "spaces": [space_to_data(part) for part in space.spaces]}
    if isinstance(space, spaces.MultiBinary):
        return {
            "type": "multibinary",
            "n": list(space.shape) if space.shape != (space.n,) else space.n,
        }
    data: dict[str, Any] = {"dtype": str(np.dtype(space.dtype))}
    if isinstance(space, spaces.Discrete):
        return {"type": "discrete", **data, "n": int(space.n), "start": int(space.start)}
    data["shape"] = list(space.shape or ())
    if isinstance(space, spaces.Box):
        return {"type": "box", **data, "low": _runs(space.low), "high": _runs(space.high)}
    if isinstance(space, spaces.MultiDiscrete):
        runs = {"nvec": _runs(space.nvec), "start": _runs(space.start)}
        return {"type": "multidiscrete", **data, **runs}
    raise WireError(f"{str(space)[:200]} cannot be described as data")


def space_from_data(data: object, name: str) -> gymnasium.Space:
    """The inverse of `space_to_data`, for untrusted data. Raises WireError, which says where in
    `name`, if the data is no space, or one that is nested too deeply or too large."""
    return _Reader().read(data, name, 0)


class _Reader:
    """Reads one space, and counts its subspaces and numbers against the limits."""

    def __init__(self) -> None:
        self._parts = 0
        self._numbers = 0

    def read(self, data: object, where: str, depth: int) -> gymnasium.Space:
        self._parts += 1
        if depth > MAX_NESTING or self._parts > MAX_PARTS:
            raise WireError(
                f"{where}: a space of more than {MAX_NESTING} levels or {MAX_PARTS} parts"
            )
        if not isinstance(data, dict):
            raise WireError(f"{where}: not a space: {str(data)[:40]}")
        kind = data.get("type")
        try:
            if kind in ("dict", "tuple"):
                return self._nested(kind, data, where, depth)
            if kind in ("box", "discrete", "multidiscrete", "multibinary"):
                return self._leaf(kind, data, where)
            raise WireError(f"{where}: type: {str(kind)[:40]!r} is no known kind of space")
        except WireError:
            raise
        except (KeyError, TypeError, ValueError, AssertionError, OverflowError) as error:
            raise WireError(f"{where}: {type(error).__name__}: {str(error)[:200]}") from error

    def _nested(
        self, kind: str, data: dict[str, Any], where: str, depth: int
    ) -> spaces.Dict | spaces.Tuple:
        listed = data.get("spaces")
        if not isinstance(listed, list):
            raise WireError(f"{where}: spaces: not a list")
        if kind == "tuple":
            return spaces.Tuple(
                [self.read(part, f"{where}[{i}]", depth + 1) for i, part in enumerate(listed)]
            )
        parts: dict[str, gymnasium.Space] = {}
        for entry in listed:
            if not (isinstance(entry, list) and len(entry) == 2 and _is_name(entry[0])):
                raise WireError(f"{where}: spaces: not pairs of a name and a space")
            name, part = entry
            if name in parts:
                raise WireError(f"{where}: the name {name!r} comes twice")
            parts[name] = self.read(part, f"{where}[{name!r}]", depth + 1)
        # A list keeps the order; a dictionary would be sorted.
        return spaces.Dict(list(parts.items()))

    def _leaf(self, kind: str, data: dict[str, Any], where: str) -> gymnasium.Space:
        if kind == "discrete":
            n, start = _integer(data["n"]), _integer(data["start"])
            self._count(n, where)
            return spaces.Discrete(n, start=start, dtype=_dtype(data, "iu"))
        shape = data.get("n" if kind == "multibinary" else "shape")
        flat = kind == "multibinary" and type(shape) is int
        shape = [shape] if flat else shape
        if not isinstance(shape, list) or len(shape) > _MAX_RANK:
            raise WireError(f"{where}: shape: not a list of at most {_MAX_RANK} numbers")
        shape = tuple(_integer(size) for size in shape)
        if any(size < 0 for size in shape):
            raise WireError(f"{where}: shape: {shape}")
        self._count(math.prod(shape), where)
        if kind == "multibinary":
            return spaces.MultiBinary(shape[0] if flat else list(shape))
        if kind == "box":
            dtype = np.dtype(bool) if data.get("dtype") == "bool" else _dtype(data, "fiu")
            low, high = (_array(data[name], shape, dtype) for name in ("low", "high"))
            return spaces.Box(low, high, shape, dtype.type)
        dtype = _dtype(data, "iu")
        nvec, start = (_array(data[name], shape, dtype) for name in ("nvec", "start"))
        self._count(sum(nvec.ravel().tolist()), where)
        return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)

    def _count(self, numbers: int, where: str) -> None:
        self._numbers += numbers
        if self._numbers > MAX_NUMBERS:
            raise WireError(f"{where}: a space of more than {MAX_NUMBERS} numbers")


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
    pairs = data if isinstance(data, list) else [[data, size]]
    values, counts = [], []
    for value, count in pairs:
        number = _INFINITE[value] if isinstance(value, str) else value
        if type(number) not in (int, float) or math.isnan(number):
            raise ValueError(f"not a number: {str(value)[:40]}")
        values.append(number)
        counts.append(_integer(count))
    if sum(counts) != size or min(counts, default=0) < 0:
        raise ValueError(f"{sum(counts)} numbers where {size} are expected")
    exact = np.array(values, dtype)
    if exact.tolist() != values:
        raise ValueError(f"numbers that {dtype} does not hold")
    return np.repeat(exact, counts).reshape(shape)


def _dtype(data: dict[str, Any], kinds: str) -> np.dtype:
    name = data.get("dtype")
    # No float has a single byte.
    known = {
        str(np.dtype(f"{kind}{size}")) for kind in kinds for size in (1, 2, 4, 8)[kind == "f" :]
    }
    if name not in known:
        raise WireError(f"dtype: {str(name)[:40]!r} is none of {', '.join(sorted(known))}")
    return np.dtype(name)


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"not an integer: {str(value)[:40]}")
    return value


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT
