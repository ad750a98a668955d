"""Types and ranges of settings: checked the same from Python, the command line and config.json."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any

from flame_rl.system.errors import UsageError
from flame_rl.wire.fields import Whole, WireError, Within, hints_of, value_from_data


@dataclass(frozen=True)
class Span:
    """Marks a setting that `main.py tune` searches, from `low` to `high`: of an integer the whole
    numbers. With `log`, by its logarithm."""

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True, init=False)
class Among:
    """Marks a setting that `main.py tune` searches among these values, in words of the command
    line."""

    words: tuple[str, ...]

    def __init__(self, *words: str) -> None:
        object.__setattr__(self, "words", words)


Count = Annotated[int, Within(1, 1 << 40, "at least 1, at most 2**40")]
CountOrZero = Annotated[int, Within(0, 1 << 40, "0 or more, at most 2**40")]
Positive = Annotated[float, Within(sys.float_info.min, sys.float_info.max, "above 0, and finite")]
NonNegative = Annotated[float, Within(0, sys.float_info.max, "0 or more, and finite")]
Number = Annotated[float, Within(-sys.float_info.max, sys.float_info.max, "finite")]
Fraction = Annotated[float, Within(0, 1, "from 0 to 1")]
UpdatesPerStep = Annotated[
    float, Within(0.001, 1000, "from 0.001 to 1000"), Span(0.05, 1.0, log=True)
]
Seed = Whole
LogStd = Annotated[float, Within(-20, 5, "from -20 to 5")]
# A squashed Gaussian policy clips the logarithm at 2.
SquashedStd = Annotated[float, Within(1e-6, 7, "from 0.000001 to 7")]
# Settings that several classes have, with the range in which they are searched.
LearningRate = Annotated[Positive, Span(1e-5, 1e-2, log=True)]
EntropyCoefficient = Annotated[NonNegative, Among("0.0", "0.001", "0.003", "0.01", "0.03")]
Minibatches = Annotated[Count, Among("4", "8", "16", "32", "64")]
MaxKL = Annotated[Positive, Span(0.01, 0.5, log=True)]
BatchSize = Annotated[Count, Among("32", "64", "128", "256", "512")]
Tau = Annotated[Fraction, Span(0.001, 0.1, log=True)]
Lambda = Annotated[Fraction, Among("0.8", "0.9", "0.95", "0.98", "1.0")]
NStep = Annotated[Count, Span(1, 5)]
EpsilonEnd = Annotated[Fraction, Span(0.01, 0.2, log=True)]
Noise = Annotated[NonNegative, Span(0.05, 0.5)]


def check_fields(settings: Any, but: tuple[str, ...] = ()) -> None:
    """Check every field of a frozen dataclass against its annotation; call it in `__post_init__`.

    A list becomes a tuple, a text a path and an integer a float where the annotation asks for that,
    and NumPy's numbers become Python's. Fields named in `but` are skipped.

    Raises:
        UsageError: a value has the wrong type, is not among the choices, or is out of range.
    """
    for name, hint in hints_of(type(settings)).items():
        if name in but:
            continue
        try:
            value = value_from_data(hint, getattr(settings, name), flag(name))
        except WireError as error:
            raise UsageError(str(error)) from None
        object.__setattr__(settings, name, value)  # the dataclass is frozen


def refuse(name: str, expected: str, value: object) -> None:
    """Raise UsageError: the flag, the values it takes, and the value it was given."""
    raise UsageError(f"{flag(name)}: {expected}, not {value!s:.200}")


def flag(name: str) -> str:
    """The command line's flag for a field. The name of a field that is a word of Python ends in an
    underscore, which the flag has not."""
    return "--" + name.removesuffix("_").replace("_", "-")


def name_is_taken(name: str) -> UsageError:
    """The error of an entry of info that has the name of another column."""
    return UsageError(
        f"--reward-parts, --outcomes: {name!r} is the name of another column of metrics.csv; give "
        "the entry of info another name in the environment"
    )
