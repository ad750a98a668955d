"""Short names for --env, and the values of --env-kwargs. Spaces and time limits are read from the
environments themselves."""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from flame_rl.settings.checks import refuse
from flame_rl.system.errors import UsageError

ENVIRONMENTS = {
    "cartpole": "CartPole-v1",
    "halfcheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
    "ant": "Ant-v5",
}

# Arguments of `gymnasium.make` that are not the environment's, and what is there in their place.
_NOT_KEYWORDS = {
    "max_episode_steps": "--max-episode-steps N sets it",
    "id": "--env names the environment",
    "disable_env_checker": "main.py check runs Gymnasium's checker",
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


def keyword_texts(given: Any) -> Any:
    """The arguments of an environment's constructor as texts "name=JSON", ordered by name.

    Args:
        given: a mapping from names to values of JSON, or texts "name=value" whose values are as in
            JSON or Python, and otherwise texts themselves. Anything else is returned as it is.

    Raises:
        UsageError: a name is no identifier, comes twice or is not the environment's; a value is not
            of JSON.
    """
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, list | tuple) and all(isinstance(word, str) for word in given):
        pairs = [_keyword(word) for word in given]
    else:
        return given
    texts: dict[str, str] = {}
    for name, value in pairs:
        if not isinstance(name, str) or not name.isidentifier():
            refuse("env_kwargs", "name=value, each name one of Python", name)
        if name in texts:
            refuse("env_kwargs", "each name once", name)
        if name in _NOT_KEYWORDS:
            raise UsageError(f"--env-kwargs: {name}: {_NOT_KEYWORDS[name]}; leave it out")
        try:
            texts[name] = f"{name}={json.dumps(value)}"
        except (TypeError, ValueError):
            refuse("env_kwargs", f"a value of JSON for {name} (a number, a text, a list, …)", value)
    return tuple(texts[name] for name in sorted(texts))


def _keyword(word: str) -> tuple[str, Any]:
    """The name and the value of "name=value"."""
    name, equals, text = word.partition("=")
    if not equals:
        refuse("env_kwargs", "name=value, such as use_contact_forces=True", word)
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            value = read(text)
            json.dumps(value)
            return name, value
    return name, text
