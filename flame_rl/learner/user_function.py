"""The user's functions and classes, named module:function by a flag."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from flame_rl.actor.failure import summary
from flame_rl.settings.checks import flag
from flame_rl.system.errors import UsageError


def import_function(setting: str, name: str) -> Callable[..., Any]:
    """The function `module:function`. Raises UsageError, which names the setting's flag."""
    module, _, attribute = name.rpartition(":")
    try:
        function = getattr(importlib.import_module(module), attribute, None)
    except (Exception, SystemExit) as error:
        where = "; it must lie in the folder of main.py, on PYTHONPATH, or be installed"
        raise UsageError(
            f"{flag(setting)}: module {module!r} cannot be imported: {summary(error)}"
            f"{where if isinstance(error, ModuleNotFoundError) else ''}"
        ) from error
    if not callable(function):
        raise UsageError(f"{flag(setting)}: module {module!r} has no function {attribute!r}")
    return function
