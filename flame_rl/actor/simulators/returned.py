"""What an environment returned, checked and written into a simulator's rows. Whatever is wrong
raises `SimulatorError` of kind "invalid", with the slot; that numbers are finite, callers check."""

import re
import signal
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.actor import failure
from flame_rl.actor.environments import masks
from flame_rl.actor.environments.converting import write_observation
from flame_rl.actor.environments.masks import ACTION_MASK, OBSERVATION
from flame_rl.actor.failure import SimulatorError, invalid
from flame_rl.actor.simulators.simulator import Simulator, as_rows
from flame_rl.wire.inputs import ObservationPart
from flame_rl.wire.masks import pack_masks
from flame_rl.wire.messages import MaskSource
from flame_rl.wire.spaces import choices_of

# What Python says, in the code that calls an environment, of one with other parameters or results.
_OF_ANOTHER_API = re.compile(r"to unpack|cannot unpack|unexpected keyword arg|positional argument")
_CALLERS = ("gymnasium.core", "gymnasium.wrappers.", "pettingzoo.utils.", "flame_rl.")


def raised(source: str, error: BaseException, slot: int) -> SimulatorError:
    """The failure of an environment whose "reset" or "step" raised this. Raises a user's Ctrl-C."""
    listening = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if isinstance(error, KeyboardInterrupt) and not listening:
        raise error
    if isinstance(error, TypeError | ValueError) and _OF_ANOTHER_API.search(str(error)):
        *_, (last, _) = traceback.walk_tb(error.__traceback__)
        if last.f_globals.get("__name__", "").startswith(_CALLERS):
            return failure.of_another_api(f"{source}: {failure.summary(error)}")
    text = f"{source} raised {failure.summary(error)}"
    return SimulatorError("simulator", text, slot, failure.traceback_of(error))


@contextmanager
def calling(source: str, slot: int) -> Iterator[None]:
    """What the environment raises in the block is `raised`."""
    try:
        yield
    except BaseException as error:
        raise raised(source, error, slot) from error


def first_returned(returned: object) -> tuple[object, Mapping[object, object]]:
    """Observation and info in what `reset` returned."""
    # Not unpacked: a bare observation may have two entries, too.
    if isinstance(returned, tuple | list) and len(returned) == 2:
        observation, info = returned
        if info is None or isinstance(info, Mapping):
            return observation, info or {}
    raise failure.of_another_api(f"reset: it returned {returned!r:.200}")


def take_observation(
    parts: Sequence[ObservationPart], observation: object, row: np.ndarray, source: str, slot: int
) -> None:
    """Flatten what `source`, "reset" or "step", returned into `row`."""
    try:
        write_observation(parts, observation, row)
    except ValueError as error:
        name, _, what = str(error).partition(": ")
        raise invalid(f"{name}: {source} returned {what}", slot) from error


def take_reward_and_ends(
    simulator: Simulator, slot: int, reward: object, terminated: object, truncated: object
) -> None:
    """Write the reward of a slot's step, and whether its episode ended."""
    if simulator.rewards.ndim == 1 and isinstance(reward, np.ndarray) and reward.shape == (1,):
        (reward,) = reward
        text = "reward: step returned an array of shape (1,), which is taken for its number"
        warnings.warn(f"{text}; return float(reward[0])", stacklevel=1)
    simulator.rewards[slot] = _numbers("reward", reward, simulator.rewards.shape[1:], slot)
    for name, end in (("terminated", terminated), ("truncated", truncated)):
        # Any other object would count as true: the text "False", or NaN.
        if not isinstance(end, bool | np.bool_ | int | np.integer) or end not in (0, 1):
            raise invalid(f"{name}: step returned {end!r:.60}, not True or False", slot)
    simulator.terminated[slot], simulator.truncated[slot] = bool(terminated), bool(truncated)


def take_info(simulator: Simulator, slot: int, info: object) -> None:
    """Write the parts of the reward and the outcomes in a step's `info`."""
    for place, name in enumerate(simulator.part_names):
        simulator.reward_parts[slot, place] = _named(info, name, "--reward-parts names", slot)
    ended = simulator.terminated[slot] or simulator.truncated[slot]
    when = "--outcomes names at an episode's end"
    for place, name in enumerate(simulator.outcome_names):
        simulator.outcomes[slot, place] = _named(info, name, when, slot) if ended else 0


def _named(info: object, name: str, flag: str, slot: int) -> np.ndarray:
    """The number of this name in `info`, which the flag names."""
    value = info = info if isinstance(info, Mapping) else {}
    for key in [name] if name in info else name.split("."):
        if not isinstance(value, Mapping) or key not in value:
            listed = ", ".join(sorted(map(str, info))[:20]) or "nothing"
            raise invalid(f"info: step returned no {name!r}, which {flag}; it has {listed}", slot)
        value = value[key]
    return _numbers(f"info[{name!r}]", value, (), slot)


def _numbers(name: str, value: object, shape: tuple[int, ...], slot: int) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf" or array.shape != shape:
        found = f"an array of shape {array.shape}" if array.ndim else f"{value!r:.60}"
        wanted = f"an array of shape {shape}" if shape else "a single number"
        raise invalid(f"{name}: step returned {found} where {wanted} belongs", slot)
    return array


class Masks:
    """Reads the masks of a simulator's environments into `Simulator.action_masks`. `found_in` says
    where they are; None until the first reset has shown whether there are any."""

    def __init__(self, space: gymnasium.Space, found_in: MaskSource | None, rows: int) -> None:
        """`space` is that of the actions, `rows` the number of the simulator's."""
        self.found_in = found_in
        self._space = space
        self._first = masks.first_choices(space)
        count = sum(choices_of(space))
        # More than 1 where an environment returned something else than 0 and 1.
        self._allowed = np.ones((rows, count), np.uint8)
        # The shape of most masks, which need no other check.
        self._usual = (count,) if isinstance(space, spaces.Discrete) else None

    @property
    def read(self) -> bool:
        return self.found_in in ("info", "observation")

    def take(
        self, observation: object, info: object, slot: int, source: str, ended: bool = False
    ) -> object:
        """Read the mask in what `source` returned, where there are masks; at an episode's end none
        is needed. Returns the observation alone."""
        holder = info
        if self.found_in is None:
            found = isinstance(info, Mapping) and ACTION_MASK in info
            self.found_in = "info" if found else "none"
        if self.found_in == "none":
            return observation
        if self.found_in == "observation":
            if not isinstance(observation, Mapping) or OBSERVATION not in observation:
                wanted = f"where a dictionary of {OBSERVATION!r} and {ACTION_MASK!r} is expected"
                raise invalid(f"observation: {source} returned {observation!r:.80} {wanted}", slot)
            observation, holder = observation[OBSERVATION], observation
        mask = holder.get(ACTION_MASK) if isinstance(holder, Mapping) else None
        allowed = self._allowed[slot]
        if type(mask) is np.ndarray and mask.dtype == np.int8 and mask.shape == self._usual:
            allowed[:] = mask
        elif mask is None and ended:
            allowed[:] = 0
        elif mask is None:
            text = f"{ACTION_MASK}: {source} returned none in its {self.found_in}, where the first"
            raise invalid(f"{text} reset had one; give one each time (or --no-action-mask)", slot)
        else:
            try:
                allowed[:] = masks.allowed_choices(self._space, mask)
            except ValueError as error:
                raise invalid(f"{ACTION_MASK}: {source} returned {error}", slot) from error
        return observation

    def wait(self, slot: int) -> None:
        """It is another agent's turn: only the first choice, which does nothing, is allowed."""
        self._allowed[slot] = 0
        self._allowed[slot, self._first] = 1

    def write(self, simulator: Simulator, slots: np.ndarray, source: str) -> None:
        """Check that each factor has a choice in these slots, int [n], and write their masks; one
        without where an episode terminates allows all, because nothing follows; where it is
        truncated, nothing, by which a learner knows it."""
        rows = as_rows(slots)
        allowed = self._allowed[rows]
        wrong = ~masks.allows_something(allowed, self._first) | (allowed.max(axis=1) > 1)
        for slot in slots[wrong].tolist():
            mask = self._allowed[slot]
            ended = simulator.terminated[slot] or simulator.truncated[slot]
            if mask.max() <= 1 and ended and source == "step":
                mask[:] = simulator.terminated[slot]
                continue
            reason = "not 0 and 1" if mask.max() > 1 else "which allows nothing: allow one choice"
            text = f"{ACTION_MASK}: {source} returned {mask.tolist()!s:.80}, {reason}"
            raise invalid(text, slot)
        simulator.action_masks[rows] = pack_masks(self._allowed[rows])
