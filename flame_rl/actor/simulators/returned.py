"""What an environment returned, checked and written into a simulator's rows.

Whatever is wrong raises `SimulatorError`, of kind "invalid", with the slot.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence

import numpy as np

from flame_rl.actor.environments.observations import write_observation
from flame_rl.actor.failure import SimulatorError, of_another_api, summary, traceback_of
from flame_rl.actor.simulators.simulator import Simulator
from flame_rl.wire.inputs import ObservationPart

# What Python says, in the code that calls an environment, of one with other parameters or results.
_OF_ANOTHER_API = re.compile(r"to unpack|cannot unpack|unexpected keyword arg|positional argument")
_CALLERS = ("gymnasium.core", "gymnasium.wrappers.", "pettingzoo.utils.", "flame_rl.")


def raised(source: str, error: BaseException, slot: int) -> SimulatorError:
    """The failure of an environment whose `source`, "reset" or "step", raised an exception."""
    if isinstance(error, TypeError | ValueError) and _OF_ANOTHER_API.search(str(error)):
        *_, (last, _) = traceback.walk_tb(error.__traceback__)
        if last.f_globals.get("__name__", "").startswith(_CALLERS):
            return of_another_api(f"{source}: {summary(error)}")
    text = f"{source} raised {summary(error)}"
    return SimulatorError("simulator", text, slot, traceback_of(error))


def first_returned(returned: object) -> tuple[object, Mapping[object, object]]:
    """Observation and info in what `reset` returned."""
    # Not unpacked: a bare observation may have two entries, too.
    if isinstance(returned, tuple | list) and len(returned) == 2:
        observation, info = returned
        if info is None or isinstance(info, Mapping):
            return observation, info or {}
    raise of_another_api(f"reset: it returned {returned!r:.200}")


def take_observation(
    parts: Sequence[ObservationPart], observation: object, row: np.ndarray, source: str, slot: int
) -> None:
    """Flatten what `source`, "reset" or "step", returned into `row`."""
    try:
        write_observation(parts, observation, row)
    except ValueError as error:
        name, _, what = str(error).partition(": ")
        raise SimulatorError("invalid", f"{name}: {source} returned {what}", slot) from error


def take_outcome(
    simulator: Simulator, slot: int, reward: object, terminated: object, truncated: object
) -> None:
    """Write the reward of a slot's step, and whether its episode ended."""
    shape = simulator.rewards.shape[1:]
    wanted = f"an array of shape {shape}" if shape else "a single number"
    simulator.rewards[slot] = _numbers("reward", reward, shape, wanted, slot)
    ends = {"terminated": terminated, "truncated": truncated}
    for name, end in ends.items():
        # Any other object would count as true: the text "False", or NaN.
        if not isinstance(end, bool | np.bool_) and not (
            isinstance(end, int | np.integer) and end in (0, 1)
        ):
            raise SimulatorError(
                "invalid",
                f"{name}: step returned {end!r:.60}, not True or False",
                slot,
            )
    simulator.terminated[slot], simulator.truncated[slot] = bool(terminated), bool(truncated)


def take_info(simulator: Simulator, slot: int, info: object) -> None:
    """Write the parts of the reward and the outcomes in a step's `info`."""
    for place, name in enumerate(simulator.part_names):
        simulator.reward_parts[slot, place] = _named(info, name, "--reward-parts", slot)
    ended = simulator.terminated[slot] or simulator.truncated[slot]
    for place, name in enumerate(simulator.outcome_names):
        number = _named(info, name, "--outcomes", slot) if ended else 0
        simulator.outcomes[slot, place] = number


def _named(info: object, name: str, flag: str, slot: int) -> np.ndarray:
    """The number of this name in `info`, which the flag names."""
    value = info = info if isinstance(info, Mapping) else {}
    for key in [name] if name in info else name.split("."):
        if not isinstance(value, Mapping) or key not in value:
            listed = ", ".join(sorted(map(str, info))[:20]) or "nothing"
            when = " at an episode's end" if flag == "--outcomes" else ""
            raise SimulatorError(
                "invalid",
                f"info: step returned no {name!r}, which {flag} names{when}; it has {listed}",
                slot,
            )
        value = value[key]
    return _numbers(f"info[{name!r}]", value, (), "a single number", slot)


def _numbers(
    name: str, value: object, shape: tuple[int, ...], wanted: str, slot: int
) -> np.ndarray:
    """The value as an array of real numbers of this shape, which an error calls `wanted`."""
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf" or array.shape != shape:
        what = f"an array of shape {array.shape}" if array.ndim else f"{value!r:.60}"
        raise SimulatorError(
            "invalid", f"{name}: step returned {what} where {wanted} belongs", slot
        )
    return array
