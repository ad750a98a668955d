"""Types of settings, checked the same from Python, the command line and config.json."""

import contextlib
import difflib
import functools
import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import msgspec

from flame_rl.system.errors import UsageError


def within(low: float, high: float, text: str = "") -> msgspec.Meta:
    """Marks a number with its least and its greatest value, and how an error says that."""
    return msgspec.Meta(ge=low, le=high, description=text or f"from {low} to {high}")


def matching(pattern: str, text: str) -> msgspec.Meta:
    """Marks a text in which the pattern is found, and how an error says that."""
    return msgspec.Meta(pattern=pattern, description=text)


Count = Annotated[int, within(1, 1 << 40, "at least 1, at most 2**40")]
CountOrZero = Annotated[int, within(0, 1 << 40, "0 or more, at most 2**40")]
Positive = Annotated[float, within(sys.float_info.min, sys.float_info.max, "above 0, and finite")]
NonNegative = Annotated[float, within(0, sys.float_info.max, "0 or more, and finite")]
Number = Annotated[float, within(-sys.float_info.max, sys.float_info.max, "finite")]
Fraction = Annotated[float, within(0, 1)]
Seed = Annotated[int, within(0, (1 << 63) - 1, "an integer from 0 to 2**63 - 1")]
# What follows the last colon, and what is before it: a module's name, which begins with no dot.
PAIR = r"(?s)^[^.].*:[^:]+$"
Class = Annotated[str, matching(PAIR, "a module and a class, as in my_module:Shaped")]
Function = Annotated[str, matching(PAIR, "a module and a function, as in my_module:shaped")]


def check_fields(settings: Any, but: tuple[str, ...] = ()) -> None:
    """Check and convert the fields of a dataclass but some, in `__post_init__`; see `converted`."""
    for name, hint in hints_of(type(settings)).items():
        if name not in but:
            # The dataclass is frozen.
            object.__setattr__(settings, name, converted(name, hint, getattr(settings, name)))


def converted(name: str, hint: Any, value: Any) -> Any:
    """The value of a field, converted to its type `hint`: a list becomes a tuple, a text a path or
    a number, NumPy's numbers Python's. Raises UsageError, which names the field."""
    if isinstance(value, list | tuple):
        plain = list(map(_plain, value))
    else:  # of an array one number, but where a list belongs
        array = hasattr(value, "tolist") and get_origin(bare(hint)) is tuple
        plain = value.tolist() if array else _plain(value)
    try:
        return msgspec.convert(plain, hint, strict=False, dec_hook=_path)
    except msgspec.ValidationError as error:
        # Errors of a range say >= or <=; one that no float can hold is no number.
        ranges = [mark for mark in _marks_of(hint) if isinstance(mark, msgspec.Meta)]
        outside = ranges and re.search("=|matching", str(error))
        shown = " ".join(map(str, plain)) if isinstance(plain, list) else plain
        if isinstance(shown, str) and shown != shown.strip():
            shown = repr(shown)
        elif not isinstance(shown, str | int | float | None):
            shown = f"{plain!r:.150} of type {type(plain).__name__}"
        refuse(name, ranges[0].description if outside else _in_words(hint), shown)


def _plain(value: Any) -> Any:
    """NumPy's numbers, and arrays of one, as Python's; other arrays as lists."""
    if not hasattr(value, "tolist"):
        return value
    found = value.tolist()
    while isinstance(found, list) and len(found) == 1:
        (found,) = found
    return found


def _path(kind: type, value: Any) -> Path:
    """A path, which msgspec does not know."""
    if kind is not Path or not isinstance(value, str | Path) or "\0" in str(value):
        raise ValueError
    with contextlib.suppress(RuntimeError):  # nobody of that name
        return Path(value).expanduser()  # --output=~/runs, which no shell expands
    return Path(value)


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields, with their marks, by name."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in names_of(kind)}


def names_of(kind: type) -> list[str]:
    """The names of a dataclass's fields."""
    return [field.name for field in fields(kind)]


def _marks_of(hint: Any) -> list[Any]:
    """What a type is annotated with, and the types within it."""
    inner = [mark for each in get_args(hint) for mark in _marks_of(each)]
    return [*getattr(hint, "__metadata__", ()), *inner]


def bare(hint: Any) -> Any:
    """A type without its marks, and without None."""
    if get_origin(hint) is Annotated:
        return bare(get_args(hint)[0])
    if may_be_none(hint):
        (other,) = (each for each in get_args(hint) if each is not NoneType)
        return bare(other)
    return hint


def may_be_none(hint: Any) -> bool:
    """Whether None is a value of the type."""
    return NoneType in get_args(hint)


def _in_words(hint: Any) -> str:
    """The values that a type allows, in words."""
    kind, inner = bare(hint), get_args(bare(hint))
    names = {int: "an integer", float: "a number", bool: "True or False", Path: "a path"}
    text = ", ".join(inner) if get_origin(kind) is Literal else names.get(kind, "a text")
    if get_origin(kind) is tuple:
        text = f"a list of {_in_words(inner[0]).split()[-1]}s"
    return f"{text} or None" if may_be_none(hint) else text


def refuse(name: str, expected: str, value: object) -> NoReturn:
    """Raise UsageError: the flag, the values it takes, and the value it was given."""
    raise UsageError(f"{flag(name)}: {expected}, not {value!s:.200}")


def flag(name: str) -> str:
    """The flag of a field. A field whose name is a word of Python ends in an underscore."""
    return "--" + name.removesuffix("_").replace("_", "-")


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Asks for the known name that a name resembles most, above all one that begins alike, or whose
    initials it has, as --lr has those of --learning-rate; where there is none, `otherwise`."""
    known = list(known)
    alike = [each for each in known if name.startswith(each) or each.startswith(name)]
    alike = alike or [each for each in known if re.sub(r"(?<=[a-z])[a-z]+.?", "", each) == name]
    closest = difflib.get_close_matches(name, alike or known, n=1, cutoff=0 if alike else 0.6)
    return f"did you mean {closest[0]}?" if closest else otherwise


def name_is_taken(name: str) -> UsageError:
    """The error of an entry of info that has the name of another column."""
    remedy = "is another column of metrics.csv; rename it in info"
    return UsageError(f"--reward-parts, --outcomes: {name!r} {remedy}")
