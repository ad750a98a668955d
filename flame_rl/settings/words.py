"""The words of a command line: numbers and lists in the forms that people type, and mistakes named
before the parser of flags sees them, whose errors are about types of Python."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from flame_rl.settings.checks import flag, refuse
from flame_rl.system.errors import UsageError
from flame_rl.wire.fields import hint_in_words

_SWITCHES = {"true": True, "false": False}


def plain_words(
    arguments: Sequence[str], hints: Mapping[str, Any], switches: Iterable[str] = ()
) -> list[str]:
    """The words in the forms that the parser reads: 1e6 as an integer, 64,64 as two words. A flag
    that takes a list of texts adds to it where it comes again.

    Args:
        arguments: the words; the names of flags have hyphens.
        hints: by field, the hint of its type.
        switches: fields whose flag takes True or False, and alone means True; other flags of that
            kind take no word.

    Raises:
        UsageError: there is no such flag, or its value is missing or of another type.
    """
    fields = {flag(name): name for name in hints}
    words = list(arguments)
    read: list[list[str]] = []
    lists: dict[str, list[str]] = {}
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("--") or name in ("--", "--help"):
            read.append([word])
            continue
        positive = name.replace("--no-", "--", 1)
        if name not in fields:
            if positive not in fields or not _is_switch(hints[fields[positive]]):
                raise UsageError(f"{name}: there is no such flag{_nearest(name, fields)}")
            read.append([word])
            continue
        if equals:
            words.insert(0, value)
        following = next((i for i, w in enumerate(words) if w.startswith("--")), len(words))
        values, words = words[:following], words[following:]
        field = fields[name]
        if _is_switch(hints[field]):
            read.append(_switch(name, field, values, field in switches))
            continue
        taken = _values(field, hints[field], values)
        if field in lists:
            lists[field] += taken
            continue
        read.append([name, *taken])
        if _bare(hints[field]) == tuple[str, ...]:
            lists[field] = read[-1]
    return [word for group in read for word in group]


def suggestion(name: str, known: Iterable[str]) -> str:
    """The known name that another one resembles most, above all one that begins alike; "" if it
    resembles none."""
    alike = [each for each in known if name.startswith(each) or each.startswith(name)]
    closest = difflib.get_close_matches(name, alike or known, n=1, cutoff=0 if alike else 0.6)
    return closest[0] if closest else ""


def _nearest(name: str, flags: Iterable[str]) -> str:
    nearest = suggestion(name, list(flags))
    return f"; did you mean {nearest}?" if nearest else "; --help lists them all"


def _is_switch(hint: Any) -> bool:
    return _bare(hint) is bool


def _may_be_none(hint: Any) -> bool:
    return NoneType in get_args(get_args(hint)[0] if get_origin(hint) is Annotated else hint)


def _bare(hint: Any) -> Any:
    """A hint without its marks, and without None."""
    if get_origin(hint) is Annotated:
        return _bare(get_args(hint)[0])
    if NoneType in get_args(hint):
        (other,) = (each for each in get_args(hint) if each is not NoneType)
        return _bare(other)
    return hint


def _switch(name: str, field: str, values: list[str], takes_word: bool) -> list[str]:
    """A switch with its words, of which the first may say whether it is on."""
    if not values:
        return [name, "True"] if takes_word else [name]
    if not takes_word and values[0].lower() not in _SWITCHES:
        return [name, *values]
    chosen, *others = values
    if chosen.lower() not in _SWITCHES:
        refuse(field, "True or False", chosen)
    on = _SWITCHES[chosen.lower()]
    if takes_word:
        return [name, str(on), *others]
    return [name if on else flag(f"no_{field}"), *others]


def _values(field: str, hint: Any, values: list[str]) -> list[str]:
    """The words after a flag; those beyond its own are the command's."""
    bare = _bare(hint)
    if get_origin(bare) is tuple:
        kind = _bare(get_args(bare)[0])
        several = [part for value in values for part in _parts(value) if part]
        return [_value(field, hint, kind, part) for part in several]
    if not values or values == [""]:
        raise UsageError(f"{flag(field)}: a value is missing: {hint_in_words(hint)}")
    first, *others = values
    return [_value(field, hint, bare, first), *others]


def _parts(word: str) -> list[str]:
    """The word cut at its commas, but not within brackets and quotation marks, as JSON has them."""
    parts, depth, quote, escaped = [""], 0, "", False
    for character in word:
        if character == "," and not depth and not quote:
            parts.append("")
            continue
        parts[-1] += character
        if quote:
            quote = "" if character == quote and not escaped else quote
            escaped = character == "\\" and not escaped
        elif character in "\"'":
            quote = character
        else:
            depth += (character in "[{(") - (character in "]})")
    return parts


def _value(field: str, hint: Any, kind: Any, word: str) -> str:
    if word.lower() == "none" and _may_be_none(hint):
        return "None"
    if get_origin(kind) is Literal:
        choices = {choice.lower(): choice for choice in get_args(kind)}
        if word.lower() not in choices:
            refuse(field, hint_in_words(hint), word)
        return choices[word.lower()]
    if kind not in (int, float):
        return word
    try:
        # A float is no exact integer beyond 2**53, so that only 1e6 and the like become one.
        float(word)
        return str(_integer(word)) if kind is int else word
    except ValueError:
        refuse(field, hint_in_words(hint), word)


def _integer(word: str) -> int:
    """Raises ValueError if the word is no whole number."""
    with contextlib.suppress(ValueError):
        return int(word)
    number = float(word)
    if not number.is_integer():
        raise ValueError
    return int(number)
