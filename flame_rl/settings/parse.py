"""Parse the command line into settings."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from dataclasses import make_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from flame_rl.settings.algorithms import ALGORITHMS, AlgorithmSettings, settings_class
from flame_rl.settings.checks import refuse
from flame_rl.settings.config import (
    PARTS,
    TrainConfig,
    names_of,
    no_setting,
    refuse_both_sizes,
)
from flame_rl.system.errors import UsageError


def parse(
    arguments: Sequence[str],
    default: TrainConfig | None = None,
    *,
    prog: str = "main.py",
    description: str = "",
    extra: type | None = None,
) -> tuple[TrainConfig, Any]:
    """Read the flags of training.

    The line is read twice: first for --env, --algorithm and --episodes-per-iter, which decide what
    flags there are and what their defaults are, then as a whole.

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
    first = _read_first(arguments)
    if default is None:
        chosen = {"env": first.env, "algorithm": first.algorithm}
        default = TrainConfig(**{name: value for name, value in chosen.items() if value})
        if first.episodes_per_iter is not None:
            # A preset's steps would be taken in their place.
            default = default.changed(steps_per_iter=None)
    algorithm = default.algorithm_name
    if first.algorithm not in (None, algorithm):
        raise UsageError(
            f"--algorithm: the run learns with {algorithm}, not {first.algorithm}. Leave the flag "
            "out, or begin a new run"
        )
    _refuse_flags_of_others(arguments, algorithm)
    arguments = _switched_on(arguments, default.algorithm)
    for word, value in pairwise((*arguments, "--")):
        if "--output=" in (word, f"{word}={value}"):
            raise UsageError("--output: name a folder")
    kinds = {part: type(getattr(default, part)) for part in PARTS}
    flat = {part: Annotated[kind, tyro.conf.arg(name="")] for part, kind in kinds.items()}
    # An algorithm's switches take True or False, because most are on by default.
    flat["algorithm"] = Annotated[flat["algorithm"], tyro.conf.FlagConversionOff]
    choice = Annotated[
        Literal[tuple(ALGORITHMS)],
        tyro.conf.arg(name="algorithm", help="What improves the policy; its flags are below."),
    ]
    more = {} if extra is None else {"extra": Annotated[extra, tyro.conf.arg(name="")]}
    flags = make_dataclass("Flags", {"name": choice, **flat, **more}.items())
    values = {part: getattr(default, part) for part in PARTS}
    if extra is not None:
        values["extra"] = extra()
    read = tyro.cli(
        flags,
        args=arguments,
        default=flags(name=algorithm, **values),
        prog=prog,
        description=inspect.cleandoc(description),
    )
    config = TrainConfig.of_parts(**{part: getattr(read, part) for part in PARTS})
    return config, getattr(read, "extra", None)


def resumed_folder(arguments: Sequence[str]) -> Path | None:
    """The run folder that --resume names, or None."""
    return _read_first(arguments).resume


def _read_first(arguments: Sequence[str]) -> argparse.Namespace:
    """The flags that decide how the others are read: --env, --algorithm, --episodes-per-iter,
    --resume."""
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    reader.add_argument("--env")
    reader.add_argument("--algorithm")
    reader.add_argument("--episodes-per-iter")
    reader.add_argument("--steps-per-iter")
    reader.add_argument("--resume", type=Path)
    try:
        first, _ = reader.parse_known_args([_spelled(word) for word in arguments])
    except argparse.ArgumentError:
        # A flag without its value: the second reading explains it better.
        return argparse.Namespace(env=None, algorithm=None, episodes_per_iter=None, resume=None)
    if first.algorithm is not None and first.algorithm not in ALGORITHMS:
        refuse("algorithm", " or ".join(ALGORITHMS), first.algorithm)
    refuse_both_sizes(vars(first))
    return first


def _refuse_flags_of_others(arguments: Sequence[str], algorithm: str) -> None:
    mine = set(names_of(settings_class(algorithm)))
    for word in arguments:
        name = _spelled(word).partition("=")[0].removeprefix("--").replace("-", "_")
        others = any(name in names_of(settings_class(other)) for other in ALGORITHMS)
        if word.startswith("--") and others and name not in mine:
            raise UsageError(f"--{name.replace('_', '-')}: {no_setting(name, algorithm)}")


def _switched_on(arguments: Sequence[str], settings: AlgorithmSettings) -> list[str]:
    """The words, with True after each of the algorithm's switches that stands alone."""
    switches = {n for n in names_of(type(settings)) if isinstance(getattr(settings, n), bool)}
    words: list[str] = []
    for word, following in pairwise((*arguments, "--")):
        words.append(word)
        name = _spelled(word).removeprefix("--").replace("-", "_")
        if word.startswith("--") and name in switches and following.startswith("--"):
            words.append("True")
    return words


def _spelled(word: str) -> str:
    """A word of the command line; a flag's underscores become hyphens."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value
