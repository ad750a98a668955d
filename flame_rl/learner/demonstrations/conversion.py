"""Demonstrations as files have them, in the environment's terms, to recorded episodes, and back.

A file has arrays by name, of N steps in E episodes, one after another:

    observations    [N + E, ...]  an episode of T steps has T + 1, the one after its last step too;
                                  of several inputs, an array of each under its column's name
    actions         [N, ...]      as `env.step` takes them
    rewards         [N]           or [N, K], where the environment's reward is a vector
    terminations    [N]           whether the environment ended the episode with the step
    truncations     [N]           whether a limit cut the episode after the step; or in its place
    lengths         [E]           steps of each episode
    action_masks    [N + E, A]    where the environment has masks: which choices are allowed
    reward_parts    [N, P]        where --reward-parts names numbers of `info`
"""

from collections.abc import Iterable

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.actor.environments.converting import action_converter, has_bounds, write_observation
from flame_rl.learner.training.frames import step_rows
from flame_rl.system.errors import UsageError
from flame_rl.wire import inputs
from flame_rl.wire.masks import ACTION_MASKS, pack_masks
from flame_rl.wire.messages import EnvironmentSpec, Episodes
from flame_rl.wire.spaces import choices_of

_Arrays = dict[str, np.ndarray]

REWARD_PARTS = "reward_parts"
# Of bounds, relative to their distance: files may have rounded them.
_ROUNDING = 1e-4


def episodes_of(arrays: _Arrays, spec: EnvironmentSpec, parts: int = 0) -> Episodes:
    """The episodes of a file's arrays, of whatever types and shapes, with P `parts`; see above.
    Raises UsageError if an array is missing or wrong; the text begins with its name."""
    columns = inputs.observation_columns(spec.observation_space)
    known = {"actions", "rewards", ACTION_MASKS, REWARD_PARTS, *(each.name for each in columns)}
    known |= {"terminations", "truncations", "lengths"}
    if unknown := arrays.keys() - known:
        raise UsageError(
            f"{min(unknown):.40}: no array of demonstrations, which have "
            f"{', '.join(sorted(known)):.200}; leave it out"
        )
    steps = len(_numbers(arrays, "rewards"))
    if not steps:
        raise UsageError("rewards: no step; record at least one episode")
    rewards = _numbers(arrays, "rewards", steps, *spec.reward_shape)
    lengths, terminated = _ends(arrays, steps)
    rows = steps + len(lengths)
    found: _Arrays = _observations(arrays, spec.observation_space, rows)
    actions = _numbers(arrays, "actions", steps, *spec.action_space.shape)
    found["actions"] = actions_from_environment(spec.action_space, actions)
    found["rewards"] = rewards.astype(np.float64)
    if parts:
        found[REWARD_PARTS] = _numbers(arrays, REWARD_PARTS, steps, parts).astype(np.float64)
    if spec.masked and ACTION_MASKS in arrays:
        allowed = _flags(arrays, ACTION_MASKS, rows, spec.action_dim)
        _refuse_forbidden(spec, found["actions"], allowed[step_rows(lengths)])
        found[ACTION_MASKS] = pack_masks(allowed)
    return Episodes(np.arange(len(lengths)), lengths, terminated, ~terminated, found)


def arrays_of(episodes: Episodes, spec: EnvironmentSpec) -> _Arrays:
    """The inverse of `episodes_of`, for episodes as actors record them; outcomes are left out."""
    last = np.cumsum(episodes.lengths) - 1
    ends = {name: np.zeros(episodes.steps, bool) for name in ("terminations", "truncations")}
    ends["terminations"][last] = episodes.terminated
    # Both may hold of a last step.
    ends["truncations"][last] = episodes.truncated & ~episodes.terminated
    arrays = {n: a for n, a in episodes.columns.items() if n.startswith(inputs.OBSERVATIONS)}
    taken = action_converter(spec.action_space)(episodes.actions)
    arrays |= {"actions": np.stack(taken), "rewards": episodes.rewards, **ends}
    if ACTION_MASKS in episodes.columns:
        bits = np.unpackbits(episodes.columns[ACTION_MASKS], axis=-1, count=spec.action_dim)
        arrays[ACTION_MASKS] = bits.astype(bool)
    if REWARD_PARTS in episodes.columns:
        arrays[REWARD_PARTS] = episodes.columns[REWARD_PARTS]
    return arrays


def flattened(space: gymnasium.Space, observations: Iterable[object]) -> _Arrays:
    """Observations as an environment returns them, as the columns that actors record. Raises
    UsageError if one is not in the space."""
    parts = inputs.observation_parts(space)
    rows = []
    for observation in observations:
        rows.append(np.zeros(parts[-1].stop, inputs.observation_dtype(space)))
        try:
            write_observation(parts, observation, rows[-1])
        except ValueError as error:
            raise UsageError(f"observations: row {len(rows) - 1}: {error}") from error
    beside = np.stack(rows)
    return {
        each.name: np.ascontiguousarray(beside[:, each.start : each.stop]).astype(each.dtype)
        for each in inputs.observation_inputs(space)
    }


def actions_from_environment(space: gymnasium.Space, actions: np.ndarray) -> np.ndarray:
    """Actions of a space, [N, ...], as actors record them: the inverse of
    `flame_rl.actor.environments.converting.action_converter`. Raises UsageError if they are not."""
    if isinstance(space, spaces.Box):
        return _scaled(space, actions.reshape(len(actions), -1).astype(np.float64))
    if actions.dtype.kind == "f":
        raise UsageError(f"actions: {actions.dtype}, and integers are expected: {space!s:.100}")
    chosen = actions.astype(np.int64) - getattr(space, "start", 0)
    flat = chosen.reshape(len(actions), -1)
    wrong = ((flat < 0) | (flat >= choices_of(space))).any(axis=1)
    if wrong.any():
        step = int(np.argmax(wrong))
        raise UsageError(f"actions: {actions[step]!s:.80} of step {step} is not in {space!s:.100}")
    return (chosen if isinstance(space, spaces.Discrete) else flat).astype(np.int32)


def _scaled(space: spaces.Box, actions: np.ndarray) -> np.ndarray:
    low, high = (each.ravel().astype(np.float64) for each in (space.low, space.high))
    bounded = has_bounds(space)
    room = _ROUNDING * np.where(bounded, high - low, 1.0)
    outside = (actions < low - room) | (actions > high + room)
    if outside.any():
        step, number = (int(place[0]) for place in np.nonzero(outside))
        raise UsageError(
            f"actions: {actions[step, number]:.6g} of step {step} is outside of {low[number]:.6g} "
            f"to {high[number]:.6g}; give them as env.step takes them, clipped to their bounds"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        middle, half = (low + high) / 2, (high - low) / 2
        # A number whose bounds are the same has no other value.
        own = (actions - middle) / np.where(half > 0, half, 1.0)
    return np.where(bounded, np.clip(own, -1, 1), actions).astype(np.float32)


def _observations(arrays: _Arrays, space: gymnasium.Space, rows: int) -> _Arrays:
    found = {}
    for column, each in zip(
        inputs.observation_columns(space), inputs.observation_inputs(space), strict=True
    ):
        array = _numbers(arrays, column.name)
        own = space if column.name == inputs.OBSERVATIONS else each.space
        as_returned = own is not None and array.shape[1:] == (own.shape or ())
        if as_returned and not isinstance(own, spaces.Dict | spaces.Tuple):
            if not isinstance(own, spaces.Box) or inputs.is_channels_first(own):
                # Of the space alone, whose only input it is.
                (array,) = flattened(own, array).values()
            array = array.reshape(len(array), -1)
        if array.shape != (rows, *column.shape):
            raise UsageError(
                f"{column.name}: shape {array.shape}, and {(rows, *column.shape)} is expected, of "
                f"{space if own is None else own!s:.100}; an episode of T steps has T + 1 rows"
            )
        with np.errstate(invalid="ignore"):
            found[column.name] = np.ascontiguousarray(array.astype(column.dtype))
        if column.dtype == "uint8" and (found[column.name] != array).any():
            raise UsageError(f"{column.name}: not integers from 0 to 255, of {own!s:.100}")
    return found


def _ends(arrays: _Arrays, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths, int64 [E], and which episodes terminated, bool [E]."""
    terminations = ends = _flags(arrays, "terminations", steps)
    if cut := "truncations" in arrays:
        ends = ends | _flags(arrays, "truncations", steps)
    last = np.flatnonzero(ends)
    if "lengths" in arrays:
        lengths = _numbers(arrays, "lengths")
        counts = lengths.dtype.kind in "iu" and lengths.ndim == 1 and lengths.size > 0
        # Each first, because a sum of large ones wraps around.
        if not counts or lengths.min() < 1 or lengths.max() > steps or lengths.sum() != steps:
            raise UsageError(f"lengths: not the numbers of steps of episodes; they sum to {steps}")
        last = np.cumsum(lengths.astype(np.int64)) - 1
        if np.delete(ends, last).any() or (cut and not ends[last].all()):
            raise UsageError(
                "lengths: the episodes end elsewhere than by terminations and truncations; "
                "correct them"
            )
    elif not cut or not ends[-1]:
        raise UsageError("truncations: missing, or the last step ends no episode; give lengths")
    return np.diff(last, prepend=-1), terminations[last]


def _refuse_forbidden(spec: EnvironmentSpec, actions: np.ndarray, allowed: np.ndarray) -> None:
    """Raise UsageError if a mask forbids the action that was taken, or all actions."""
    choices = np.array(spec.choices)
    taken = actions.reshape(len(actions), -1) + np.cumsum(choices) - choices
    wrong = ~np.take_along_axis(allowed, taken, axis=1).all(axis=1)
    if wrong.any():
        raise UsageError(
            f"{ACTION_MASKS}: the action of step {int(np.argmax(wrong))} is one that its mask "
            "forbids; a mask belongs to the observation before the action"
        )


def _numbers(arrays: _Arrays, name: str, *shape: int) -> np.ndarray:
    """The array of that name, of finite numbers that float32 holds, and of that shape, if any."""
    if name not in arrays:
        raise UsageError(f"{name}: missing; docs/demonstrations.md says what a file has")
    array = np.asarray(arrays[name])
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise UsageError(f"{name}: {array.dtype} {array.shape}, and numbers are expected")
    if shape and array.shape != shape:
        raise UsageError(f"{name}: shape {array.shape}, and {shape} is expected")
    with np.errstate(over="ignore"):
        finite = np.isfinite(array.astype(np.float32)) if array.dtype.kind == "f" else np.True_
    if not finite.all():
        row = int(np.argmin(finite.reshape(len(array), -1).all(axis=1)))
        raise UsageError(f"{name}: NaN, infinity or beyond float32 in row {row}; leave it out")
    return array


def _flags(arrays: _Arrays, name: str, *shape: int) -> np.ndarray:
    """The array of that name and shape, bool."""
    array = _numbers(arrays, name, *shape)
    if not ((array == 0) | (array == 1)).all():
        raise UsageError(f"{name}: numbers other than 0 and 1, where yes or no is expected")
    return array.astype(bool)
