"""Types and ranges of settings: checked the same from Python, the command line and config.json."""

from __future__ import annotations

import dataclasses
import sys
import types
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from flame_rl.system.errors import UsageError


class Within(NamedTuple):
    """The least and the greatest value of a number, and how an error says that."""

    low: float
    high: float
    text: str


Count = Annotated[int, Within(1, 1 << 40, "at least 1, at most 2**40")]
CountOrZero = Annotated[int, Within(0, 1 << 40, "0 or more, at most 2**40")]
Positive = Annotated[float, Within(sys.float_info.min, sys.float_info.max, "above 0, and finite")]
NonNegative = Annotated[float, Within(0, sys.float_info.max, "0 or more, and finite")]
Number = Annotated[float, Within(-sys.float_info.max, sys.float_info.max, "finite")]
Fraction = Annotated[float, Within(0, 1, "from 0 to 1")]
UpdatesPerStep = Annotated[float, Within(0.001, 1000, "from 0.001 to 1000")]
Seed = Annotated[int, Within(0, (1 << 63) - 1, "an integer from 0 to 2**63 - 1")]
LogStd = Annotated[float, Within(-20, 5, "from -20 to 5")]
# A squashed Gaussian policy clips the logarithm at 2.
SquashedStd = Annotated[float, Within(1e-6, 7, "from 0.000001 to 7")]


def check_fields(settings: Any, but: tuple[str, ...] = ()) -> None:
    """Check every field of a frozen dataclass against its annotation; call it in `__post_init__`.

    An int where a float is expected becomes one, also in a tuple, and NumPy's numbers become
    Python's. Fields named in `but` are skipped.

    Raises:
        UsageError: a value has the wrong type, is not among the choices, or is out of range.
    """
    hints = get_type_hints(type(settings), include_extras=True)
    for field in dataclasses.fields(settings):
        if field.name in but:
            continue
        value, hint = _plain(getattr(settings, field.name)), hints[field.name]
        plain, ranges = _unfold(hint)
        if type(value) is int and float in plain and int not in plain:
            value = float(value)
        if type(value) is tuple and tuple[float, ...] in plain:
            value = tuple(float(each) if type(each) is int else each for each in value)
        object.__setattr__(settings, field.name, value)
        if not any(_is_a(value, each) for each in plain):
            refuse(field.name, " or ".join(_name(each) for each in plain), value)
        for low, high, text in ranges:
            numbers = value if isinstance(value, tuple) else (value,)
            if any(n is not None and not low <= n <= high for n in numbers):
                refuse(field.name, text, value)


def refuse(name: str, expected: str, value: object) -> None:
    """Raise UsageError: the flag, the values it takes, and the value it was given."""
    raise UsageError(f"{flag(name)}: {expected}, not {value!s:.200}")


def flag(name: str) -> str:
    """The command line's flag for a field."""
    return "--" + name.replace("_", "-")


def _plain(value: object) -> object:
    """NumPy's numbers, which a search over settings may draw, as Python's; also in a tuple."""
    if type(value) is tuple:
        return tuple(_plain(each) for each in value)
    if isinstance(value, Integral) and type(value) is not bool:
        return int(value)
    return float(value) if isinstance(value, Real) and type(value) is not bool else value


def _unfold(hint: Any) -> tuple[list[Any], list[Within]]:
    """The plain types that a hint allows, and the ranges it names."""
    origin = get_origin(hint)
    if origin is Annotated:
        plain, ranges = _unfold(hint.__origin__)
        return plain, ranges + [each for each in hint.__metadata__ if isinstance(each, Within)]
    if origin in (Union, types.UnionType):
        parts = [_unfold(each) for each in get_args(hint)]
        return [p for plain, _ in parts for p in plain], [r for _, ranges in parts for r in ranges]
    if origin is tuple:
        inner, ranges = _unfold(get_args(hint)[0])
        return [tuple[inner[0], ...]], ranges
    return [hint], []


def _is_a(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Literal:
        return value in get_args(hint) and isinstance(value, str)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is_a(each, get_args(hint)[0]) for each in value)
    if hint is float:
        return type(value) is float
    if hint is Path:
        return isinstance(value, Path)
    return type(value) is hint


def _name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(get_args(hint))
    if get_origin(hint) is tuple:
        return f"a tuple of {_name(get_args(hint)[0])}"
    names = {int: "an integer", float: "a number", bool: "True or False", str: "a text"}
    return names.get(hint, "None" if hint is type(None) else getattr(hint, "__name__", str(hint)))
