"""Masks of allowed actions, as environments return them: Gymnasium's in `info["action_mask"]`, as
`Space.sample(mask)` takes them; PettingZoo's in an observation that is a dictionary of
"observation" and "action_mask". `MaskInInfo` finds those that are elsewhere."""

import contextlib
import inspect
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.actor.failure import unusable
from flame_rl.wire.inputs import keys_alone, why_no_keys
from flame_rl.wire.messages import Environment, MaskSource
from flame_rl.wire.spaces import choices_of

ACTION_MASK = "action_mask"
OBSERVATION = "observation"
_METHOD = "action_masks"


def masked_choices(environment: Environment, action: gymnasium.Space) -> tuple[int, ...]:
    """The number of choices of each factor of an action; none where no masks are read."""
    return choices_of(action) if environment.action_mask else ()


def beside_mask(
    environment: Environment, observation: gymnasium.Space, action: gymnasium.Space
) -> tuple[gymnasium.Space, MaskSource | None]:
    """The space of what is observed, without a mask and without keys that `Environment.observe`
    does not name, and where masks are; None: the first reset will tell. Raises SimulatorError."""
    found: MaskSource | None = None
    if not masked_choices(environment, action):
        found = "none"
    elif isinstance(observation, spaces.Dict) and {*observation} == {OBSERVATION, ACTION_MASK}:
        observation, found = observation[OBSERVATION], "observation"
    if keys := environment.observe:
        if why := why_no_keys(environment.env_id, observation, keys):
            raise unusable(f"--observe: {why}")
        observation, _ = keys_alone(observation, keys)
    return observation, found


class MaskInInfo(gymnasium.Wrapper):
    """Puts the mask that is observed or that a method returns into `info["action_mask"]`."""

    def __init__(self, env: gymnasium.Env, key: str | None) -> None:
        """`key` is the mask's in the observation; None: the method's mask is taken."""
        super().__init__(env)
        self._key = key
        if key is not None:
            parts = env.observation_space.spaces.items()
            self.observation_space = spaces.Dict([(name, p) for name, p in parts if name != key])

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        return observation, self._with_mask(observation, info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not terminated:
            info = self._with_mask(observation, info)
        return observation, reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        if self._key is None:
            return {ACTION_MASK: self.get_wrapper_attr(_METHOD)()} | info
        return {ACTION_MASK: observation[self._key]} | info


def with_masks(environment: Environment, env: gymnasium.Env) -> gymnasium.Env:
    """The environment, within `MaskInInfo` where it has masks that are nowhere else: under
    "action_mask" beside any other keys of what is observed, under "mask" beside "obs" alone, as
    Tianshou's, or as its method `action_masks()`, as those of sb3-contrib's MaskablePPO."""
    choices = masked_choices(environment, env.action_space)
    keys = {*env.observation_space} if isinstance(env.observation_space, spaces.Dict) else set()
    if not choices or keys == {OBSERVATION, ACTION_MASK}:
        return env
    key = "mask" if keys == {"mask", "obs"} else ACTION_MASK
    if key in keys and len(keys) > 1 and is_mask(env.observation_space[key], choices):
        return MaskInInfo(env, key)
    method = env.get_wrapper_attr(_METHOD) if env.has_wrapper_attr(_METHOD) else None
    with contextlib.suppress(TypeError, ValueError):  # it is no function, or needs arguments
        inspect.signature(method).bind()
        return MaskInInfo(env, None)
    return env


def is_mask(space: gymnasium.Space, choices: tuple[int, ...]) -> bool:
    """Whether the space has a number for each choice."""
    is_flat = isinstance(space, spaces.Box | spaces.MultiBinary)
    return is_flat and np.prod(space.shape) == sum(choices)


def allowed_choices(space: gymnasium.Space, mask: object) -> np.ndarray:
    """What a mask of actions in `space` allows, uint8 [A], one factor after another. A mask has 0
    or 1 for each choice, in one array or in nested tuples of them; of MultiBinary it may also have
    one number for each bit: the only value that is allowed, or 2 for both. Raises ValueError, whose
    text says what is expected, for another form."""
    parts = [np.asarray(part).ravel() for part in _flat(mask)]
    counts = list(choices_of(space))
    lengths = [part.size for part in parts]
    if isinstance(space, spaces.MultiBinary) and lengths == [len(counts)]:
        bits = _numbers(parts, 2)
        return np.stack([bits != 1, bits != 0], axis=1).astype(np.uint8).ravel()
    if lengths not in ([sum(counts)], counts):
        raise ValueError(f"{mask!r:.80} where {sum(counts)} numbers are expected, one a choice")
    return _numbers(parts, 1).astype(np.uint8)


def first_choices(space: gymnasium.Space) -> np.ndarray:
    """The place of each factor's first choice among all choices, int64 [F]."""
    choices = np.array(choices_of(space), np.int64)
    return np.cumsum(choices) - choices


def allows_something(allowed: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Whether each factor has a choice, bool [...], of `allowed_choices` and `first_choices`."""
    return np.logical_or.reduceat(allowed, first, axis=-1).all(axis=-1)


def _flat(mask: object) -> list[object]:
    """The arrays, or tuples of numbers, in nested tuples."""
    if isinstance(mask, tuple) and any(isinstance(p, tuple | list | np.ndarray) for p in mask):
        return [each for part in mask for each in _flat(part)]
    return [mask]


def _numbers(parts: list[np.ndarray], greatest: int) -> np.ndarray:
    numbers = np.concatenate(parts)
    if numbers.dtype.kind not in "biuf" or not np.isin(numbers, np.arange(greatest + 1)).all():
        raise ValueError(f"{numbers!r:.80} where integers from 0 to {greatest} are expected")
    return numbers
