"""Making a Gymnasium environment, and saying why it cannot be made."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import sys
import traceback
from collections.abc import Iterator

import gymnasium
import numpy as np
from gymnasium import spaces

from flame_rl.actor.failure import SimulatorError, summary
from flame_rl.wire.messages import EnvironmentSpec


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
        f"environment {env_id} cannot be made: {summary(error)}",
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
