"""Making a Gymnasium environment, and saying why it cannot be made."""

import contextlib
import ctypes
import difflib
import importlib
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

from flame_rl.actor.environments import wrapping
from flame_rl.actor.environments.masks import beside_mask, with_masks
from flame_rl.actor.failure import SimulatorError, of_another_api, summary, traceback_of, unusable
from flame_rl.wire.inputs import LEAVES, observation_parts
from flame_rl.wire.messages import CollectFailure, Environment, EnvironmentSpec
from flame_rl.wire.spaces import MAX_NUMBERS

DEFAULT_LIMIT = 1000  # steps after which an episode is cut where nobody has set a limit
_UNKNOWN = "unknown environment"
# The dependency groups that install what environments import, by the names of modules.
GROUPS = {"Box2D": "box2d", "ale_py": "atari", "cv2": "atari", "minatar": "minatar"}
GROUPS |= dict.fromkeys(("mpe2", "pettingzoo", "pymunk", "supersuit"), "agents")
GROUPS |= {"pygame": "video"}
# The modules that register the environments of these namespaces, which groups install.
_NAMESPACES = {"ALE": "ale_py", "MinAtar": "minatar.gym"}


class DefaultTimeLimit(TimeLimit):
    """The time limit of an environment that has none of its own."""


def make_environment(environment: Environment, render_mode: str | None = None) -> gymnasium.Env:
    """A Gymnasium environment within its wrappers. Raises SimulatorError of kind "environment"."""
    env_id = environment.env_id
    try:
        spec = import_class(env_id)
        with quiet_about_own_models(spec):
            env = gymnasium.make(
                # Gymnasium's search for a newer version fails where another thread registers.
                spec or env_id,
                max_episode_steps=environment.max_episode_steps or None,
                disable_env_checker=True,
                **wrapping.constructor_arguments(environment, render_mode),
            )
    except (Exception, SystemExit) as error:
        raise _explain(env_id, error) from error
    env = wrapping.wrapped(environment, env, gymnasium.Env)
    for name in ("observation_space", "action_space"):
        if getattr(env, name, None) is None:
            raise unusable(f"{env_id} has no {name}; set it in __init__, or in the class")
    env = with_masks(environment, env)
    if environment.max_episode_steps is None and _time_limit(env) is None:
        return DefaultTimeLimit(env, DEFAULT_LIMIT)
    return env


def import_class(env_id: str) -> EnvSpec | None:
    """Import the modules that register an environment and have its class; returns its entry. Where
    no import does, call what the package names among Gymnasium's entry points, as MinAtar does."""
    module, colon, name = env_id.rpartition(":")
    if colon:
        importlib.import_module(module)
    # Gymnasium explains a name that is known in another version.
    if colon and _stem(name) not in map(_stem, [*gymnasium.registry]):
        groups = metadata.entry_points()
        # The group's name may be followed by a namespace.
        for group in sorted(g for g in groups.groups if f"{g}.".startswith("gymnasium.envs.")):
            for entry in groups.select(group=group):
                if entry.attr and f"{entry.module}.".startswith(f"{module}."):
                    entry.load()()
    spec = gymnasium.registry.get(name)
    if spec is not None and (module := _module_of(spec)):
        importlib.import_module(module)
    return spec


def import_environment(environment: Environment) -> None:
    """Import what makes an environment, as far as that goes: making it says what is wrong."""
    with contextlib.suppress(Exception, SystemExit):
        for wrapper in environment.wrapper:
            wrapping.import_named("--wrapper", wrapper)
    with contextlib.suppress(Exception, SystemExit):
        if import_class(environment.env_id) is None:
            importlib.import_module(environment.env_id)


def describe_environment(environment: Environment, env: gymnasium.Env) -> EnvironmentSpec:
    """The spec of an environment that `make_environment` made; masks in `info` only its first reset
    shows. Raises SimulatorError of kind "environment" for spaces that cannot be learned."""
    env_id = environment.env_id
    if environment.agent_number:
        raise unusable(f"--agent-number: {env_id} is an environment of one agent, which has none")
    space, masks = beside_mask(environment, env.observation_space, env.action_space)
    check_spaces(env_id, space, env.action_space)
    return EnvironmentSpec(
        env_id,
        space,
        env.action_space,
        time_limit=_time_limit(env),
        limited_by_default=isinstance(env, DefaultTimeLimit),
        reward_shape=_reward_shape(env),
        action_mask=masks or "none",
        renders=can_be_drawn(env),
    )


def can_be_drawn(env: object) -> bool:
    """Whether the environment's metadata name a window, or pictures, as ways to draw it."""
    metadata = getattr(env, "metadata", None) or {}
    return bool({"human", "rgb_array"} & set(metadata.get("render_modes") or ()))


def _reward_shape(env: gymnasium.Env) -> tuple[int, ...]:
    """() where a reward is one number; (K,) where the environment's `reward_space` is a Box of that
    shape, as in MO-Gymnasium. Raises SimulatorError of kind "environment" for another Box."""
    space = env.get_wrapper_attr("reward_space") if env.has_wrapper_attr("reward_space") else None
    if not isinstance(space, spaces.Box):
        return ()
    if len(space.shape) > 1 or 0 in space.shape:
        raise unusable(f"the reward space of {env.spec.id} is no Box of shape (K,): {space!s:.500}")
    return space.shape


def _time_limit(env: gymnasium.Env) -> int | None:
    """The least of the environment's time limits: its own code may have added one already."""
    limited = (layer for layer in wrapping.wrappers_of(env) if isinstance(layer, TimeLimit))
    return min((layer._max_episode_steps for layer in limited), default=None)


def check_spaces(env_id: str, observation: gymnasium.Space, action: gymnasium.Space) -> None:
    """Raise SimulatorError of kind "environment" for spaces that cannot be learned."""
    parts = observation_parts(observation)
    wrong = [(part, why) for part in parts if (why := _why_not_learned(part.space, "fiub"))]
    if wrong or not parts:
        where = f"observation{wrong[0][0].name}: {wrong[0][1]}" if wrong else "it is empty"
        refused = {part.path[:1] for part, _ in wrong}
        is_dict = isinstance(observation, spaces.Dict)
        keys = [key for key in observation.spaces if (key,) not in refused] if is_dict else []
        without = f"--observe {' '.join(map(str, keys))} leaves it out, and " if keys else ""
        raise unusable(
            f"the observation space of {env_id} cannot be learned from: {where}, in "
            f"{observation!s:.500}; {without}a wrapper may make a Box, Discrete, MultiDiscrete or "
            "MultiBinary, or a Dict or Tuple: --wrapper gymnasium.wrappers:FlattenObservation"
        )
    if why := _why_not_learned(action, "f"):
        made = "function, space"
        if isinstance(action, spaces.Tuple) and all(isinstance(s, spaces.Discrete) for s in action):
            made = f"tuple, MultiDiscrete({[int(each.n) for each in action]})"
        raise unusable(
            f"the action space of {env_id} cannot be learned: {action!s:.500}: {why}; "
            "Discrete, MultiDiscrete, MultiBinary or a Box of real numbers can: a --wrapper of "
            f"your own makes one by gymnasium.wrappers.TransformAction(env, {made})"
        )


def _why_not_learned(space: gymnasium.Space, box_kinds: str) -> str | None:
    if not isinstance(space, LEAVES):
        return f"a space of the kind {type(space).__name__}"
    if isinstance(space, spaces.Box) and space.dtype.kind not in box_kinds:
        return f"a Box of {space.dtype} (MultiDiscrete has integers)"
    if (count := spaces.flatdim(space)) > MAX_NUMBERS:
        return f"{count:,} numbers or choices, and at most {MAX_NUMBERS:,} can be"
    return None if count else f"{space} has no numbers"


def _explain(env_id: str, error: BaseException) -> SimulatorError:
    """What `gymnasium.make` raised, as one sentence with a remedy."""
    module, _, name = env_id.rpartition(":")
    if (module or env_id).endswith(".py"):
        dotted = ".".join(Path(module or env_id).with_suffix("").parts).lstrip("/.")
        named = f"{dotted}:{name if module else 'Mine-v0'}"
        return unusable(f"--env: {env_id}: name the module without .py: {named}")
    if isinstance(error, TypeError) and "gymnasium.Env" in str(error):
        return of_another_api(f"{env_id}: {summary(error)}")
    if _absent_module(error) is not None:
        return cannot_be_made(env_id, error)
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        return unusable(f"{env_id} needs a package that is not installed: {error}")
    registering = _NAMESPACES.get(env_id.partition("/")[0])
    if isinstance(error, gymnasium.error.NamespaceNotFound) and registering is not None:
        package = registering.partition(".")[0]
        return unusable(
            f"{env_id} needs the package {package}, which is not imported: `uv run --group "
            f"{GROUPS[package]} main.py --env {registering}:{env_id} …` installs and imports it; "
            f"with flame-rl, `pip install 'flame-rl[{GROUPS[package]}]'` does before"
        )
    if isinstance(error, gymnasium.error.Error):
        hint = (
            "one of a package, or of your own, is named with the module that registers it, as in "
            "minigrid:MiniGrid-Empty-5x5-v0 (`uv run --with PACKAGE main.py …`)"
        )
        if module:
            registers = [each for each in dir(sys.modules.get(module)) if "register" in each]
            called = f"{module}.{registers[0]}()" if registers else "one"
            hint = (
                f"the import of {module} does not register it: where a function does, call "
                f"{called} in a module of your own, my_env.py, and name that one: my_env:{name}"
            )
        near = _nearest(name, [*gymnasium.registry])
        return unusable(f"{_UNKNOWN} {env_id}: {error}; {near or hint}")
    return cannot_be_made(env_id, error)


def _stem(name: str) -> str:
    """An id, or the name of a module, without its version."""
    return re.sub(r"[-_]v\d+$", "", name)


def _nearest(name: str, names: list[str]) -> str:
    """Those of these names that are like this one, as a hint; or ""."""
    # By their lower-case stems; of several versions the newest, which comes last, stays.
    known = {_stem(each.lower()): each for each in names}
    near = difflib.get_close_matches(_stem(name.lower()), known, n=4)
    return f"nearest names: {', '.join(known[each] for each in near)}" if near else ""


def _module_of(spec: EnvSpec) -> str:
    """The module of the class or function that makes an environment."""
    entry = spec.entry_point
    return entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")


def known_here_alone(failure: CollectFailure) -> str:
    """What to add to a worker's failure to find an environment that this process knows; or ""."""
    spec = gymnasium.registry.get(failure.env_id)
    if spec is None or not failure.message.startswith(_UNKNOWN):
        return ""
    module = _module_of(spec)
    remedy = f"name the module that registers it, too: {module}:{spec.id}"
    if module == "__main__":
        remedy = f"put it into a module of its own, my_env.py, and name it my_env:{spec.id}"
    here = "collect in this process (--local --workers 0)"
    return f". It is registered in this process alone; {remedy}. Or {here}"


def _absent_module(error: BaseException | None) -> ModuleNotFoundError | None:
    """The error of a module that was not found, where one is behind this error."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            return error
        error = error.__cause__ or error.__context__
    return None


def cannot_be_made(env_id: str, error: BaseException, group: str = "") -> SimulatorError:
    """The error of an environment whose import or making raised this: where a module is not found,
    with what installs it, this dependency group or, by default, the one in `GROUPS`; where code
    that uses MuJoCo misses something of it, with a hint at its version."""
    if (absent := _absent_module(error)) is not None:
        return _needs_module(env_id, absent, group)
    cause, hint = traceback_of(error), ""
    if re.search(r'File ".*glfw.library\.py"', cause):
        return unusable(
            f"{env_id} needs glfw, which evaluates whatever Python prints when it starts "
            f"({summary(error)}): let what sitecustomize prints go to standard error"
        )
    if re.search(r'File ".*mujoco.*gl_context\.py"', cause):
        return unusable(
            f"{env_id} needs MuJoCo, which cannot load its renderer ({summary(error)}): set "
            "MUJOCO_GL to egl, osmesa or glfw, or to disabled, where nothing is to be rendered"
        )
    missing = isinstance(error, AttributeError | AssertionError | TypeError)
    if missing and re.search(r'File ".*mujoco', cause):
        hint = (
            f"; here is MuJoCo {metadata.version('mujoco')}; for a package made for an older one, "
            "`uv run --with PACKAGE --with 'mujoco<4' main.py …`, or 'mujoco<3.10'"
        )
    return unusable(f"environment {env_id} cannot be made: {summary(error)}{hint}", cause=cause)


def _needs_module(env_id: str, absent: ModuleNotFoundError, group: str) -> SimulatorError:
    package = absent.name.partition(".")[0]
    module = env_id.rpartition(":")[0] or env_id
    if absent.name not in GROUPS and f"{module}.".startswith(f"{absent.name}."):
        # Of the modules beside it, the same name in another version is nearest.
        folder, _, name = module.rpartition(".")
        beside = pkgutil.iter_modules(getattr(sys.modules.get(folder), "__path__", []))
        near = _nearest(name, [info.name for info in beside])
        places = "beside main.py, in the current folder of flame-rl, on PYTHONPATH"
        remedy = near or f"it must lie {places}, or be installed"
        return unusable(f"module {absent.name!r} of environment {env_id} is not found; {remedy}")
    frames = traceback.extract_tb(absent.__traceback__)
    (*_, last) = [each for each in frames if "importlib" not in each.filename]
    remedy = "`uv add PACKAGE` installs one, and PYTHONPATH names the folder of your own module"
    if package == "torch":  # which every learner has
        remedy = "executors of a cluster have no torch; --local plays on this machine"
    if package in GROUPS:
        group = group or GROUPS[package]
        remedy = f"`uv run --group {group} main.py …` or `pip install 'flame-rl[{group}]'` helps"
    return unusable(
        f"{env_id} needs the package {package}, which is not installed; it is imported in "
        f"{Path(last.filename).name}, line {last.lineno}: {remedy}"
    )


# Settings of MuJoCo that hold for a whole process


@contextlib.contextmanager
def quiet_about_own_models(spec: EnvSpec | None) -> Iterator[None]:
    """Hide MuJoCo's deprecation warnings about Gymnasium's own model files, which no user can fix.
    Others go to standard error, also after the block, and none into a MUJOCO_LOG.TXT."""
    making_own = spec is not None and _module_of(spec).startswith("gymnasium.envs.mujoco")

    def warn(message: str) -> None:
        if not (making_own and "deprecated" in message):
            print(f"MuJoCo: {message}", file=sys.stderr)

    # Whoever does not import it has no model; another module may have its name.
    with contextlib.suppress(KeyError, AttributeError):
        sys.modules["mujoco"].set_mju_user_warning(warn)
    yield
    making_own = False


def stop_clock() -> None:
    """Remove the clock that MuJoCo's Python package installs, until `start_clock`: it takes 15 % of
    a step of HalfCheetah only to fill `MjData.timer`. One that the user has set stays, and so does
    the package's before MuJoCo 4.0, where each `MjData` installs it, and on Windows."""
    mujoco = sys.modules.get("mujoco")
    # Another module may have this name.
    with contextlib.suppress(AttributeError, KeyError, OSError, ValueError):
        if int(mujoco.__version__.partition(".")[0]) >= 4 and mujoco.get_mjcb_time() is None:
            functions = ctypes.CDLL(sys.modules[mujoco.mj_step.__module__].__file__)
            ctypes.c_void_p.in_dll(functions, "mjcb_time").value = None


def start_clock() -> None:
    """Undo `stop_clock`, for whoever else uses MuJoCo in this process."""
    mujoco = sys.modules.get("mujoco")
    with contextlib.suppress(AttributeError):
        if mujoco.get_mjcb_time() is None:
            mujoco.set_mjcb_time(None)  # which is the package's own
