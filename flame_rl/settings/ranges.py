"""The settings that `main.py tune` searches: those whose type has a range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flame_rl.settings.checks import Among, Span, flag, hints_of, marks_of, suggestion
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError

# A value that was chosen from a range; one from `Among` is a text.
Value = int | float | str
Range = Span | Among


def ranges_of(config: TrainConfig, given: Sequence[str], search: Sequence[str]) -> dict[str, Range]:
    """The settings to search, by field, each with its range, widened to the value in `config`.

    Args:
        config: where the search begins.
        given: flags of the command line; what they set is not searched.
        search: names of flags, which are searched even if they are given; none: all that are not.

    Raises:
        UsageError: a name in `search` is no setting with a range.
    """
    marks = _declared(config)
    named = [name.lstrip("-").replace("-", "_") for name in search]
    for name in named:
        if name not in marks:
            nearest = suggestion(name, marks)
            more = f"did you mean {nearest}?" if nearest else f"there are {', '.join(marks)}"
            raise UsageError(f"--search: {name!r} has no range; {more}")
    # A setting that is none has no effect, such as steps_per_iter beside episodes_per_iter.
    wanted = named or [
        name for name in marks if flag(name) not in given and value_of(config, name) is not None
    ]
    if not wanted:
        raise UsageError("--search: every setting with a range is given; nothing is left to search")
    return {name: _reaching(marks[name], name, value_of(config, name)) for name in wanted}


def value_of(config: TrainConfig, name: str) -> Value | None:
    """The value of a setting with a range, as the range has it."""
    section = config.algorithm if hasattr(config.algorithm, name) else config.experiment
    value, mark = getattr(section, name), _declared(config)[name]
    if value is None or isinstance(mark, Span):
        return value
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def words_of(name: str, value: Value) -> list[str]:
    """The flag and its value as words of a command line."""
    return [flag(name), *str(value).split()]


def _declared(config: TrainConfig) -> dict[str, Range]:
    return {
        name: mark
        for section in (config.algorithm, config.experiment)
        for name, hint in hints_of(type(section)).items()
        for mark in marks_of(hint)
        if isinstance(mark, Span | Among)
    }


def _reaching(mark: Range, name: str, first: Value | None) -> Range:
    """The range with the first value in it."""
    if first is None:
        raise UsageError(f"--search: {flag(name)} is none; give it a number")
    if isinstance(mark, Among):
        return mark if first in mark.words else Among(*mark.words, first)
    if mark.log and first <= 0:
        raise UsageError(
            f"--search: {flag(name)} is searched by its logarithm, and cannot begin with {first}"
        )
    return replace(mark, low=min(mark.low, first), high=max(mark.high, first))
