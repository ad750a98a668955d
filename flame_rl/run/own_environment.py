"""An environment that a Python function makes gets an id, and is then one like any other."""

from __future__ import annotations

import re
from collections.abc import Callable

import gymnasium


def register(make: Callable[[], gymnasium.Env], name: str) -> str:
    """Give the function's environments an id that Gymnasium knows until `unregister`."""
    stem = re.sub(r"[^\w.]+", "-", name).strip("-")
    env_id, number = stem, 2
    while env_id in gymnasium.registry:
        env_id, number = f"{stem}-{number}", number + 1

    # Gymnasium copies what it registers; a function is not copied, whatever it holds.
    def entry_point() -> gymnasium.Env:
        return make()

    gymnasium.register(env_id, entry_point)
    return env_id


def unregister(env_id: str) -> None:
    """Forget it. May be called twice."""
    gymnasium.registry.pop(env_id, None)
