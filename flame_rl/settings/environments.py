"""Short names for --env. Spaces and time limits are read from the environments themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ENVIRONMENTS = {
    "cartpole": "CartPole-v1",
    "halfcheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
    "ant": "Ant-v5",
}

# Prefix of the name, in config.json, of an environment that a Python function makes.
CALLABLE = "callable "


def environment_id(env: str) -> str:
    """The Gymnasium id that a short name stands for; any other name is an id already."""
    return ENVIRONMENTS.get(env.lower(), env)


def environment_name(env: str | Callable[[], Any]) -> str:
    """`env` as text: for a function, "callable " and its qualified name."""
    if isinstance(env, str):
        return env
    # A callable object has no name of its own.
    named = env if hasattr(env, "__qualname__") else type(env)
    return f"{CALLABLE}{named.__module__}.{named.__qualname__}"
