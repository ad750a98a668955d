"""Give environments that a Python function makes a Gymnasium id, like any other environment."""

from __future__ import annotations

import re
from collections.abc import Callable

import gymnasium


def register(make: Callable[[], gymnasium.Env], name: str) -> str:
    """Register the function under an id made from `name`, until `unregister`; returns the id."""
    stem = re.sub(r"[^\w.]+", "-", name).strip("-")
    env_id, number = stem, 2
    while env_id in gymnasium.registry:
        env_id, number = f"{stem}-{number}", number + 1

    # Gymnasium copies what it registers, but not a plain function and what that refers to.
    def entry_point() -> gymnasium.Env:
        return make()

    gymnasium.register(env_id, entry_point)
    return env_id


def unregister(env_id: str) -> None:
    """Remove the id from Gymnasium's registry. May be called twice."""
    gymnasium.registry.pop(env_id, None)
