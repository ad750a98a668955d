"""Whether an environment repeats itself: with one seed and the same actions, one episode.

Where it does not, results depend on the number of workers and on what was played before, and a lost
episode cannot be collected again. Some episodes are played in a fork of this process, in which an
environment may crash, hang or count without a trace.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import gymnasium
import numpy as np

from flame_rl.actor.failure import SimulatorError, unusable
from flame_rl.actor.simulators.plain import EnvironmentsSimulator
from flame_rl.nets.discrete import choose_allowed
from flame_rl.wire.masks import ACTION_MASKS
from flame_rl.wire.messages import EnvironmentSpec, MaskSource
from flame_rl.wire.steps import step_columns

# The seed of the environment, and of the actions.
SEED = 1_403_007
# An episode is played no further, so that a quick environment takes half a second at most.
_STEPS, _SECONDS = 100, 0.1
# Environments that take longer for an object and its first step are not checked.
_QUICK_SECONDS = 0.5
# When the fork is killed: the environment hangs.
_MOST_SECONDS = 5

_ENDS = ("terminated", "truncated")

# What is compared after a reset, and after each step: bytes by the name of what they are.
_Row = dict[str, bytes]


@dataclass(frozen=True)
class Checked:
    """What was found of an environment.

    Attributes:
        differs: where episodes differ and why; "" if they do not, as far as that is known.
        unknown: why that is not known, in a sentence, or "".
        action_mask: where it has masks; None: its reset takes too long for this to be known.
    """

    differs: str
    unknown: str
    action_mask: MaskSource | None


def check_repeats(
    env_id: str, make: Callable[[], tuple[EnvironmentsSimulator, EnvironmentSpec]]
) -> Checked:
    """Play an episode twice in one object and once in another. At most one exists at a time.

    Args:
        env_id: of the environment, for what is returned.
        make: makes a simulator with environments of its own, and their description.

    Returns:
        What was found. Of an environment that fails it is nothing: the run will say so, with the
        episode.

    Raises:
        SimulatorError: of kind "environment": it cannot be played at all.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            # What else this process has is not the fork's to finalise.
            gc.freeze()
            # Nobody would see a debugger there.
            sys.breakpointhook = lambda *_, **__: None
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nowhere, descriptor)
            with contextlib.ExitStack() as closing:

                def tell(found: dict[str, str]) -> None:
                    os.write(writing, json.dumps(found).encode() + b"\n")

                tell(_checked(make, tell, closing))
        finally:
            os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with open(reading, "rb", buffering=0) as answer:  # noqa: PTH123
        os.set_blocking(reading, False)
        found: dict[str, str] = {}
        # The fork crashed, or the environment wrote here.
        with contextlib.suppress(TypeError, ValueError):
            for line in (answer.read() or b"").splitlines():
                found |= json.loads(line)
    if "unusable" in found:
        raise unusable(found["unusable"])
    # Of an environment whose reset fails, the run will say so.
    masks: MaskSource | None = "none"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        found["unknown"], masks = f"it takes more than {_MOST_SECONDS} s", None
    if found.get("action_mask") in get_args(MaskSource):
        masks = found["action_mask"]
    unknown = found.get("unknown", "")
    return Checked(
        found.get("differs", ""),
        f"Whether {env_id} repeats itself is not checked: {unknown}." if unknown else "",
        masks,
    )


def _checked(
    make: Callable[[], tuple[EnvironmentsSimulator, EnvironmentSpec]],
    tell: Callable[[dict[str, str]], None],
    closing: contextlib.ExitStack,
) -> dict[str, str]:
    """What `check_repeats` returns or raises, by name; `tell` is told what is known before a step
    may crash or hang, and `closing` closes what is still open."""
    began, before = time.monotonic(), _global_states()
    one, spec = make()
    closing.callback(one.close)
    # Only now: what an environment has half made, nobody would close.
    signal.alarm(_MOST_SECONDS)
    in_constructor, before = _drawn_since(before), _global_states()
    try:
        first = _play(one, spec, seconds=_SECONDS, begun=lambda: tell(_masks_of(one)))
    except SimulatorError as error:
        return {"unusable": str(error)} if error.kind == "environment" else {}
    if (seconds := time.monotonic() - began) > _QUICK_SECONDS:
        return {"unknown": f"an object and its first step take {seconds:.1f} s"}
    steps = len(first) - 1
    again = _difference(first, _play(one, spec, steps))
    drawn = _drawn_since(before)
    with contextlib.suppress(Exception):
        closing.close()
    another, _ = make()
    closing.callback(another.close)
    # Others draw from the global generators meanwhile, as its neighbours in a worker do.
    other = _difference(first, _play(another, spec, steps, disturbed=True))
    where = again or other
    if not where:
        return {}
    kind = type(another.first.unwrapped).__name__
    if drawn:
        cause = (
            f"it draws from {' and '.join(drawn)}, which all environments of a process "
            "share; draw from self.np_random, which reset(seed=…) seeds"
        )
    elif not again:
        source = f", from {' and '.join(in_constructor)}" if in_constructor else ""
        cause = (
            f"the constructor of {kind} draws random numbers{source}, or counts objects; do that "
            "in reset, from self.np_random"
        )
    elif other:
        cause = (
            f"{kind} draws random numbers that reset(seed=…) does not decide, or its objects share "
            "state; draw from self.np_random, after super().reset(seed=seed)"
        )
    else:
        layer = _layer_at_fault(another.first)
        cause = f"{layer} has state that survives reset; begin it anew there, or leave it out"
    return {
        "differs": f"{spec.env_id} does not repeat itself: with one seed and the same actions, "
        f"{where} in {'a second episode' if again else 'another object'}. Likely cause: {cause}. "
        "Until then results depend on the number of workers"
    }


def _play(
    simulator: EnvironmentsSimulator,
    spec: EnvironmentSpec,
    steps: int = _STEPS,
    *,
    seconds: float = float("inf"),
    disturbed: bool = False,
    begun: Callable[[], None] = lambda: None,
) -> list[_Row]:
    """Play to the end of the episode, of all agents, or no further than the limits; `begun` is
    called after the reset, and `disturbed` is with draws from the global generators between the
    steps."""
    (actions,) = (column for column in step_columns(spec) if column.name == "actions")
    running = np.arange(simulator.agents)
    shape = simulator.agents, *actions.shape
    generator = np.random.default_rng(SEED)
    rows: list[_Row] = []

    def note(*names: str) -> None:
        rows.append({name: getattr(simulator, name)[running].tobytes() for name in names})
        if disturbed:
            random.random()
            np.random.random()

    simulator.reset(running, np.full(len(running), SEED))
    begun()
    note("observations", ACTION_MASKS)
    limit = time.monotonic() + seconds
    while len(running) and len(rows) <= steps and (len(rows) == 1 or time.monotonic() < limit):
        if simulator.masks.read:
            allowed = np.unpackbits(simulator.action_masks, axis=1, count=sum(actions.choices))
            factors = np.split(allowed[: shape[0]], np.cumsum(actions.choices)[:-1], axis=1)
            drawn = [choose_allowed(generator.random(shape[0]), each) for each in factors]
            chosen = np.stack(drawn, axis=1).reshape(shape)
        elif actions.choices:
            numbers = generator.integers(actions.choices, size=(shape[0], len(actions.choices)))
            chosen = numbers.astype(np.int32).reshape(shape)
        else:
            chosen = generator.uniform(-1, 1, shape).astype(np.float32)
        simulator.step(chosen, running)
        note("observations", ACTION_MASKS, "rewards", "reward_parts", "outcomes", *_ENDS)
        running = running[~(simulator.terminated | simulator.truncated)[running]]
    return rows


def _masks_of(simulator: EnvironmentsSimulator) -> dict[str, str]:
    """Where an environment that was reset has masks."""
    found = simulator.masks.found_in
    return {} if found is None else {"action_mask": found}


def _difference(first: list[_Row], second: list[_Row]) -> str:
    """Where the second episode begins to differ, in words; "" if it does not."""
    for step, (one, other) in enumerate(zip(first, second, strict=False)):
        names = [name.replace("_", " ") for name in one if one[name] != other[name]]
        if names:
            return f"{' and '.join(names)} differ from {f'step {step}' if step else 'reset'} on"
    return ""


def _global_states() -> dict[str, object]:
    """The states of the generators that all code of a process shares."""
    _, key, position, *_ = np.random.get_state()
    return {"random": random.getstate(), "np.random": (key.tobytes(), position)}


def _drawn_since(before: dict[str, object]) -> list[str]:
    return [name for name, state in _global_states().items() if state != before[name]]


def _layer_at_fault(env: object) -> str:
    """The innermost wrapper, or the environment itself, that does not repeat itself."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    for layer in reversed(layers):
        with contextlib.suppress(Exception):
            if _shown(layer) != _shown(layer):
                kind = "the wrapper " if isinstance(layer, gymnasium.Wrapper) else ""
                return f"{kind}{type(layer).__name__}"
    return type(layers[-1]).__name__


def _shown(layer: gymnasium.Env) -> list[str]:
    """An episode as text, to the last digit."""
    layer.action_space.seed(SEED)
    returned, ended = [layer.reset(seed=SEED)[0]], False
    while not ended and len(returned) <= _STEPS:
        observation, reward, terminated, truncated, _ = layer.step(layer.action_space.sample())
        returned.append((observation, reward))
        ended = terminated or truncated
    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):
        return [repr(each) for each in returned]
