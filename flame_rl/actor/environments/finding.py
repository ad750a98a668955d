"""Finding the module of an environment that is named by its id alone, as packages print it.

Gymnasium knows an id only after the module that registers it was imported. It is looked for among
Gymnasium's entry points, in a module of the same name, and in the source of installed packages that
require Gymnasium.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from flame_rl.actor.environments.agents import has_agents
from flame_rl.actor.environments.making import packages_of_environments
from flame_rl.actor.environments.registering import (
    entry_points_of_gymnasium,
    import_registering,
    is_registered,
    stem_of,
)
from flame_rl.wire.messages import Environment

# Of a package; larger ones are something else.
_MOST_FILES = 2000
# The beginning of a statement that registers an id, up to a part of the id.
_REGISTERS = (
    r"(?:^|(?<=[\s:;]))(?:gym\.|gymnasium\.|(?:\w+\.)*registration\.)?register\("
    r"\s*(?:id\s*=\s*)?f?[\"'][^\"'\n]*"
)
# In the name of what is no module of a library.
_NO_MODULE = re.compile(
    r"\b(?:tests?|testing|examples?|scripts?|demos?|__main__)\b|\btest_|_test\b|[^\w.]"
)
# Shorter words are in every source.
_SHORT = 3


def with_module(environment: Environment) -> Environment:
    """The environment with the module that registers it in front of its id, where that is needed
    and found; the module is then imported. Otherwise the same: making it says what is wrong."""
    env_id = environment.env_id
    # Of several agents, the name is a module's.
    if ":" in env_id or has_agents(env_id) or is_registered(env_id):
        return environment
    for module in _modules_of(env_id):
        with contextlib.suppress(Exception, SystemExit):
            import_registering(module, env_id)
            if is_registered(env_id):
                return replace(environment, env_id=f"{module}:{env_id}")
    return environment


def _modules_of(env_id: str) -> Iterator[str]:
    """Modules that may register the id, the likeliest first."""
    yield from (each.module for each in entry_points_of_gymnasium())
    namespace, slash, _ = env_id.partition("/")
    for own in (namespace, re.split(r"[-_]", namespace)[0].lower()):
        if own.isidentifier() and own not in sys.stdlib_module_names:
            yield own
    named = namespace if slash else stem_of(env_id)
    # Of ids that a package puts together, only the first word is in its source.
    word = re.split(r"[-_]", named)[0]
    for text in dict.fromkeys((named, word if len(word) > _SHORT else named)):
        for module in packages_of_environments():
            yield from _that_mention(module, text)


def _that_mention(module: str, text: str) -> list[str]:
    """The module, if the text is in its source or in that of one within it; then those within it
    that register an id with the text, as vizdoom.gymnasium_wrapper does. To import a module is to
    run it, so that scripts and tests are left alone."""
    found = importlib.util.find_spec(module)
    files = {module: Path(found.origin)} if found and found.origin else {}
    for folder in (found and found.submodule_search_locations) or ():
        for file in islice(Path(folder).rglob("*.py"), _MOST_FILES):
            parts = file.relative_to(folder).with_suffix("").parts
            files[".".join((module, *parts)).removesuffix(".__init__")] = file
    registers = re.compile(_REGISTERS + re.escape(text), re.MULTILINE)
    mentioned, registering = False, []
    for name, file in files.items():
        with contextlib.suppress(OSError, ValueError):
            source = file.read_text()
            mentioned = mentioned or text in source
            if name != module and registers.search(source) and not _NO_MODULE.search(name):
                registering.append(name)
    return [module, *sorted(registering, key=len)] if mentioned else []
