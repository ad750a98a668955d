"""Read a dataclass from JSON data by its annotations, and write it as JSON data. The data are
untrusted: types are exact (True is no integer), numbers and lists keep within their limits, and no
field is unknown or missing."""

import contextlib
import functools
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from numbers import Integral, Real
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

Kind = TypeVar("Kind")


class WireError(ValueError):
    """Data that do not have the form they should have; the message names the field."""


class Within(NamedTuple):
    """The range of a number, and how an error says it; or that of a list's length, without text."""

    low: float
    high: float
    text: str = ""


class Converted(NamedTuple):
    """How a type that this module does not know is read from JSON data and a name, and written."""

    from_data: Callable[[Any, str], Any]
    to_data: Callable[[Any], Any]


Whole = Annotated[int, Within(0, (1 << 63) - 1, "an integer from 0 to 2**63 - 1")]
Size = Annotated[int, Within(1, (1 << 63) - 1, "an integer from 1 to 2**63 - 1")]


def from_data(kind: type[Kind], data: Any, name: str = "", /, **given: Any) -> Kind:
    """Make the dataclass `kind` from a JSON object, which comes from the field `name`, and from
    the fields that are `given`. Fields with a default may be missing. Raises WireError."""
    if not isinstance(data, dict):
        raise WireError(f"{name or 'data'}: an object, not {data!s:.200}")
    prefix = f"{name}." if name else ""
    hints, values = _hints_of(kind), dict(given)
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
    """The value of one field, as its hint says: a list becomes a tuple and, for a float, an integer
    a float. Raises WireError: "{name}: {what is expected}, not {value}"."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if NoneType in inner:
        return None if value is None else value_from_data(inner[0], value, name)
    if is_dataclass(hint):
        return from_data(hint, value, name)
    if origin is Annotated and isinstance(inner[1], Converted):
        return inner[1].from_data(value, name)
    if origin is Annotated:
        converted, (low, high, expected) = value_from_data(inner[0], value, name), inner[1]
        if low <= (len(converted) if isinstance(converted, tuple) else converted) <= high:
            return converted
        expected = expected or f"a list of {low} to {high} entries"
    else:
        expected = ", ".join(inner) if origin is Literal else _WORDS.get(origin or hint)
    if origin is tuple and isinstance(value, list | tuple):
        items = enumerate(value)
        return tuple(value_from_data(inner[0], each, f"{name}[{i}]") for i, each in items)
    if origin is dict and isinstance(value, dict):
        return {k: value_from_data(inner[1], each, f"{name}[{k!r}]") for k, each in value.items()}
    if origin is Literal and type(value) is str and value in inner:
        return value
    if hint is Any or (hint in (bool, str) and type(value) is hint):
        return value
    number = {int: Integral, float: Real}.get(hint)
    if number and isinstance(value, number) and type(value) is not bool:
        with contextlib.suppress(OverflowError):
            return hint(value)  # NumPy's numbers become Python's
    raise WireError(f"{name}: {expected}, not {value!s:.200}")


_WORDS = {int: "an integer", float: "a number", bool: "True or False", str: "a text"}
_WORDS |= {tuple: "a list", dict: "an object"}


def to_data(value: Any, but: tuple[str, ...] = ()) -> Any:
    """A dataclass as JSON data for `from_data`, without the fields in `but` or at their default."""
    if isinstance(value, tuple):
        return [to_data(each) for each in value]
    if not is_dataclass(value):
        return value
    data, hints = {}, _hints_of(type(value))
    for field in fields(value):
        held, marks = getattr(value, field.name), getattr(hints[field.name], "__metadata__", ())
        if field.name not in but and (field.default is MISSING or held != field.default):
            convert = next((mark.to_data for mark in marks if isinstance(mark, Converted)), to_data)
            data[field.name] = convert(held)
    return data


# The annotations of a dataclass's fields, by name.
_hints_of = functools.cache(functools.partial(typing.get_type_hints, include_extras=True))
