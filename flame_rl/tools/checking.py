"""Examine an environment: what it is taken for, how fast it is, whether it repeats itself, what a
random policy earns, and what stands in the way of training.

Everything is played in forks of this process, so that an environment that crashes or hangs is
described as far as it came.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib.metadata
import math
import re
import signal
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from flame_rl.actor.environments.making import import_environment
from flame_rl.actor.failure import SimulatorError, summary, traceback_of
from flame_rl.actor.memory import own_bytes
from flame_rl.actor.simulators.choose import plain_and_spec, plain_simulator
from flame_rl.actor.simulators.forked import Note, in_fork
from flame_rl.actor.simulators.plain import EnvironmentsSimulator
from flame_rl.actor.simulators.repeatable import (
    SEED,
    Effort,
    check_beside,
    check_repeats,
)
from flame_rl.tools.random_play import Played, play_at_bounds, played_from_data, random_play
from flame_rl.wire import codec
from flame_rl.wire.messages import Environment, EnvironmentSpec

# Of the episode whose info is looked at.
_STEPS = 100
# Another environment is made for its memory alone only where that is quick.
_QUICK_SECONDS = 5.0
# When a fork is killed, beyond the time that it plays.
_MORE_SECONDS = 120


@dataclass(frozen=True)
class Examined:
    """What was found out about an environment. Nothing is known of what did not come so far.

    Attributes:
        environment: as it was found, with its module.
        package: name and version of what brings it; "" if it is no package.
        spec: its description, with where it has masks.
        layers: the classes of its wrappers, the outermost first, and its own.
        making_seconds: how long an object takes.
        bytes: memory of a further object in the same process.
        played: what a random policy did.
        info: names of the entries of `info`.
        differs: how episodes differ that should be the same.
        beside: how an episode differs while another object is played.
        failures: what went wrong, one sentence each.
        checker: what Gymnasium's own checker says.
        notes: what could not be found out, and why.
    """

    environment: Environment
    package: str = ""
    spec: EnvironmentSpec | None = None
    layers: tuple[str, ...] = ()
    making_seconds: float | None = None
    bytes: int | None = None
    played: Played | None = None
    info: tuple[str, ...] = ()
    differs: str = ""
    beside: str = ""
    failures: tuple[str, ...] = ()
    checker: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def examine(environment: Environment, seconds: float) -> Examined:
    """Examine an environment; random episodes are played for this many seconds."""
    environment = replace(environment, simulator="plain", slots=1)
    import_environment(environment)
    env_id = environment.env_id
    effort = Effort(1000, seconds / 3, math.inf, round(seconds) + _MORE_SECONDS)
    found, ended = in_fork(lambda note, closing: _play(environment, seconds, note, closing))
    failures = list(found.get("failures", ()))
    if ended:
        failures.append(_how_it_ended(found.get("doing", "being made"), ended))
    spec = None
    if "spec" in found:
        spec = codec.decode_description(base64.b64decode(found["spec"]), env_id)
        spec = replace(spec, action_mask=found.get("action_mask", spec.action_mask))
    examined = Examined(
        environment,
        _package_of(found.get("module", env_id)),
        spec,
        tuple(found.get("layers", ())),
        found.get("making_seconds"),
        found.get("bytes"),
        played_from_data(found["played"]) if "played" in found else None,
        tuple(found.get("info", ())),
        failures=tuple(failures),
    )
    if spec is None or failures:
        return examined
    both = replace(environment, slots=2 * spec.agent_count)
    checked = check_repeats(env_id, lambda: plain_and_spec(environment), effort)
    beside, alone = check_beside(env_id, lambda: plain_and_spec(both), effort)
    return replace(
        examined,
        differs=checked.differs,
        # Its own cause is known by then.
        beside="" if checked.differs else beside,
        notes=tuple(filter(None, (checked.unknown, alone))),
        checker=() if spec.agents else _ask_gymnasium(environment, effort),
    )


def _how_it_ended(doing: str, ended: str) -> str:
    if ended == "SIGALRM":
        return f"it hangs: {doing} takes more than {_MORE_SECONDS} s"
    return f"it ended its process by {ended} while {doing}"


def _package_of(module: str) -> str:
    """Name and version of the package that a module belongs to, or ""."""
    top = module.partition(":")[0].partition(".")[0]
    for name in _distributions().get(top, ()):
        return f"{name} {importlib.metadata.version(name)}"
    return ""


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """The installed distributions by the modules that they bring; reading them takes a while."""
    return importlib.metadata.packages_distributions()


def _play(
    environment: Environment, seconds: float, note: Note, closing: contextlib.ExitStack
) -> None:
    """Make the environment and play it, noting what `examine` reads."""
    signal.alarm(round(seconds) + _MORE_SECONDS)
    try:
        began = time.monotonic()
        simulator, spec = plain_and_spec(environment)
        making = time.monotonic() - began
        closing.callback(simulator.close)
        layers = [type(layer).__name__ for layer in _layers(simulator.first)]
        note(
            {
                "spec": base64.b64encode(codec.encode_description(spec)).decode(),
                "layers": layers,
                "module": type(simulator.first.unwrapped).__module__,
                "making_seconds": making,
                "doing": "it was played with random actions",
            }
        )
        note({"played": random_play(simulator, spec, seconds)})
        note({"action_mask": simulator.masks.found_in})
        note({"doing": "it was played with actions at their bounds"})
        play_at_bounds(simulator, spec)
        note({"doing": "its info was looked at"})
        note({"info": _names_in_info(simulator)})
        note({"doing": "another was made"})
        if making < _QUICK_SECONDS:
            note({"bytes": _bytes_of_another(environment, closing)})
    except SimulatorError as error:
        note({"failures": [f"{error}{_last_line(error.cause)}"]})
    except Exception as error:
        note({"failures": [summary(error)]})


def _last_line(cause: str) -> str:
    """Where an exception of the environment's was raised, by its traceback."""
    places = re.findall(r'File "(.*?)", line (\d+)', cause)
    return f" ({places[-1][0]}, line {places[-1][1]})" if places else ""


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers of an environment, the outermost first, and the environment itself."""
    while True:
        yield env
        inner = getattr(env, "env", None)
        if env is env.unwrapped or inner is None:
            return
        env = inner


def _names_in_info(simulator: EnvironmentsSimulator) -> list[str]:
    """The names of what is in `info` at a reset and, where no mask forbids actions, after steps."""
    env = simulator.first
    several = not isinstance(env, gymnasium.Env)
    names: dict[str, None] = {}

    def look(info: Any) -> None:
        for each in info.values() if several else (info,):
            names.update(dict.fromkeys(map(str, each)))

    look(env.reset(seed=SEED)[1])
    for _ in range(0 if simulator.masks.read else _STEPS):
        if several and not env.agents:
            break
        action = env.action_space.sample() if not several else {}
        if several:
            action = {agent: env.action_space(agent).sample() for agent in env.agents}
        _, _, terminated, truncated, info = env.step(action)
        look(info)
        if not several and (terminated or truncated):
            break
    return list(names)[:50]


def _bytes_of_another(environment: Environment, closing: contextlib.ExitStack) -> int | None:
    """By how much the process grows with another object, after a reset; None: it does not, as far
    as the system tells, or none can be made."""
    before = own_bytes()
    try:
        another = plain_simulator(environment)
    except SimulatorError:
        return None
    closing.callback(another.close)
    running = np.arange(another.agents)
    another.reset(running, np.full(another.agents, SEED))
    return max(0, own_bytes() - before) or None


def _ask_gymnasium(environment: Environment, effort: Effort) -> tuple[str, ...]:
    """What Gymnasium's checker says of the environment without its wrappers."""

    def work(note: Note, closing: contextlib.ExitStack) -> None:
        signal.alarm(effort.most_seconds)
        simulator = plain_simulator(environment)
        closing.callback(simulator.close)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            error = []
            try:
                check_env(simulator.first.unwrapped, skip_render_check=True, skip_close_check=True)
            except Exception as raised:
                # Some of its assertions say nothing.
                where = "" if str(raised) else _last_line(traceback_of(raised))
                error = [f"{summary(raised)}{where}"]
        texts = [str(each.message) for each in said if issubclass(each.category, UserWarning)]
        note({"texts": list(dict.fromkeys([*error, *map(_plain_text, texts)]))})

    found, ended = in_fork(work)
    if ended:
        return (_how_it_ended("Gymnasium's checker played it", ended),)
    return tuple(found.get("texts", ()))


def _plain_text(text: str) -> str:
    """A warning of Gymnasium's without colours and its prefix."""
    return re.sub(r"\x1b\[[\d;]*m", "", text).removeprefix("WARN: ")
