"""Finding the module of an environment that is named by its id alone, as packages print it.

Gymnasium knows an id only after the module that registers it was imported. It is looked for among
Gymnasium's entry points, in a module of the same name, and in the source of installed packages that
require Gymnasium.
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
from itertools import islice
from pathlib import Path

import gymnasium

from flame_rl.actor.environments.agents import has_agents
from flame_rl.actor.environments.making import packages_of_environments
from flame_rl.wire.messages import Environment

# A group of this name has an entry point for every package that registers environments; it may be
# followed by a namespace.
_ENTRY_POINTS = "gymnasium.envs"
# Of a package; larger ones are something else.
_MOST_FILES = 2000


def with_module(environment: Environment) -> Environment:
    """The environment with the module that registers it in front of its id, where that is needed
    and found; the module is then imported. Otherwise the same: making it says what is wrong."""
    env_id = environment.env_id
    # Of several agents, the name is a module's.
    if ":" in env_id or has_agents(env_id) or _is_known(env_id):
        return environment
    for module in _modules_of(env_id):
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(module)
            if _is_known(env_id):
                return replace(environment, env_id=f"{module}:{env_id}")
    return environment


def _is_known(env_id: str) -> bool:
    """Whether the id is registered, be it in another version, which making it explains."""
    stem = _stem(env_id)
    return any(env_id == known or stem == _stem(known) for known in [*gymnasium.registry])


def _stem(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id)


def _modules_of(env_id: str) -> Iterator[str]:
    """Modules that may register the id, the likeliest first."""
    for group in metadata.entry_points().groups:
        if group == _ENTRY_POINTS or group.startswith(f"{_ENTRY_POINTS}."):
            for entry_point in metadata.entry_points(group=group):
                yield entry_point.module
    namespace, slash, _ = env_id.partition("/")
    for own in (namespace, re.split(r"[-_]", namespace)[0].lower()):
        if own.isidentifier() and own not in sys.stdlib_module_names:
            yield own
    named = namespace if slash else _stem(env_id)
    yield from (module for module in packages_of_environments() if _mentions(module, named))


def _mentions(module: str, text: str) -> bool:
    """Whether the text is in the source of a module, or of those within it."""
    found = importlib.util.find_spec(module)
    files = [Path(found.origin)] if found and found.origin else []
    for folder in (found and found.submodule_search_locations) or ():
        files += islice(Path(folder).rglob("*.py"), _MOST_FILES)
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            if text in file.read_text():
                return True
    return False
