"""Parse the command line into settings, by tyro: each field of their dataclasses is a flag."""

import ast
import dataclasses
import functools
import inspect
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, make_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import tyro
from tyro import constructors

from flame_rl.settings import checks
from flame_rl.settings.algorithms import ALGORITHMS
from flame_rl.settings.config import Output, TrainConfig, owners_of, refuse_two_sizes
from flame_rl.settings.experiment import Experiment
from flame_rl.system.errors import Answered, UsageError
from flame_rl.system.program import program

Command = TypeVar("Command")

_CHOICE = Literal[tuple(ALGORITHMS)]
_HINTS = checks.hints_of(Experiment) | checks.hints_of(Output) | {"algorithm": _CHOICE}
# The flags that decide which others there are, and their defaults.
_FIRST_NAMES = ("env", "from_", "episodes_per_iter", "steps_per_iter", "iterations", "env_steps")
_FIRST_NAMES += ("algorithm", "resume")
_NOT_GIVEN = object()
_NARROWEST = 12
_POSITIONAL = get_args(tyro.conf.Positional[int])[1]
_REGISTRY = constructors.ConstructorRegistry()
_First = make_dataclass("_First", [(name, _HINTS[name], _NOT_GIVEN) for name in _FIRST_NAMES])


def parse(
    arguments: Sequence[str],
    default: TrainConfig | None = None,
    *,
    command: str = "",
    description: str = "",
    extra: type | None = None,
    networks: Callable[[Path], Mapping[str, Any]] = lambda path: {},
) -> tuple[TrainConfig, Any]:
    """Read the flags of training from the words of the command line.

    Args:
        default: the configuration that flags change; None: the defaults of --env and --algorithm.
        command, description: for --help; the command's word, if any.
        extra: a dataclass of further flags.
        networks: gives defaults of the settings of networks, from the run that --from names.

    Returns the configuration, and `extra` filled in (None without one). Raises UsageError.
    """
    first = read_first(arguments)
    first.pop("resume", None)
    refuse_two_sizes(first)
    if default is None:
        default = TrainConfig(**first)
        taken = networks(first["from_"]) if "from_" in first else {}
        known = vars(default.experiment) | vars(default.algorithm)
        default = default.changed(**{name: taken[name] for name in taken if name in known})
    algorithm = default.algorithm_name
    if (other := first.get("algorithm", algorithm)) != algorithm:
        raise UsageError(f"--algorithm: the run learns with {algorithm}, not {other}; leave it out")
    sections = vars(default) | ({} if extra is None else {"extra": extra()})
    what = tyro.conf.arg(name="algorithm", help="What improves the policy; its flags are below.")
    hints: dict[str, Any] = {"name": Annotated[_CHOICE, _spec(_CHOICE), what]}
    # The headings of --help by section, those that people need most first.
    headings = {"extra": "command", "experiment": "experiment", "algorithm": algorithm}
    headings |= {"output": "files", "execution": "execution"}
    for section in filter(sections.__contains__, headings):
        named = tyro.conf.arg(name=headings[section])
        hints[section] = Annotated[type(sections[section]), named, tyro.conf.OmitArgPrefixes]
    flags = make_dataclass("Flags", hints.items())
    fields = {name: value for each in sections.values() for name, value in vars(each).items()}
    words = _switches(arguments, [name for name in fields if type(fields[name]) is bool])
    about = {"prog": program(command), "description": _wrapped(description)}
    read, unknown = _read(flags, words, default=flags(name=algorithm, **sections), **about)
    if unknown:
        raise _no_flag(unknown[0], ["algorithm", *fields], algorithm)
    given = {name: getattr(read, name) for name in sections}
    filled = given.pop("extra", None)
    return TrainConfig.of_sections(given), filled


def parse_command(kind: type[Command], arguments: Sequence[str], name: str) -> Command:
    """Read the words of another command than training into its dataclass. Raises UsageError."""
    switches = [each for each, hint in checks.hints_of(kind).items() if checks.bare(hint) is bool]
    words = _switches(arguments, switches, others=True)
    about = {"prog": program(name), "description": _wrapped(kind.__doc__ or "")}
    command, unknown = _read(kind, words, **about)
    if unknown:
        raise _no_flag(unknown[0], checks.names_of(kind))
    return command


def read_first(arguments: Sequence[str]) -> dict[str, Any]:
    """The values of those flags that are given which decide which others there are."""
    read, _ = _read(_First, arguments, add_help=False)
    return {name: value for name, value in vars(read).items() if value is not _NOT_GIVEN}


def _read(kind: type, arguments: Sequence[str], **options: Any) -> tuple[Any, list[str]]:
    """A dataclass, filled in, and the words that are none of its flags."""
    options |= {"registry": _REGISTRY, "return_unknown_args": True}
    if {"-h", "--help"} & set(arguments) and shutil.get_terminal_size().columns < _NARROWEST:
        os.environ["COLUMNS"] = str(_NARROWEST)  # below, tyro never ends
    try:
        return tyro.cli(kind, args=list(arguments), **options)
    except BrokenPipeError:  # of --help, where `head` reads
        raise Answered(0) from None
    except SystemExit as end:
        raise Answered(end.code or 0) from None


def _switches(arguments: Sequence[str], names: list[str], others: bool = False) -> list[str]:
    """The words, with the switches of these names without values: --overlap False is --no-overlap.
    With `others`, a word after a switch may be none of its own. Raises UsageError."""
    words, waiting = [], list(arguments)
    while waiting:
        word = waiting.pop(0)
        name, given, value = _field(word), "=" in word, word.partition("=")[2]
        if word.startswith("--") and name in names:
            after = waiting[0] if waiting else "--"
            own = after.lower() in ("true", "false") if others else not after.startswith("--")
            if not given and own:
                given, value = True, waiting.pop(0)
            on = not given or checks.converted(name, bool, value)
            word = checks.flag(name if on else f"no_{name}")
        words.append(word)
    return words


def _wrapped(text: str) -> str:
    """A description, whose paragraphs fit the terminal; those with indented lines stay as they are.
    tyro joins a line to the one before, unless it is indented."""
    width = shutil.get_terminal_size().columns
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        part if "\n " in part else textwrap.fill(part, width, subsequent_indent="  ")
        for part in parts
    )


def _no_flag(word: str, fields: list[str], algorithm: str = "") -> UsageError:
    """The error of a word that is no flag, or one of another algorithm's."""
    name, field = checks.flag(_field(word)) if word.startswith("--") else word, _field(word)
    if algorithm and (owners := owners_of(field, algorithm)):
        return UsageError(f"{name}: {owners}")
    more = checks.did_you_mean(name, map(checks.flag, fields), "--help lists them all")
    if name.replace("_", "-") in ("--total-timesteps", "--timesteps", "--total-steps"):
        more = "did you mean --env-steps?"
    return UsageError(f"{name}: there is no such flag; {more}")


def _field(word: str) -> str:
    """The name of the field that a flag sets, with or without its value."""
    return word.removeprefix("--").partition("=")[0].replace("-", "_")


@_REGISTRY.struct_rule
def _flags_of(info: constructors.StructTypeInfo) -> constructors.StructConstructorSpec | None:
    """How tyro makes flags of a dataclass; positional words leave a flag only one of its own."""
    kind = info.type
    if not is_dataclass(kind) or kind.__name__ == "Flags":
        return None
    hints, specs, lists = checks.hints_of(kind), [], {}
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    positional = [name for name in hints if _POSITIONAL in marks[name]]
    for field in dataclasses.fields(kind):
        name, hint = field.name, hints[field.name]
        value = getattr(info.default, name, field.default)
        default = tyro.MISSING if value is dataclasses.MISSING else value
        spec = _spec(hint, 1 if positional else "*", name.upper() if name in positional else "")
        plain = checks.bare(hint)
        if get_origin(plain) is tuple and checks.bare(get_args(plain)[0]) is str:
            # Its words are added up where the flag comes again, and take the default's place.
            lists[name], default = default, ()
            typed = Annotated[tuple[Annotated[str, spec], ...], tyro.conf.UseAppendAction]
        else:
            typed = hint if plain is bool else Annotated[object, *marks[name], spec]
        typed = Annotated[typed, tyro.conf.arg(name=checks.flag(name).removeprefix("--"))]
        specs.append(constructors.StructFieldSpec(name, typed, default, _helps(kind).get(name)))

    def make(**values: Any) -> Any:
        for name, default in lists.items():
            values[name] = [word for words in values[name] for word in words] or default
        for name, value in values.items():
            if value == "":
                raise UsageError(f"{checks.flag(name)}: a value is missing")
            if value is not _NOT_GIVEN:
                values[name] = checks.converted(name, hints[name], value)
        return kind(**values)

    make.__doc__ = kind.__doc__
    return constructors.StructConstructorSpec(make, tuple(specs))


def _spec(
    hint: Any, nargs: Literal[1, "*"] = "*", shown: str = ""
) -> constructors.PrimitiveConstructorSpec:
    """How the words after a flag become what `converted` takes, and how --help shows them."""
    kind = checks.bare(hint)
    several = get_origin(kind) is tuple
    one = checks.bare(get_args(kind)[0]) if several else kind
    choices = get_args(one)
    metavar = f"{{{','.join(choices)}}}" if choices else shown or one.__name__.upper()
    return constructors.PrimitiveConstructorSpec(
        nargs="*" if several else nargs,
        metavar=f"{metavar} ..." if several else metavar,
        instance_from_str=functools.partial(_value, hint),
        is_instance=lambda value: True,
        str_from_instance=lambda value: (
            ["none"] if value in (None, ()) else list(map(str, value if several else [value]))
        ),
    )


def _value(hint: Any, words: list[str]) -> Any:
    """The words after a flag as `converted` takes them: 1_000 is 1000, 64,64 a list, a=1,2 not."""
    kind, text = checks.bare(hint), " ".join(words)
    if text.lower() == "none" and checks.may_be_none(hint):
        return None
    if get_origin(kind) is tuple:
        parts = [part for word in words for part in ([word] if "=" in word else word.split(","))]
        numbers = checks.bare(get_args(kind)[0]) in (int, float)
        return [part.replace("_", "") if numbers else part for part in parts if part]
    if get_origin(kind) is Literal:
        return {choice.lower(): choice for choice in get_args(kind)}.get(text.lower(), text)
    return text.replace("_", "") if kind in (int, float) else text


@functools.cache
def _helps(kind: type) -> dict[str, str]:
    """The text below each field of a dataclass, or of another one that has the field, too."""
    kinds = dict.fromkeys(each for other in ALGORITHMS.values() for each in other.__mro__)
    texts: dict[str, str] = {}
    for each in (*reversed(kinds), *reversed(kind.__mro__)):
        texts |= _texts_in(each.__module__).get(each.__name__, {})
    return texts


@functools.cache
def _texts_in(module: str) -> dict[str, dict[str, str]]:
    """The texts below the fields of a module's classes, by class and field."""
    if module in ("builtins", "types"):
        return {}
    texts: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            fields = (each for each in pairwise(node.body) if isinstance(each[0], ast.AnnAssign))
            texts[node.name] = {
                field.target.id: " ".join(below.value.value.split())
                for field, below in fields
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            }
    return texts
