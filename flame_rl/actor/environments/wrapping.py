"""What a user gives an environment: arguments of its constructor, and wrappers around it."""

import ast
import importlib
import json
import os
from collections.abc import Callable
from typing import Any

import gymnasium

from flame_rl.actor.failure import summary, traceback_of, unusable
from flame_rl.wire.messages import Environment

# In the process that makes an environment: which process and which of its slots that is for,
# "PROCESS-SLOT", so that what writes files can write others. {slot} in --env-kwargs is the same.
SLOT = "FLAME_RL_SLOT"


def constructor_arguments(environment: Environment, render_mode: str | None) -> dict[str, Any]:
    """The arguments of the environment's constructor; a user's own may take no render mode."""
    arguments: dict[str, Any] = {}
    for each in environment.env_kwargs:
        name, text = each.replace("{slot}", os.environ.get(SLOT, "")).split("=", 1)
        try:
            arguments[name] = json.loads(text)
        except ValueError:  # what only Python keeps, such as a tuple
            arguments[name] = ast.literal_eval(text)
    return arguments if render_mode is None else arguments | {"render_mode": render_mode}


def wrapped(environment: Environment, env: Any, kind: type) -> Any:
    """`env` in wrappers of `environment`. Raises SimulatorError unless each returns a `kind`."""
    for name in environment.wrapper:
        wrap = import_named("--wrapper", name)
        try:
            env = wrap(env)
        except (Exception, SystemExit) as error:
            hint = "for further arguments write a function of your own, my_wrappers:small"
            text = f"--wrapper: {name} raised {summary(error)}; {hint}"
            raise unusable(text, traceback_of(error)) from error
        if not isinstance(env, kind):
            returned = type(env).__name__
            raise unusable(f"--wrapper: {name} returned a {returned}, which is no {kind.__name__}")
    return env


def import_named(flag: str, name: str, kind: str = "class or function") -> Callable[..., Any]:
    """What the user gives to a flag as MODULE:NAME, a callable. Raises SimulatorError."""
    module, _, attribute = name.rpartition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except (Exception, SystemExit) as error:
        text = f"{flag}: module {module!r} cannot be imported: {summary(error)}"
        if isinstance(error, ModuleNotFoundError):
            text += "; one of your own lies beside main.py, in the current folder, or on PYTHONPATH"
        raise unusable(text, traceback_of(error)) from error
    if not callable(found):
        raise unusable(f"{flag}: module {module!r} has no {kind} {attribute!r}")
    return found


def wrappers_of(env: gymnasium.Env) -> list[gymnasium.Env]:
    """The wrappers of an environment, from the outermost on, and last the environment itself."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers
