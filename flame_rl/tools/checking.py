"""Examine an environment: its spaces, how fast it is, whether it repeats itself, and what a random
policy earns; then what stands in the way of training, and the remedy. Everything is played in forks
of this process, so that an environment that crashes or hangs is described as far as it came."""

import base64
import importlib.metadata
import math
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from flame_rl.actor.environments.making import import_environment
from flame_rl.actor.environments.masks import is_mask
from flame_rl.actor.failure import SimulatorError, summary, traceback_of
from flame_rl.actor.randomness import acting_generator
from flame_rl.actor.simulators import repeatable
from flame_rl.actor.simulators.agents import plain_simulator
from flame_rl.actor.simulators.forked import Note, in_fork
from flame_rl.actor.simulators.plain import EnvironmentsSimulator
from flame_rl.run.checks import about_goals, environment_warnings, training_refusal
from flame_rl.settings.config import TrainConfig
from flame_rl.wire import codec
from flame_rl.wire.inputs import observation_inputs, observation_parts
from flame_rl.wire.messages import Environment, EnvironmentSpec

FAR = 100.0  # numbers beyond it are far from the 1 that networks are made for
_EPISODES = 100
_MORE_SECONDS = 120  # when a fork is killed, beyond the time that it plays
_NOT_WITHIN = "not within the observation space"  # also said of another dtype
_LIKE_A_MASK = re.compile("mask|valid|legal|allow|avail|possible")
# Advice of Gymnasium's checker that is not needed: actions are scaled, and any bounds are taken.
_OF_BOUNDS = re.compile("is -?infinity|symmetric and normalized space")


@dataclass(frozen=True)
class Examined:
    """What was found out about an environment, as far as it came.

    Attributes:
        package: name and version of what brings it; "" if it is no package.
        spec: its description, with where it has masks.
        layers: the classes of its wrappers, the outermost first, and its own.
        making_seconds, bytes: how long an object takes, and how much memory.
        played: what a random policy did; see `random_play`.
        unread: what looks like a mask of allowed actions, where none is read.
        differs, beside: how episodes differ that should be the same, in turn and beside another.
        failures: what went wrong, one sentence each.
        checker: what Gymnasium's own checker says.
        notes: what could not be found out, and why; and which numbers are rounded.
    """

    environment: Environment
    package: str = ""
    spec: EnvironmentSpec | None = None
    layers: Sequence[str] = ()
    making_seconds: float | None = None
    bytes: int | None = None
    played: dict[str, Any] | None = None
    info: Sequence[str] = ()
    unread: Sequence[str] = ()
    differs: str = ""
    beside: str = ""
    failures: Sequence[str] = ()
    checker: Sequence[str] = ()
    notes: Sequence[str] = ()


def examine(environment: Environment, seconds: float, processes: int = 1) -> Examined:
    """Examine an environment, of which training has objects in so many processes at a time; random
    episodes are played for this many seconds."""
    slots, environment = environment.slots, replace(environment, simulator="plain", slots=1)
    env_id = environment.env_id
    found, ended = in_fork(partial(_play, environment, seconds))
    # Forks have no thread that its import started here: then each imports it anew.
    if not found.pop("threads", True):
        import_environment(environment)
    doing, failures = found.pop("doing", "being made"), found.pop("failures", [])
    failures += [_how_it_ended(doing, ended)] if ended else []
    module, spec, masks = (found.pop(name, None) for name in ("module", "spec", "action_mask"))
    if spec is not None:
        spec = codec.decode_description(base64.b64decode(spec), env_id)
        spec = replace(spec, action_mask=masks or spec.action_mask)
    top = (module or env_id).partition(":")[0].partition(".")[0]
    names = importlib.metadata.packages_distributions().get(top, ())
    package = f"{names[0]} {importlib.metadata.version(names[0])}" if names else ""
    examined = Examined(environment, package, spec, failures=failures, **found)
    if spec is None or failures:
        return examined
    effort = repeatable.Effort(1000, 20, seconds / 3, math.inf, round(seconds) + _MORE_SECONDS)
    checked = repeatable.check_repeats(environment, effort)
    beside, alone = repeatable.check_beside(replace(environment, slots=slots), effort)
    if not alone and processes > 1:
        alone = repeatable.check_processes(environment, effort)
    return replace(
        examined,
        bytes=checked.bytes or None,
        differs=checked.differs,
        beside="" if checked.differs else beside,  # its own cause is known by then
        failures=[text for text in (checked.failed, alone) if text],
        notes=[text for text in (checked.unknown, checked.rounded) if text],
        checker=() if spec.agents else _ask_gymnasium(environment, effort.most_seconds),
    )


def _how_it_ended(doing: str, ended: str) -> str:
    hangs = ended == "SIGALRM"
    how = f"hangs for more than {_MORE_SECONDS} s" if hangs else f"ended its process ({ended})"
    return f"it {how} while {doing}"


def _play(environment: Environment, seconds: float, note: Note, closing: ExitStack) -> None:
    """Make the environment and play it, noting what `examine` reads."""
    signal.alarm(round(seconds) + _MORE_SECONDS)
    try:
        threads = threading.active_count()
        import_environment(environment)
        note({"threads": threading.active_count() > threads})
        began = time.monotonic()
        simulator = plain_simulator(environment)
        spec, env = simulator.spec, simulator.first
        note({"making_seconds": time.monotonic() - began})
        closing.callback(simulator.close)
        layers = [env]
        while layers[-1] is not layers[-1].unwrapped and hasattr(layers[-1], "env"):
            layers.append(layers[-1].env)
        note({"spec": base64.b64encode(codec.encode_description(spec)).decode()})
        note({"module": type(env.unwrapped).__module__})
        note({"layers": [type(each).__name__ for each in layers]})
        note({"doing": "it was played with random actions"})
        names = _collected_names(env, bool(spec.agents))
        note({"played": random_play(simulator, spec, seconds)})
        note({"action_mask": simulator.masks.found_in, "info": list(names)[:50]})
        if environment.action_mask and spec.choices and not simulator.masks.read:
            note({"unread": _like_masks(spec, names)})
        if not spec.choices:
            note({"doing": "it was played with actions at their bounds"})
            random_play(simulator, spec, seconds / 10, at_bounds=True)
    except SimulatorError as error:
        note({"failures": [f"{error}{_last_line(error.cause)}"]})
    except Exception as error:
        note({"failures": [summary(error)]})


def _like_masks(spec: EnvironmentSpec, infos: dict[str, int]) -> list[str]:
    """What is named like a mask and has a number for each choice; `infos` has sizes by names."""
    parts = [p for p in observation_parts(spec.observation_space) if is_mask(p.space, spec.choices)]
    places = [f"observation{part.name}" for part in parts if _LIKE_A_MASK.search(part.name)]
    sizes = [(name, size) for name, size in infos.items() if _LIKE_A_MASK.search(name)]
    return places + [f"info[{name!r}]" for name, size in sizes if size == sum(spec.choices)]


def _last_line(cause: str) -> str:
    """Where an exception of the environment's was raised, by its traceback."""
    places = re.findall(r'File "(.*?)", line (\d+)', cause)
    return f" ({places[-1][0]}, line {places[-1][1]})" if places else ""


def random_play(
    simulator: EnvironmentsSimulator, spec: EnvironmentSpec, seconds: float, at_bounds: bool = False
) -> dict[str, Any]:
    """Play up to a hundred episodes of random actions, or of the least and the greatest numbers.
    Returns:
        reset_seconds, steps_per_second: of one environment alone.
        truncated, returns, lengths: of the episodes, of each agent, that ended.
        longest: env steps of the longest episode, finished or not.
        rewards: of all steps.
        allowed: the mean share of choices that the masks allow; 1 without masks.
        observed: the least and the greatest number that was observed.
        far: names and greatest absolute values of numbers beyond 100, the farthest first.
    """
    agents, generator = simulator.agents, acting_generator(repeatable.SEED)
    returns, lengths, cut, rewards, allowed, played = [], [], [], [], [], []
    least, most = np.full(spec.observation_dim, np.inf), np.full(spec.observation_dim, -np.inf)
    stepping = resetting = 0.0

    def look(when: str, running: np.ndarray) -> None:
        observations = simulator.observations[running]
        for name, values in (("observation", observations), ("reward", simulator.rewards[running])):
            if not np.isfinite(values).all():
                raise SimulatorError("invalid", f"{name}: NaN or infinity, of {when}")
        np.minimum(least, observations.min(axis=0), out=least)
        np.maximum(most, observations.max(axis=0), out=most)

    limit = time.monotonic() + seconds
    while not played or (len(played) < _EPISODES and time.monotonic() < limit):
        running, began = np.arange(agents), time.monotonic()
        simulator.reset(running, np.full(agents, repeatable.SEED + len(played)))
        resetting += time.monotonic() - began
        look("reset", running)
        earned, length = np.zeros(agents), 0
        while len(running) and (not length or time.monotonic() < limit):
            actions = repeatable.random_actions(simulator, generator, slice(0, agents))
            if simulator.masks.read:
                masks = simulator.action_masks[running]
                allowed.append(np.unpackbits(masks, axis=1, count=sum(spec.choices)).mean())
            began = time.monotonic()
            simulator.step(np.sign(actions) if at_bounds else actions, running)
            stepping += time.monotonic() - began
            length += 1
            look(f"step {length}", running)
            # Of a vector, its sum.
            rewards.append(simulator.rewards[running].reshape(len(running), -1).sum(axis=1))
            earned[running] += rewards[-1]
            ended = (simulator.terminated | simulator.truncated)[running]
            returns += earned[running[ended]].tolist()
            cut += (~simulator.terminated[running[ended]]).tolist()
            lengths += [length] * int(ended.sum())
            running = running[~ended]
        played.append(length)
    return {
        "reset_seconds": resetting / len(played),
        "steps_per_second": sum(played) / max(stepping, 1e-9),
        "truncated": sum(cut),
        "returns": _spread(returns),
        "lengths": _spread(lengths),
        "longest": max(played),
        "rewards": _spread(np.concatenate(rewards)),
        "allowed": float(np.mean(allowed)) if allowed else 1.0,
        "observed": [float(least.min()), float(most.max())],
        "far": _far(spec, np.maximum(np.abs(least), np.abs(most))),
    }


def _far(spec: EnvironmentSpec, greatest: np.ndarray) -> list[tuple[str, float]]:
    """Names and greatest values of numbers beyond `FAR`, but for bytes, which are scaled."""
    for each in observation_inputs(spec.observation_space):
        if each.space is not None:
            greatest[each.start : each.stop] = 0
    found = [
        (f"observation{part.name}[{place - part.start}]", float(greatest[place]))
        for part in observation_parts(spec.observation_space)
        for place in range(part.start, part.stop)
        if greatest[place] > FAR
    ]
    return sorted(found, key=lambda each: -each[1])[:1000]


def _spread(values: Any) -> dict[str, float] | None:
    """How often a number came, and its mean, standard deviation and range."""
    array = np.asarray(values, np.float64)
    parts = {"mean": np.mean, "std": np.std, "least": np.min, "most": np.max}
    if not len(array):
        return None
    return {"count": len(array)} | {name: float(part(array)) for name, part in parts.items()}


def _collected_names(env: Any, several: bool) -> dict[str, int]:
    """Collects names and sizes of entries of `info` from now on; `several`: of each agent."""
    names: dict[str, int] = {}

    def collecting(function: Callable[..., tuple]) -> Callable[..., tuple]:
        def call(*arguments: Any, **options: Any) -> tuple:
            *returned, info = function(*arguments, **options)
            for own in info.values() if several else (info,):
                names.update({str(name): getattr(each, "size", 0) for name, each in own.items()})
            return *returned, info

        return call

    env.reset, env.step = collecting(env.reset), collecting(env.step)
    return names


def _ask_gymnasium(environment: Environment, seconds: int) -> list[str]:
    """What Gymnasium's checker says of the environment without its wrappers."""

    def work(note: Note, closing: ExitStack) -> None:
        signal.alarm(seconds)
        simulator = plain_simulator(environment)
        closing.callback(simulator.close)
        env, texts = simulator.first.unwrapped, []
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                check_env(env, skip_render_check=True, skip_close_check=True)
            except (Exception, SystemExit) as raised:
                # Some of its assertions say nothing.
                where = "" if str(raised) else _last_line(traceback_of(raised))
                texts = [f"{summary(raised)}{where}"]
        texts += [str(each.message) for each in said if issubclass(each.category, UserWarning)]
        # Without colours and prefix.
        plain = [re.sub(r"\x1b\[[\d;]*m", "", text).removeprefix("WARN: ") for text in texts]
        if any(_NOT_WITHIN in text for text in plain):
            returned = env.reset(seed=0)[0], env.step(env.action_space.sample())[0]
            own = [text for each in returned for text in _not_within(env.observation_space, each)]
            # The cause in place of what follows from it.
            plain = own + [text for text in plain if not own or _NOT_WITHIN not in text]
        note({"texts": list(dict.fromkeys(plain))})

    found, ended = in_fork(work)
    how = _how_it_ended("Gymnasium's checker played it", ended)
    return [how] if ended else found.get("texts", [])


def _not_within(space: gymnasium.Space, value: Any, key: str = "") -> Iterator[str]:
    """Why an observation is not in its space: an array's dtype, or a number beyond the bounds."""
    if isinstance(space, spaces.Dict):
        for name, inner in space.spaces.items():
            yield from _not_within(inner, value[name], f"{key}[{name!r}]")
    elif isinstance(space, spaces.Box) and isinstance(value, np.ndarray):
        cast, promised = value.astype(space.dtype), f"and its Box promises {space.dtype}"
        if space.contains(cast) and not np.can_cast(value.dtype, space.dtype):
            remedy = f"return it with .astype(np.{space.dtype})"
            yield f"observation{key} is {value.dtype}, {promised}: {remedy}"
        if cast.shape == space.shape:
            for place in np.flatnonzero((cast < space.low) | (cast > space.high))[:1]:
                number, low, high = (each.flat[place] for each in (cast, space.low, space.high))
                promised = f"and its Box promises {low:.4g} to {high:.4g}"
                remedy = "give the Box bounds that hold, or clip"
                yield f"observation{key} has {number:.4g}, {promised}: {remedy}"


class Finding(NamedTuple):
    """A sentence with a cause and a remedy. It is a problem where training fails, or its results
    cannot be repeated, and otherwise advice."""

    problem: bool
    topic: str
    text: str


def findings(examined: Examined, config: TrainConfig) -> list[Finding]:
    """The problems, then the advice; `config` is of a run in the environment."""
    spec = examined.spec
    problems = [("fails", text) for text in examined.failures]
    problems += [("repeats", text) for text in (examined.differs, examined.beside)]
    problems.append(("training", "" if spec is None else training_refusal(config, spec)))
    advice = [("notes", text) for text in examined.notes]
    advice += [*_of_spec(examined, config), *_of_play(examined)]
    remarks = [text for text in examined.checker if not _OF_BOUNDS.search(text)]
    advice += [("checker", f"Gymnasium: {text}") for text in remarks[:4]]
    found = [Finding(True, *each) for each in problems] + [Finding(False, *each) for each in advice]
    return [each for each in found if each.text]


def _of_spec(examined: Examined, config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Topics and sentences about spaces, the time limit, masks and goals."""
    spec, played = examined.spec, examined.played
    if spec is None:
        return
    yield from (("spaces", text) for text in environment_warnings(config, spec))
    if spec.time_limit is None or spec.limited_by_default:
        limit, text = spec.time_limit, "Gymnasium knows no time limit"
        if played is not None:
            ended = played["returns"] and played["longest"] != limit
            text += f"; here {'' if ended else 'no '}episodes ended by step {played['longest']:,}"
        remedy = "--max-episode-steps N cuts them"
        if limit is not None:
            remedy = f"Episodes are cut after {limit:,}; --max-episode-steps N sets another, 0 none"
        yield "time limit", f"{text}. {remedy}"
    if examined.unread:
        text = f"{' and '.join(examined.unread)}: if it says which actions are allowed, it is not "
        text += 'read; a --wrapper of your own may put it into info["action_mask"]'
        yield "masks", text
    yield "goals", about_goals(spec)


def _of_play(examined: Examined) -> Iterator[tuple[str, str]]:
    if (played := examined.played) is None:
        return
    if far := played["far"]:
        name, value = far[0]
        text = f"{len(far)} of the numbers go beyond {FAR:.0f}, {name} up to {value:,.0f}: "
        text += "--normalize-observations True where the algorithm has it, or a --wrapper"
        yield "observations", text
    rewards = played["rewards"]
    largest = max(abs(rewards["least"]), abs(rewards["most"]))
    if not largest:
        text = f"a random policy got no reward but 0 in {rewards['count']:,} steps, as exploration "
        text += "begins: reward what leads there (--reward), or let episodes begin nearer"
        yield "rewards", text
    elif largest > FAR:
        text = f"a reward of {largest:,.0f} is far from 1: --reward-scale (ddpg, td3, sac), or a "
        text += "--wrapper that scales it (gymnasium.wrappers.TransformReward)"
        yield "rewards", text
