"""Packages that only some commands need."""

from __future__ import annotations

import importlib
from types import ModuleType

from flame_rl.system.errors import UsageError


def require(module: str, package: str, group: str) -> ModuleType:
    """Import a module of a package that is in an optional dependency group.

    Raises:
        UsageError: the package is missing or broken.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"the package {package} is needed and cannot be imported ({error}): "
            f"`uv run --group {group} main.py …` installs it"
        ) from error
