"""Simulators: several episodes side by side, stepped together, written into shared arrays.

`PlainSimulator` holds one Gymnasium environment per slot and works for any of them. Simulators are
not trusted: what they return is checked here, and whatever is wrong raises `SimulatorError`.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from typing import Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.messages import EnvironmentSpec, FailureKind

# One forward pass serves all slots; more of them, and the environments leave the processor's cache.
PLAIN_SLOTS = 32


class Simulator(Protocol):
    """Episodes side by side, each in a slot of its own. The arrays stay the same objects.

    Attributes:
        slots: W, a multiple of policy.ROW_BLOCK.
        observations: float32 [W, D], what each slot shows now.
        rewards: float64 [W], of the slot's last step.
        terminated, truncated: bool [W], after the slot's last step.
    """

    slots: int
    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    def expect(self, seeds: np.ndarray) -> None:
        """Told the seeds of all resets that will follow, int [n], to prepare them together."""
        ...

    def reset(self, slots: np.ndarray, seeds: np.ndarray) -> None:
        """Begin an episode in each of `slots`, determined by its seed.

        Args:
            slots: int [n], ascending.
            seeds: int [n].

        Raises:
            SimulatorError: so does `step`.
        """
        ...

    def step(self, actions: np.ndarray, slots: np.ndarray) -> None:
        """One step in each of `slots`; the rest stays as it is.

        Args:
            actions: float32 [at least the highest slot + 1, A], clipped to the bounds here, or
                int32 [as many]; only the rows of `slots` count.
            slots: int [n], ascending: those with a running episode.
        """
        ...

    def close(self) -> None: ...


def rows_of(slots: np.ndarray) -> slice | np.ndarray:
    """An index of the same rows; where they are neighbours a slice, which copies nothing.

    Args:
        slots: int [n], ascending.
    """
    if len(slots) == 0:
        return slice(0, 0)
    first, last = int(slots[0]), int(slots[-1])
    return slice(first, last + 1) if last - first + 1 == len(slots) else slots


class SimulatorError(Exception):
    """A simulator did what it must not.

    Attributes:
        kind: as in `CollectFailure`.
        slot: which slot is to blame; None where no episode runs yet.
        cause: the simulator's own traceback, or "".
    """

    def __init__(
        self, kind: FailureKind, message: str, slot: int | None = None, cause: str = ""
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.slot = slot
        self.cause = cause


def make_environment(
    env_id: str, max_episode_steps: int | None, render_mode: str | None = None
) -> gymnasium.Env:
    """A Gymnasium environment whose spaces can be learned.

    Args:
        env_id: a registered id, or `module:Name-v0`, which imports `module` first.
        max_episode_steps: a time limit that replaces the registered one, or None.
        render_mode: Gymnasium's, for those that look at it.

    Raises:
        SimulatorError: of kind "environment".
    """
    try:
        with _quiet_about_own_models(env_id):
            env = gymnasium.make(
                env_id,
                max_episode_steps=max_episode_steps,
                disable_env_checker=True,
                # Not every environment of a user's own has such a parameter.
                **({} if render_mode is None else {"render_mode": render_mode}),
            )
    except Exception as error:
        raise _explain(env_id, error) from error
    _check_spaces(env_id, env)
    return env


def describe_environment(env_id: str, max_episode_steps: int | None) -> EnvironmentSpec:
    """Read the dimensions and the kind of action from the environment's spaces."""
    env = make_environment(env_id, max_episode_steps)
    try:
        space = env.action_space
        continuous = isinstance(space, spaces.Box)
        return EnvironmentSpec(
            env_id=env_id,
            observation_dim=spaces.flatdim(env.observation_space),
            action_dim=int(np.prod(space.shape)) if continuous else int(space.n),
            continuous=continuous,
        )
    finally:
        env.close()


class PlainSimulator:
    """A Gymnasium environment per slot, one step at a time. See `Simulator`."""

    def __init__(
        self, env_id: str, max_episode_steps: int | None, render_mode: str | None = None
    ) -> None:
        self.slots = PLAIN_SLOTS
        self._make = lambda: make_environment(env_id, max_episode_steps, render_mode)
        self._envs = [self._make()]
        self._observation_space = self._envs[0].observation_space
        self._action_space = self._envs[0].action_space
        self._bounds: tuple[np.ndarray, np.ndarray] | None = None
        if isinstance(self._action_space, spaces.Box):
            self._bounds = self._action_space.low.ravel(), self._action_space.high.ravel()
        self.observations = np.zeros((self.slots, spaces.flatdim(self._observation_space)), "f4")
        self.rewards = np.zeros(self.slots, np.float64)
        self.terminated = np.zeros(self.slots, bool)
        self.truncated = np.zeros(self.slots, bool)
        # float64, of which the infinite and the merely large are told apart, is turned to float32
        # for all slots together: one by one takes a tenth of a fast environment's step.
        self._raw = self.observations
        if self._observation_space.dtype == np.float64:
            self._raw = np.zeros(self.observations.shape, np.float64)
        shape = self._observation_space.shape or self._raw.shape[1:]
        self._raw_by_shape = self._raw.reshape(self.slots, *shape)

    def expect(self, seeds: np.ndarray) -> None:
        pass

    def reset(self, slots: np.ndarray, seeds: np.ndarray) -> None:
        for slot, seed in zip(slots.tolist(), seeds.tolist(), strict=True):
            while len(self._envs) <= slot:
                self._envs.append(self._make())
            try:
                observation, _ = self._envs[slot].reset(seed=seed)
            except Exception as error:
                raise SimulatorError(
                    "simulator", f"reset raised {_summary(error)}", slot, traceback.format_exc()
                ) from error
            self._write_observation(slot, observation, "reset")
        self._convert(slots)

    def step(self, actions: np.ndarray, slots: np.ndarray) -> None:
        space = self._action_space
        if self._bounds is not None:
            low, high = self._bounds
            # np.clip takes several times as long on so few numbers.
            batch = np.minimum(np.maximum(actions, low), high)
            chosen = batch.reshape(-1, *space.shape).astype(space.dtype, copy=False)
        else:
            chosen = (actions + space.start).tolist()
        rows = rows_of(slots)
        self.terminated[rows] = False
        self.truncated[rows] = False
        promised, raw, rewards = self._observation_space, self._raw_by_shape, self.rewards
        dtype, shape = promised.dtype, promised.shape
        usual = isinstance(promised, spaces.Box)
        envs = self._envs
        for slot in slots.tolist():
            try:
                observation, reward, terminated, truncated, _ = envs[slot].step(chosen[slot])
            except Exception as error:
                raise SimulatorError(
                    "simulator", f"step raised {_summary(error)}", slot, traceback.format_exc()
                ) from error
            if (
                usual
                and type(observation) is np.ndarray
                and observation.dtype is dtype
                and observation.shape == shape
            ):
                raw[slot] = observation
            else:
                self._write_observation(slot, observation, "step")
            if isinstance(reward, float) and terminated is False and truncated is False:
                rewards[slot] = reward
            else:
                self._write_outcome(slot, reward, terminated, truncated)
        self._convert(slots)

    @property
    def first(self) -> gymnasium.Env:
        """The environment in slot 0, to look at."""
        return self._envs[0]

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _write_observation(self, slot: int, observation: object, source: str) -> None:
        space = self._observation_space
        try:
            array = np.asarray(observation)
            if array.shape != space.shape:
                raise SimulatorError(
                    "invalid",
                    f"observation: {source} returned shape {array.shape} where the observation "
                    f"space promises {space.shape}",
                    slot,
                )
            if array.dtype.kind not in "biuf":
                raise TypeError(f"{array.dtype} instead of numbers")
            if isinstance(space, spaces.Discrete):
                array = spaces.flatten(space, array)  # one-hot
            with np.errstate(over="ignore"):
                self._raw[slot] = array.ravel()
        except (TypeError, ValueError, IndexError) as error:
            raise SimulatorError(
                "invalid", f"observation: {source} returned {observation!r:.80}: {error}", slot
            ) from error

    def _write_outcome(
        self, slot: int, reward: object, terminated: object, truncated: object
    ) -> None:
        try:
            if np.asarray(reward).dtype.kind not in "biuf":
                raise TypeError
            self.rewards[slot] = reward
            self.terminated[slot] = terminated
            self.truncated[slot] = truncated
        except (TypeError, ValueError) as error:
            returned = f"{reward!r:.60}, {terminated!r:.60}, {truncated!r:.60}"
            raise SimulatorError(
                "invalid", f"reward, terminated, truncated: step returned {returned}", slot
            ) from error

    def _convert(self, slots: np.ndarray) -> None:
        if self._raw is self.observations:
            return
        rows = rows_of(slots)
        # A value beyond float32 becomes infinite here and is reported as such later.
        with np.errstate(over="ignore"):
            self.observations[rows] = self._raw[rows]


def _check_spaces(env_id: str, env: gymnasium.Env) -> None:
    observation, action = env.observation_space, env.action_space
    number = (
        isinstance(observation, spaces.Box)
        and observation.dtype.kind in "fiu"
        and 0 not in observation.shape
    )
    if not (number or isinstance(observation, spaces.Discrete)):
        raise SimulatorError(
            "environment",
            f"the observation space of {env_id} cannot be learned from: {observation}; "
            "a Box of numbers or a Discrete can (a wrapper of gymnasium.wrappers may make one)",
        )
    if isinstance(action, spaces.Box) and action.dtype.kind == "f" and 0 not in action.shape:
        return
    if not isinstance(action, spaces.Discrete):
        raise SimulatorError(
            "environment",
            f"the action space of {env_id} cannot be learned: {action}; "
            "a Discrete or a Box of real numbers can",
        )


def _summary(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _explain(env_id: str, error: Exception) -> SimulatorError:
    """Turn what `gymnasium.make` raised into one sentence with a remedy."""
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        return SimulatorError(
            "environment",
            f"{env_id} needs a package that is not installed: {error} "
            "(with uv: `uv add` in place of `pip install`)",
        )
    if isinstance(error, gymnasium.error.Error):
        name = (env_id.partition(":")[2] or env_id).lower()
        # Ids by their lower-case name without version; of several versions the newest stays.
        known = {known.lower().rpartition("-v")[0]: known for known in gymnasium.registry}
        near = difflib.get_close_matches(name.partition("-v")[0], known, n=4)
        hint = f"; nearest names: {', '.join(known[n] for n in near)}" if near else ""
        return SimulatorError("environment", f"unknown environment {env_id}: {error}{hint}")
    module = env_id.rpartition(":")[0].partition(".")[0]
    if isinstance(error, ImportError) and not module:
        return SimulatorError(
            "environment",
            f"{env_id} needs a package that is not installed: {error} (with uv: `uv add PACKAGE`)",
        )
    if module and importlib.util.find_spec(module) is None:
        return SimulatorError(
            "environment",
            f"module {module!r} of environment {env_id} is not found; it must lie in the folder of "
            "main.py, on PYTHONPATH, or be installed",
        )
    return SimulatorError(
        "environment",
        f"environment {env_id} cannot be made: {_summary(error)}",
        cause="".join(traceback.format_exception(error)),
    )


@contextlib.contextmanager
def _quiet_about_own_models(env_id: str) -> Iterator[None]:
    """MuJoCo's deprecation warnings about Gymnasium's own model files are nobody's to act on.

    Other warnings, and those about a user's model, go to standard error, also after the block: with
    a handler installed, MuJoCo writes no MUJOCO_LOG.TXT into the working directory.
    """
    spec = gymnasium.registry.get(env_id)
    entry_point = str(getattr(spec, "entry_point", ""))
    if not (entry_point.startswith("gymnasium.envs.mujoco") or ":" in env_id):
        yield
        return
    try:
        import mujoco
    except ImportError:  # gymnasium.make explains it better
        yield
        return
    making_own = entry_point.startswith("gymnasium.")

    def warn(message: str) -> None:
        if not (making_own and "deprecated" in message):
            print(f"MuJoCo: {message}", file=sys.stderr)

    mujoco.set_mju_user_warning(warn)
    yield
    making_own = False
