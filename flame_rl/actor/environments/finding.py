"""Finding the module of an environment that is named by its id alone, as packages print it.

Gymnasium knows an id only after the module that registers it was imported. That module is looked
for in two places: Gymnasium's entry points, and installed modules of the same name.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata

import gymnasium

from flame_rl.wire.messages import Environment

# A group of this name has an entry point for every package that registers environments; it may be
# followed by a namespace.
_ENTRY_POINTS = "gymnasium.envs"
# Shorter names begin too many others.
_LEAST_OF_A_NAME = 4
_REQUIRES_GYMNASIUM = re.compile(r"gymnasium\b", re.IGNORECASE)


def with_module(environment: Environment) -> Environment:
    """The environment of one agent with the module that registers it in front of its id, where that
    is needed and found; the module is then imported. Otherwise the same: making it says what is
    wrong."""
    env_id = environment.env_id
    if ":" in env_id or _is_known(env_id):
        return environment
    for module in _modules_of(env_id):
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(module)
            if _is_known(env_id):
                return replace(environment, env_id=f"{module}:{env_id}")
    return environment


def packages_of_environments() -> list[str]:
    """The modules of installed packages that require Gymnasium, in alphabetical order."""
    found = set()
    for module, distributions in metadata.packages_distributions().items():
        if not module.startswith("_") and any(map(_requires_gymnasium, set(distributions))):
            found.add(module)
    return sorted(found)


def _is_known(env_id: str) -> bool:
    """Whether the id is registered, be it in another version, which making it explains."""
    stem = _stem(env_id)
    return env_id in gymnasium.registry or any(_stem(known) == stem for known in gymnasium.registry)


def _stem(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id)


def _modules_of(env_id: str) -> Iterator[str]:
    """Modules that may register the id, the likeliest first."""
    namespace, slash, name = env_id.partition("/")
    plain = _plain(namespace if slash else re.split(r"[-_]", name or namespace)[0])
    for group in metadata.entry_points().groups:
        if group == _ENTRY_POINTS or group.startswith(f"{_ENTRY_POINTS}."):
            for entry_point in metadata.entry_points(group=group):
                yield entry_point.module
    for own in (namespace, plain):
        if own.isidentifier() and own not in sys.stdlib_module_names:
            with contextlib.suppress(ImportError, ValueError):
                if importlib.util.find_spec(own) is not None:
                    yield own
    if len(plain) >= _LEAST_OF_A_NAME:
        yield from (each for each in packages_of_environments() if _plain(each).startswith(plain))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _requires_gymnasium(distribution: str) -> bool:
    required = metadata.requires(distribution) or []
    return any(_REQUIRES_GYMNASIUM.match(each) for each in required)
