"""Whether an environment repeats itself: with one seed and the same actions, one episode. Where it
does not, results depend on the workers and on earlier episodes; a lost one cannot be repeated."""

import math
import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from flame_rl.actor.environments.wrapping import wrappers_of
from flame_rl.actor.failure import SimulatorError, unusable
from flame_rl.actor.randomness import acting_generator
from flame_rl.actor.simulators.agents import plain_simulator
from flame_rl.actor.simulators.forked import Note, in_fork, own_bytes
from flame_rl.actor.simulators.plain import EnvironmentsSimulator
from flame_rl.nets.heads import choose_allowed
from flame_rl.wire.inputs import OF_ONE_BYTE, observation_parts
from flame_rl.wire.masks import ACTION_MASKS
from flame_rl.wire.messages import Environment, EnvironmentSpec, MaskSource

SEED = 1_403_007  # of the environment, and of the actions, which have a stream of their own


class Effort(NamedTuple):
    """How far an environment is examined: an episode is played no further than `steps`, `seconds`,
    and again in the same object `episodes` times at most, for `seconds`; one that takes longer than
    `making_seconds` for an object and a step is not examined; after `most_seconds` it hangs."""

    steps: int
    episodes: int
    seconds: float
    making_seconds: float
    most_seconds: int


QUICK = Effort(100, 2, 0.1, 0.5, 5)  # a quick environment takes half a second at most
_EXACT = 1 << 24  # up to it float32 holds all integers
_LARGE = 100  # from it on what float32 loses of a number is more than the noise of arithmetic
_Row = dict[str, np.ndarray]  # what is compared after a reset, and after each step, by its name


class Checked(NamedTuple):
    """What was found of an environment; texts are empty where there is nothing to say."""

    differs: str = ""  # where episodes differ and why
    unknown: str = ""  # why that is not known, in a sentence
    failed: str = ""  # how it failed, or ended its process
    # Where it has masks; None: its reset takes too long for this to be known.
    action_mask: MaskSource | None = "none"
    bytes: int = 0  # the memory that one takes; 0: not known
    rounded: str = ""  # which numbers of observations float32 does not hold, in a sentence


def check_repeats(environment: Environment, effort: Effort = QUICK) -> Checked:
    """Play an episode some times in one object and once in another. At most one exists at a time.
    Raises SimulatorError of kind "environment" if it cannot be played at all."""
    found, ended = in_fork(lambda note, stack: note(_repeated(environment, effort, note, stack)))
    if "unusable" in found:
        raise unusable(found["unusable"])
    if ended == "SIGALRM":
        waits = "or waits for a thread that its import started"
        unknown = f"it takes more than {effort.most_seconds} s, {waits}"
        found = {"action_mask": None, "unknown": unknown} | found
    elif ended:
        found["failed"] = f"it ended its process ({ended}) while an episode was repeated"
    if unknown := found.get("unknown"):
        found["unknown"] = f"Whether {environment.env_id} repeats itself is not checked: {unknown}."
    # The environment may have written other names, and another mask.
    if found.get("action_mask") not in (None, *get_args(MaskSource)):
        del found["action_mask"]
    return Checked(**{name: found[name] for name in Checked._fields if name in found})


def check_beside(environment: Environment, effort: Effort = QUICK) -> tuple[str, str]:
    """Play an episode alone, and again in another object while a third one is played, step by step
    in turns, as where a process has several slots. Returns where the episodes differ and why, and
    why no two can be played; either or both are ""."""

    def work(note: Note, closing: ExitStack) -> None:
        alone = _made(replace(environment, slots=1), closing)
        if environment.slots is not None and environment.slots < 2 * alone.agents:
            return note({"alone": ""})
        signal.alarm(effort.most_seconds)
        try:
            first = _play(alone, effort.steps, effort.seconds)
            with suppress(Exception):
                closing.close()
            both = _made(replace(environment, slots=2 * alone.agents), closing)
            second = _play(both, len(first) - 1, environments=2)
        except SimulatorError as error:
            note({"alone": str(error)})
        else:
            kind = type(both.first.unwrapped).__name__
            note({"where": _difference(first, second), "kind": kind})

    found, ended = in_fork(work)
    if ended or not found:
        how = {"": "raise an error", "SIGALRM": "hang"}.get(ended, f"end their process ({ended})")
        return "", f"two objects beside each other {how}; --slots 1 plays one in each process"
    if not found.get("where"):
        return "", found.get("alone", "")
    return (
        f"{environment.env_id} gives another episode while another object of it is played: with "
        f"one seed and the same actions, {found['where']}. Likely cause: objects of "
        f"{found['kind']} share state, in an attribute of the class or module, or a simulator's "
        "default connection; keep it in self. Until then --slots 1 plays one in each process"
    ), ""


def check_processes(environment: Environment, effort: Effort) -> str:
    """Play a step in another process beside an episode in a first one. Returns why not, or ""."""
    (begun, begins), (over, ends) = os.pipe(), os.pipe()

    def hold(note: Note, closing: ExitStack) -> None:
        signal.alarm(2 * effort.most_seconds)
        _play(_made(environment, closing), 1)
        os.write(begins, b"1")
        os.read(over, 1)

    def beside(note: Note, closing: ExitStack) -> None:
        signal.alarm(effort.most_seconds)
        try:
            _play(_made(environment, closing), 1)
        except SimulatorError as error:
            note({"failed": str(error)})

    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(in_fork, hold)
        held.add_done_callback(lambda _: os.write(begins, b"1"))  # where it cannot be held
        os.read(begun, 1)
        found, ended = in_fork(beside)
        os.write(ends, b"1")
    for descriptor in (begun, begins, over, ends):
        os.close(descriptor)
    failed = found.get("failed") or (ended and f"a second process ends ({ended})")
    if not failed:
        return ""
    remedy = "where only one can exist, --workers 1 --slots 1 makes no other"
    return f"{failed}. Another process has one: {remedy}"


def _made(environment: Environment, closing: ExitStack) -> EnvironmentsSimulator:
    simulator = plain_simulator(environment)
    closing.callback(simulator.close)
    return simulator


def _repeated(
    environment: Environment, effort: Effort, note: Note, closing: ExitStack
) -> dict[str, Any]:
    """What `check_repeats` returns or raises, by name."""
    began, before, memory = time.monotonic(), _global_states(), own_bytes()
    one = _made(environment, closing)
    # Only now: what an environment has half made, nobody would close.
    signal.alarm(effort.most_seconds)
    in_constructor, before = _drawn_since(before), _global_states()

    def begun() -> None:
        if one.masks.found_in is not None:
            note({"action_mask": one.masks.found_in})

    try:
        first = _play(one, effort.steps, effort.seconds, begun=begun)
    except SimulatorError as error:
        return {"unusable" if error.kind == "environment" else "failed": str(error)}
    found = {"bytes": max(0, own_bytes() - memory), "rounded": _rounded(one.spec, first)}
    if (seconds := time.monotonic() - began) > effort.making_seconds:
        return found | {"unknown": f"an object and its first step take {seconds:.1f} s"}
    again, episode, limit = "", 1, time.monotonic() + effort.seconds
    try:
        while not again and episode <= effort.episodes:
            again, episode = _difference(first, _play(one, len(first) - 1)), episode + 1
            if time.monotonic() >= limit:
                break
        drawn = _drawn_since(before)
        with suppress(Exception):
            closing.close()
        another = _made(environment, closing)
        # Others draw from the global generators meanwhile, as its neighbours in a worker do.
        other = _difference(first, _play(another, len(first) - 1, disturbed=True))
    except SimulatorError as error:
        return found | {"failed": str(error)}
    if not (again or other):
        return found
    kind = type(another.first.unwrapped).__name__
    if drawn:
        cause = f"it draws from {drawn}, which all environments share; draw from self.np_random"
    elif not again:
        source = f", from {in_constructor}" if in_constructor else ""
        what = f"the constructor of {kind} draws random numbers{source}, or counts objects"
        cause = f"{what}; do that in reset, from self.np_random"
    elif other:
        cause = (
            f"{kind} draws random numbers that reset(seed=…) does not decide, or its objects share "
            "state; draw from self.np_random, after super().reset(seed=seed)"
        )
    else:
        layers = wrappers_of(another.first)
        own = [each for each in layers if not isinstance(each, TimeLimit | OrderEnforcing)]
        classes = " or ".join(type(each).__name__ for each in own)
        cause = f"{classes} has state that survives reset; begin it anew there, or leave it out"
    number = "a second episode" if episode == 2 else f"episode {episode} of an object"
    where = f"{again} in {number}" if again else f"{other} in another object"
    return found | {
        "differs": f"{one.spec.env_id} does not repeat itself: with one seed and the same actions, "
        f"{where}. Likely cause: {cause}. Until then results depend on the number of workers"
    }


def random_actions(
    simulator: EnvironmentsSimulator, generator: np.random.Generator, slots: slice
) -> np.ndarray:
    """Actions of n slots, as they are recorded: float32 [n, A], from -1 to 1, or int32 [n] or
    [n, F], each that the simulator's masks allow as likely as any other."""
    spec, count = simulator.spec, slots.stop - slots.start
    choices = spec.choices
    if not choices:
        return generator.uniform(-1, 1, (count, spec.action_dim)).astype(np.float32)
    if simulator.masks.read:
        allowed = np.unpackbits(simulator.action_masks[slots], axis=1, count=sum(choices))
        factors = np.split(allowed, np.cumsum(choices)[:-1], axis=1)
        drawn = [choose_allowed(generator.random(count), each) for each in factors]
        actions = np.stack(drawn, axis=1)
    else:
        actions = generator.integers(choices, size=(count, len(choices))).astype(np.int32)
    return actions.ravel() if isinstance(spec.action_space, spaces.Discrete) else actions


def _play(
    simulator: EnvironmentsSimulator,
    steps: int,
    seconds: float = math.inf,
    disturbed: bool = False,
    environments: int = 1,
    begun: Callable[[], None] = lambda: None,
) -> list[_Row]:
    """An episode of random actions, of all agents, from its reset on, after which `begun` is
    called; of at most `steps` within `seconds`, but one at least. `disturbed`: the global
    generators are drawn from between the steps. Of several `environments` side by side, the others
    have other seeds and actions, and what is returned is the first one's."""
    agents, count = simulator.agents, environments * simulator.agents
    running = np.arange(count)
    generator, others = acting_generator(SEED), acting_generator(SEED + 1)
    rows: list[_Row] = []
    raw = () if simulator.raw is simulator.observations else ("raw",)

    def record(*names: str) -> None:
        mine = running[running < agents]
        rows.append({name: getattr(simulator, name)[mine] for name in (*raw, *names)})
        if disturbed:
            random.random()
            np.random.random()

    observed = ("observations", ACTION_MASKS)
    stepped = (*observed, "rewards", "reward_parts", "outcomes", "terminated", "truncated")
    simulator.reset(running, SEED + running // agents)
    begun()
    record(*observed)
    limit = time.monotonic() + seconds
    while (running < agents).any() and len(rows) <= steps:
        if len(rows) > 1 and time.monotonic() >= limit:
            break
        chosen = random_actions(simulator, generator, slice(0, agents))
        if environments > 1:
            beside = random_actions(simulator, others, slice(agents, count))
            chosen = np.concatenate([chosen, beside])
        simulator.step(chosen, running)
        record(*stepped)
        running = running[~(simulator.terminated | simulator.truncated)[running]]
    return rows


def _rounded(spec: EnvironmentSpec, rows: list[_Row]) -> str:
    """`Checked.rounded`, of an episode."""
    # Of several agents, until the first has ended.
    seen = [row.get("raw", row["observations"]) for row in rows]
    raw = np.stack([each for each in seen if len(each) == len(seen[0])])
    remedy = "take an offset away, or split them, by gymnasium.wrappers.TransformObservation"
    for part in observation_parts(spec.observation_space):
        if not isinstance(part.space, spaces.Box) or part.space.dtype in (*OF_ONE_BYTE, np.float32):
            continue
        numbers, name = raw[..., part.start : part.stop], f"observation{part.name}"
        most = np.abs(numbers).max(axis=(0, 1))
        if part.space.dtype.kind in "iu" and most.max() >= _EXACT:
            return (
                f"{name}: integers up to {most.max():,.0f} are rounded to float32, which holds "
                f"them exactly up to {_EXACT:,}; {remedy}"
            )
        with np.errstate(over="ignore"):
            rounded = numbers.astype(np.float32)
        steps, kept = (each[1:] != each[:-1] for each in (numbers, rounded))
        lost = (2 * kept.sum(axis=(0, 1)) < steps.sum(axis=(0, 1))) & (most >= _LARGE)
        for place in np.flatnonzero(lost)[:1]:
            return (
                f"{name}[{place}]: numbers up to {most[place]:,.0f} are rounded to float32, in "
                f"which most of their steps are lost; {remedy}"
            )
    return ""


def _difference(first: list[_Row], second: list[_Row]) -> str:
    """What differs between two episodes, and from which step on, in words; "" if nothing does."""
    for step, (one, other) in enumerate(zip(first, second, strict=False)):
        compared = [name for name in one if name != "raw"]  # what only `raw` has, nobody observes
        names = [name for name in compared if one[name].tobytes() != other[name].tobytes()]
        if names:
            shown = " and ".join(name.replace("_", " ") for name in names)
            return f"{shown} differ from {f'step {step}' if step else 'reset'} on"
    return ""


def _global_states() -> dict[str, object]:
    """The states of the generators that all code of a process shares."""
    _, key, position, *_ = np.random.get_state()
    return {"random": random.getstate(), "np.random": (key.tobytes(), position)}


def _drawn_since(before: dict[str, object]) -> str:
    """The names of the generators that were drawn from."""
    states = _global_states()
    return " and ".join(name for name, state in states.items() if state != before[name])
