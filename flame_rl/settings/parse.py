"""Parse the command line into settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import make_dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from flame_rl.settings.algorithms import ALGORITHMS, settings_class
from flame_rl.settings.checks import flag
from flame_rl.settings.config import (
    TrainConfig,
    names_of,
    no_setting,
    refuse_two_sizes,
    size_of_an_iteration,
)
from flame_rl.settings.experiment import Experiment
from flame_rl.settings.words import plain_words
from flame_rl.system.errors import UsageError
from flame_rl.wire.fields import hints_of

Command = TypeVar("Command")

# The headings of --help by section, those that people need most first; the algorithm's is its name.
_HEADINGS = {
    "extra": "command",
    "experiment": "experiment",
    "algorithm": None,
    "output": "files",
    "execution": "execution",
}
# The field that has not its flag's name. Not in settings, which are imported without tyro.
_FROM = "from_"
Experiment.__annotations__[_FROM] = Annotated[
    hints_of(Experiment)[_FROM], tyro.conf.arg(name="from")
]
# How --help shows types, and words become values.
_KINDS = ConstructorRegistry()


def parse(
    arguments: Sequence[str],
    default: TrainConfig | None = None,
    *,
    prog: str = "main.py",
    description: str = "",
    extra: type | None = None,
) -> tuple[TrainConfig, Any]:
    """Read the flags of training.

    The line is read twice: first for --env, --algorithm and the size of an iteration, which decide
    what flags there are and what their defaults are, then as a whole.

    Args:
        arguments: the words of the command line.
        default: the configuration that flags change; None: the defaults of --env and --algorithm.
        prog, description: for --help.
        extra: a dataclass of further flags, which a command has besides those of training.

    Returns:
        The configuration, and `extra` filled in (None without one).

    Raises:
        UsageError: a flag belongs to another algorithm, or a value is refused.
    """
    arguments = _with_hyphens(arguments)
    first = _read_first(arguments)
    refuse_two_sizes(first)
    if default is None:
        chosen = {name: first[name] for name in ("env", "algorithm") if name in first}
        default = TrainConfig(**chosen, **size_of_an_iteration(first))
    algorithm = default.algorithm_name
    if (other := first.get("algorithm", algorithm)) != algorithm:
        raise UsageError(
            f"--algorithm: the run learns with {algorithm}, not {other}. Leave the flag out, or "
            "begin a new run"
        )
    _refuse_flags_of_others(arguments, algorithm)
    choice = Annotated[
        Literal[tuple(ALGORITHMS)],
        tyro.conf.arg(name="algorithm", help="What improves the policy; its flags are below."),
    ]
    sections = vars(default) | ({} if extra is None else {"extra": extra()})
    hints = {"algorithm": choice}
    for each in sections.values():
        hints |= hints_of(type(each))
    for word, value in pairwise((*arguments, "--")):
        if "--output=" in (word, f"{word}={value}"):
            raise UsageError("--output: name a folder")
    arguments = plain_words(arguments, hints, names_of(type(default.algorithm)))
    flat = {
        name: Annotated[
            type(sections[name]),
            tyro.conf.arg(name=heading or algorithm),
            tyro.conf.OmitArgPrefixes,
        ]
        for name, heading in _HEADINGS.items()
        if name in sections
    }
    # An algorithm's switches take True or False, because most are on by default.
    flat["algorithm"] = Annotated[flat["algorithm"], tyro.conf.FlagConversionOff]
    flags = make_dataclass("Flags", {"name": choice, **flat}.items())
    read = _read(
        flags, arguments, prog, flags(name=algorithm, **sections), inspect.cleandoc(description)
    )
    given = {name: getattr(read, name) for name in sections}
    filled = given.pop("extra", None)
    return TrainConfig.of_sections(given), filled


def parse_command(kind: type[Command], arguments: Sequence[str], prog: str) -> Command:
    """Read the words of another command than training into its dataclass. Raises UsageError."""
    arguments = plain_words(_with_hyphens(arguments), hints_of(kind))
    return _read(kind, arguments, prog)


def _read(
    kind: type[Command],
    arguments: Sequence[str],
    prog: str,
    default: Command | None = None,
    description: str | None = None,
) -> Command:
    options = {} if default is None else {"default": default}
    try:
        return tyro.cli(
            kind,
            args=arguments,
            prog=prog,
            description=description,
            registry=_KINDS,
            **options,
        )
    except BrokenPipeError:  # of --help, where `head` reads
        raise SystemExit(0) from None


@_KINDS.primitive_rule
def _of_optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Of a type or None, --help shows the type alone, and `none` as the default."""
    kinds = [kind for kind in get_args(info.type) if kind is not NoneType]
    if len(kinds) != 1 or kinds == list(get_args(info.type)):
        return None
    spec = _spec_of(kinds[0], info)
    return replace(
        spec,
        instance_from_str=lambda words: (
            None if words == ["None"] else spec.instance_from_str(words)
        ),
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: (
            ["none"] if value is None else spec.str_from_instance(value)
        ),
        choices=None,
    )


@_KINDS.primitive_rule
def _of_tuple(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Of a tuple, --help shows its type as in `INT ...`, and `none` for an empty one."""
    if get_origin(info.type) is not tuple:
        return None
    spec = _spec_of(get_args(info.type)[0], info)
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"{spec.metavar} ...",
        instance_from_str=lambda words: tuple(spec.instance_from_str([word]) for word in words),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda values: [spec.str_from_instance(v)[0] for v in values] or ["none"],
    )


def _spec_of(kind: Any, info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec:
    return ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, info.markers))


def resumed_folder(arguments: Sequence[str]) -> Path | None:
    """The run folder, or the checkpoint in one, that --resume names; or None."""
    return _read_first(_with_hyphens(arguments)).get("resume")


def _read_first(arguments: Sequence[str]) -> dict[str, Any]:
    """The flags that decide how the others are read, as far as they are given: --env, --algorithm,
    --resume, the sizes of an iteration and the lengths of the run."""
    sizes = ("episodes_per_iter", "steps_per_iter", "iterations", "env_steps")
    wanted = {flag(name): name for name in ("env", "algorithm", "resume", *sizes)}
    first: dict[str, Any] = {}
    for word, following in pairwise((*arguments, "--")):
        name, equals, value = word.partition("=")
        # A flag without its value: the second reading explains it better.
        if name in wanted and (equals or not following.startswith("--")):
            first[wanted[name]] = value if equals else following
    if "algorithm" in first:
        first["algorithm"] = first["algorithm"].lower()
    if "resume" in first:
        first["resume"] = Path(first["resume"])
    return first


def _refuse_flags_of_others(arguments: Sequence[str], algorithm: str) -> None:
    flags = {flag(name): name for other in ALGORITHMS for name in names_of(settings_class(other))}
    mine = names_of(settings_class(algorithm))
    for word in arguments:
        name = flags.get(word.partition("=")[0])
        if name is not None and name not in mine:
            raise UsageError(f"{flag(name)}: {no_setting(name, algorithm)}")


def _with_hyphens(arguments: Sequence[str]) -> list[str]:
    """The words of the command line; underscores in the names of flags become hyphens."""
    return [re.sub("^--[^=]+", lambda name: name[0].replace("_", "-"), w) for w in arguments]
