"""Read a dataclass from JSON data by its annotations, and write it as JSON data.

    @dataclass(frozen=True)
    class Camera:
        name: str
        shape: Annotated[tuple[Annotated[int, Within(1, 999, "from 1 to 999")], ...], Length(2, 2)]
        filter: Literal["none", "grey"] = "none"

    from_data(Camera, {"name": "left", "shape": [84, 84]})

Messages, the headers of checkpoints and config.json are read here. The data are untrusted: types
are exact (True is no integer), numbers, texts and lists keep within their limits, and no field is
unknown or missing. Imports nothing heavy, because every command imports this module.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

MAX_TEXT_CHARACTERS = 100_000

Kind = TypeVar("Kind")


class WireError(ValueError):
    """Data that do not have the form they should have; the message names the field."""


@dataclass(frozen=True)
class Within:
    """The least and the greatest value of a number, and how an error says that."""

    low: float
    high: float
    text: str


@dataclass(frozen=True)
class Length:
    """The least and the greatest length of a list."""

    low: int
    high: int


@dataclass(frozen=True)
class Converted:
    """Functions from and to JSON data, for a type that this module does not know. `from_data` also
    takes the field's name, for the WireError that it may raise."""

    from_data: Callable[[Any, str], Any]
    to_data: Callable[[Any], Any]


# Marks a field that few messages need: `to_data` leaves it out where it has its default.
RARE = object()

Whole = Annotated[int, Within(0, (1 << 63) - 1, "an integer from 0 to 2**63 - 1")]
Size = Annotated[int, Within(1, (1 << 63) - 1, "an integer from 1 to 2**63 - 1")]


def from_data(kind: type[Kind], data: Any, name: str = "", /, **given: Any) -> Kind:
    """Make a dataclass from a JSON object.

    Args:
        kind: the dataclass. Fields with a default may be missing.
        data: an object, from anywhere.
        name: the field that the object comes from, for errors.
        given: fields that do not come from the data.

    Raises:
        WireError: a field is unknown, missing or wrong.
    """
    if not isinstance(data, dict):
        raise WireError(f"{name or 'data'}: an object, not {data!s:.200}")
    prefix = f"{name}." if name else ""
    hints, values = hints_of(kind), dict(given)
    for key, value in data.items():
        if key not in hints or key in given:
            raise WireError(f"{prefix}{key!s:.40}: there is no such field")
        values[key] = value_from_data(hints[key], value, prefix + key)
    for field in fields(kind):
        if field.name not in values and field.default is MISSING:
            raise WireError(f"{prefix}{field.name}: missing")
    try:
        return kind(**values)
    except WireError as error:
        raise WireError(f"{prefix}{error}") from error


def value_from_data(hint: Any, value: Any, name: str) -> Any:
    """The value of one field, as its hint says.

    A list becomes a tuple, a text a Path and an integer a float where the hint asks for that, and
    NumPy's numbers become Python's.

    Raises:
        WireError: "{name}: {what is expected}, not {value}".
    """
    try:
        return _convert(hint, value, name)
    except WireError:
        raise
    except ValueError as refused:
        expected = str(refused) or hint_in_words(hint)
        raise WireError(f"{name}: {expected}, not {value!s:.200}") from None


def to_data(value: Any, but: tuple[str, ...] = ()) -> Any:
    """A dataclass as JSON data, which `from_data` reads, without the fields named in `but`."""
    if isinstance(value, tuple):
        return [to_data(each) for each in value]
    if not is_dataclass(value):
        return str(value) if isinstance(value, Path) else value
    data, hints = {}, hints_of(type(value))
    for field in fields(value):
        held, marks = getattr(value, field.name), getattr(hints[field.name], "__metadata__", ())
        if field.name in but or (RARE in marks and held == field.default):
            continue
        convert = next((mark.to_data for mark in marks if isinstance(mark, Converted)), to_data)
        data[field.name] = convert(held)
    return data


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """The hints of a dataclass's fields, by name."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def _convert(hint: Any, value: Any, name: str) -> Any:
    """Raises ValueError, whose text is what is expected, if not just a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        hint, *marks = inner
        for mark in marks:
            if isinstance(mark, Converted):
                return mark.from_data(value, name)
        value = _convert(hint, value, name)
        for mark in marks:
            if isinstance(mark, Within) and not mark.low <= value <= mark.high:
                raise ValueError(mark.text)
            if isinstance(mark, Length) and not mark.low <= len(value) <= mark.high:
                raise ValueError(f"a list of {mark.low} to {mark.high} entries")
        return value
    if NoneType in inner:
        (other,) = (each for each in inner if each is not NoneType)
        return None if value is None else _convert(other, value, name)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(inner[0], each, f"{name}[{i}]") for i, each in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {_convert(inner[0], k, name): _convert(inner[1], v, name) for k, v in value.items()}
    if is_dataclass(hint):
        return from_data(hint, value, name)
    if hint is Any or (origin is Literal and type(value) is str and value in inner):
        return value
    if hint in (int, float) and type(value) is not bool:
        if isinstance(value, Integral if hint is int else Real):
            with contextlib.suppress(OverflowError):
                return hint(value)
    elif hint is str and type(value) is str and len(value) > MAX_TEXT_CHARACTERS:
        raise ValueError(f"a text of at most {MAX_TEXT_CHARACTERS} characters")
    elif hint in (bool, str) and type(value) is hint:
        return value
    elif hint is Path and isinstance(value, str | Path):
        return Path(value)
    raise ValueError


def hint_in_words(hint: Any) -> str:
    """The values that a hint allows, in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return hint_in_words(inner[0])
    if NoneType in inner:
        return " or ".join(map(hint_in_words, inner))
    if origin is tuple:
        return f"a list of {hint_in_words(inner[0]).split()[-1]}s"
    names = {int: "an integer", float: "a number", bool: "True or False", str: "a text"}
    names |= {Path: "a path", NoneType: "None"}
    return ", ".join(inner) if origin is Literal else names.get(hint, "an object")
