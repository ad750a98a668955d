"""Parse the command line into settings, by tyro: each field of their dataclasses is a flag."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import is_dataclass, make_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from flame_rl.settings.algorithms import ALGORITHMS
from flame_rl.settings.checks import (
    bare,
    converted,
    flag,
    hints_of,
    in_words,
    marks_of,
    may_be_none,
    names_of,
    suggestion,
)
from flame_rl.settings.config import TrainConfig, owners_of, refuse_two_sizes
from flame_rl.settings.execution import Output
from flame_rl.settings.experiment import Experiment
from flame_rl.system.errors import UsageError

Command = TypeVar("Command")

# The headings of --help by section, those that people need most first; the algorithm's is its name.
_HEADINGS = {
    "extra": "command",
    "experiment": "experiment",
    "algorithm": None,
    "output": "files",
    "execution": "execution",
}
_CHOICE = Literal[tuple(ALGORITHMS)]
# The flags that decide which others there are, and their defaults.
_FIRST_NAMES = ("env", "episodes_per_iter", "steps_per_iter", "iterations", "env_steps")
_NOT_GIVEN = object()
_First = make_dataclass(
    "_First",
    [
        *((name, hints_of(Experiment)[name], _NOT_GIVEN) for name in _FIRST_NAMES),
        ("algorithm", _CHOICE, _NOT_GIVEN),
        ("resume", hints_of(Output)["resume"], _NOT_GIVEN),
    ],
)


def parse(
    arguments: Sequence[str],
    default: TrainConfig | None = None,
    *,
    prog: str = "main.py",
    description: str = "",
    extra: type | None = None,
) -> tuple[TrainConfig, Any]:
    """Read the flags of training.

    Args:
        arguments: the words of the command line.
        default: the configuration that flags change; None: the defaults of --env and --algorithm.
        prog, description: for --help.
        extra: a dataclass of further flags.

    Returns:
        The configuration, and `extra` filled in (None without one).

    Raises:
        UsageError: there is no such flag, it belongs to another algorithm, or a value is refused.
    """
    first = _read_first(arguments)
    first.pop("resume", None)
    refuse_two_sizes(first)
    default = TrainConfig(**first) if default is None else default
    algorithm = default.algorithm_name
    if (other := first.get("algorithm", algorithm)) != algorithm:
        raise UsageError(f"--algorithm: the run learns with {algorithm}, not {other}; leave it out")
    sections = vars(default) | ({} if extra is None else {"extra": extra()})
    what = tyro.conf.arg(name="algorithm", help="What improves the policy; its flags are below.")
    hints: dict[str, Any] = {"name": Annotated[_CHOICE, _spec("algorithm", _CHOICE, "*"), what]}
    for section, heading in _HEADINGS.items():
        if section in sections:
            named = tyro.conf.arg(name=heading or algorithm)
            kind = type(sections[section])
            hints[section] = Annotated[
                kind, named, tyro.conf.OmitArgPrefixes, tyro.conf.FlagConversionOff
            ]
    flags = make_dataclass("Flags", hints.items())
    read, unknown = _read(
        flags,
        arguments,
        _TRAINING,
        prog=prog,
        description=inspect.cleandoc(description),
        default=flags(name=algorithm, **sections),
    )
    given = {name: getattr(read, name) for name in sections}
    fields = {flag(name): section for section in given for name in names_of(type(given[section]))}
    for word in unknown:
        name = _hyphens(word)
        section = fields.get(name.replace("--no-", "--", 1))
        field = name.removeprefix("--no-").replace("-", "_")
        if section is None or type(getattr(given[section], field, None)) is not bool:
            raise _no_flag(name, ["--algorithm", *fields], algorithm)
        given[section] = replace(given[section], **{field: False})
    filled = given.pop("extra", None)
    return TrainConfig.of_sections(given), filled


def parse_command(kind: type[Command], arguments: Sequence[str], prog: str) -> Command:
    """Read the words of another command than training into its dataclass. Raises UsageError."""
    description = inspect.cleandoc(kind.__doc__ or "")
    command, unknown = _read(kind, arguments, _COMMANDS, prog=prog, description=description)
    if unknown:
        raise _no_flag(_hyphens(unknown[0]), list(map(flag, names_of(kind))))
    return command


def resumed_folder(arguments: Sequence[str]) -> Path | None:
    """The run folder, or the checkpoint in one, that --resume names; or None."""
    return _read_first(arguments).get("resume")


def _read_first(arguments: Sequence[str]) -> dict[str, Any]:
    """The values of the flags in `_First` that are given."""
    read, _ = _read(_First, arguments, _TRAINING, add_help=False)
    return {name: value for name, value in vars(read).items() if value is not _NOT_GIVEN}


def _read(
    kind: type, arguments: Sequence[str], registry: ConstructorRegistry, **options: Any
) -> tuple[Any, list[str]]:
    """A dataclass, filled in, and the words that are none of its flags."""
    options |= {"registry": registry, "return_unknown_args": True}
    try:
        return tyro.cli(kind, args=list(arguments), **options)
    except BrokenPipeError:  # of --help, where `head` reads
        raise SystemExit(0) from None


def _no_flag(name: str, known: list[str], algorithm: str = "") -> UsageError:
    """The error of a word that is no flag, or one of another algorithm's."""
    if algorithm and (owners := owners_of(name.removeprefix("--").replace("-", "_"), algorithm)):
        return UsageError(f"{name}: {owners}")
    nearest = suggestion(name, known)
    more = f"did you mean {nearest}?" if nearest else "--help lists them all"
    return UsageError(f"{name}: there is no such flag; {more}")


def _hyphens(word: str) -> str:
    """The name of a flag, with hyphens, without its value."""
    return word.partition("=")[0].replace("_", "-") if word.startswith("--") else word


def _registry(nargs: Literal[1, "*"]) -> ConstructorRegistry:
    """How tyro makes flags of dataclasses. With `nargs` 1 words may follow that are no flag's, and
    a switch takes none; with "*" all words after a flag are its own."""
    registry = ConstructorRegistry()

    @registry.struct_rule
    def of_fields(info: StructTypeInfo) -> StructConstructorSpec | None:
        kind = info.type
        if not is_dataclass(kind) or kind.__name__ == "Flags":
            return None
        specs, lists = [], {}
        for field in dataclasses.fields(kind):
            name, hint = field.name, hints_of(kind)[field.name]
            value = getattr(info.default, name, field.default)
            default = tyro.MISSING if value is dataclasses.MISSING else value
            inner = get_args(bare(hint))
            if get_origin(bare(hint)) is tuple and bare(inner[0]) is str:
                # Its words are added up where the flag comes again, and take the default's place.
                lists[name] = default
                default = ()
                word = Annotated[str, _spec(name, hint, nargs)]
                typed = Annotated[tuple[word, ...], tyro.conf.UseAppendAction]
            elif bare(hint) is bool and nargs == 1:
                typed = hint
            else:
                typed = Annotated[object, *marks_of(hint), _spec(name, hint, nargs)]
            typed = Annotated[typed, tyro.conf.arg(name=flag(name).removeprefix("--"))]
            text = functools.partial(_help_of, kind, name)
            specs.append(StructFieldSpec(name, typed, default, text))

        def make(**values: Any) -> Any:
            for name, default in lists.items():
                given = tuple(word for words in values[name] for word in words)
                values[name] = given or default
            return kind(**values)

        make.__doc__ = kind.__doc__
        return StructConstructorSpec(make, tuple(specs))

    return registry


def _spec(name: str, hint: Any, nargs: Literal[1, "*"]) -> PrimitiveConstructorSpec:
    """How the words after a flag become a field's value, and how --help shows it."""
    kind = bare(hint)
    several = get_origin(kind) is tuple
    one = bare(get_args(kind)[0]) if several else kind
    choices = ("True", "False") if one is bool else get_args(one)
    metavar = f"{{{','.join(choices)}}}" if choices else one.__name__.upper()
    return PrimitiveConstructorSpec(
        nargs="*" if several else nargs,
        metavar=f"{metavar} ..." if several else metavar,
        instance_from_str=functools.partial(_value, name, hint),
        is_instance=lambda value: True,
        str_from_instance=lambda value: (
            ["none"] if value in (None, ()) else list(map(str, value if several else [value]))
        ),
    )


def _value(name: str, hint: Any, words: list[str]) -> Any:
    """The value of a field, of the words after its flag: 1e6 is an integer, and 64,64 a list.
    Raises UsageError."""
    kind, shown = bare(hint), " ".join(words)
    if kind is bool and not words:
        return True
    if shown.lower() == "none" and may_be_none(hint):
        return None
    if get_origin(kind) is tuple:
        value = [part for word in words for part in _parts(word) if part]
        if bare(get_args(kind)[0]) in (int, float):
            value = [part.replace("_", "") for part in value]
        return converted(name, hint, value, shown, strict=False)
    if not shown:
        raise UsageError(f"{flag(name)}: a value is missing: {in_words(hint)}")
    if get_origin(kind) is Literal:
        shown = {choice.lower(): choice for choice in get_args(kind)}.get(shown.lower(), shown)
    value = shown.replace("_", "") if kind in (int, float) else shown
    return converted(name, hint, value, shown, strict=False)


def _parts(word: str) -> list[str]:
    """The word cut at its commas, but not within brackets and quotation marks, as JSON has them."""
    parts: list[str] = []
    for piece in word.split(","):
        rest = re.sub(r'"(\\.|[^"\\])*"|' + r"'(\\.|[^'\\])*'", "", parts[-1]) if parts else ""
        opened = sum(map(rest.count, "[{(")) - sum(map(rest.count, "]})"))
        if opened or '"' in rest or "'" in rest:
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return parts


def _help_of(kind: type, name: str) -> str | None:
    """The text below a field of a dataclass, or of the class that it has the field from."""
    for each in kind.__mro__:
        for field, text in pairwise(_statements(each)):
            found = isinstance(field, ast.AnnAssign) and ast.unparse(field.target) == name
            if found and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                return " ".join(str(text.value.value).split())
    return None


@functools.cache
def _statements(kind: type) -> list[ast.stmt]:
    """Those in the body of a class."""
    if not is_dataclass(kind):
        return []
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    return definition.body


_TRAINING, _COMMANDS = _registry("*"), _registry(1)
