"""How packages register their environments with Gymnasium."""

from __future__ import annotations

import importlib
import re
from importlib import metadata

import gymnasium

# A group of this name has an entry point for every package that registers environments; it may be
# followed by a namespace.
_ENTRY_POINTS = "gymnasium.envs"


def import_registering(module: str, name: str) -> None:
    """Import a module that registers an environment, in whatever version. Where its import does not
    do that, the function is called that its package names among Gymnasium's entry points."""
    importlib.import_module(module)
    if not is_registered(name):
        for entry_point in entry_points_of_gymnasium():
            if entry_point.attr and f"{entry_point.module}.".startswith(f"{module}."):
                entry_point.load()()


def is_registered(name: str) -> bool:
    """Whether Gymnasium knows the id, be it in another version, which making it explains."""
    if name in gymnasium.registry:
        return True
    stem = stem_of(name)
    return any(stem == stem_of(known) for known in [*gymnasium.registry])


def stem_of(name: str) -> str:
    """An id without its version."""
    return re.sub(r"-v\d+$", "", name)


def entry_points_of_gymnasium() -> list[metadata.EntryPoint]:
    """What installed packages name to register their environments."""
    groups = metadata.entry_points()
    return [
        entry_point
        for group in sorted(groups.groups)
        if group == _ENTRY_POINTS or group.startswith(f"{_ENTRY_POINTS}.")
        for entry_point in groups.select(group=group)
    ]
