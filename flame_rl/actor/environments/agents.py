"""Making a PettingZoo environment, in which several agents play, and saying why it cannot be made.

It is named as PettingZoo names its modules, `pettingzoo.sisl.multiwalker_v9`, which have a function
`parallel_env`, or, for agents that take turns, `env`. All agents share one policy, and therefore
must have the same spaces.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Hashable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium import spaces

from flame_rl.actor.environments import making
from flame_rl.actor.environments.masks import beside_mask
from flame_rl.actor.environments.wrapping import constructor_arguments, wrapped
from flame_rl.actor.failure import SimulatorError, unusable
from flame_rl.wire.messages import Environment, EnvironmentSpec

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv

# Dotted names of Python, of which the last has a version.
_NAME = re.compile(r"([A-Za-z_]\w*\.)*[A-Za-z_]\w*_v\d+")
# What the dependency group `agents` installs for environments themselves, by the names of modules.
PACKAGES = ("pettingzoo", "mpe2", "supersuit")


def has_agents(env_id: str) -> bool:
    """Whether the name is that of a module of PettingZoo's kind, and no Gymnasium id."""
    if _NAME.fullmatch(env_id) is None or env_id in gymnasium.registry:
        return False
    # Without a dot it may also be a Gymnasium id that was mistyped.
    return "." in env_id or importlib.util.find_spec(env_id) is not None


def make_agents(environment: Environment, render_mode: str | None = None) -> ParallelEnv:
    """A parallel environment whose agents have the same spaces, shown as `render_mode` says. Raises
    SimulatorError of kind "environment"."""
    env_id = environment.env_id
    options = constructor_arguments(environment, render_mode)
    try:
        env = _made(env_id, importlib.import_module(env_id), options)
    except SimulatorError:
        raise
    except (Exception, SystemExit) as error:
        raise _explain(env_id, error) from error
    if environment.wrapper:
        from pettingzoo import ParallelEnv

        env = wrapped(environment, env, ParallelEnv)
    if not getattr(env, "possible_agents", None):
        raise unusable(f"{env_id}: possible_agents names nobody")
    first, *others = env.possible_agents
    for kind, space_of in (("observation", env.observation_space), ("action", env.action_space)):
        for other in others:
            if space_of(other) != space_of(first):
                raise unusable(
                    f"the {kind} spaces of {env_id} differ between agents, which share one policy: "
                    f"{first} has {space_of(first)!s:.300}, {other} has {space_of(other)!s:.300}; "
                    "SuperSuit's pad_observations_v0 and pad_action_space_v0 make them alike"
                )
    return env


def spec_of(environment: Environment, env: ParallelEnv) -> EnvironmentSpec:
    """The spec of an environment that `make_agents` made. Raises SimulatorError of kind
    "environment" for spaces that cannot be learned."""
    first, *_ = agents = env.possible_agents
    actions = env.action_space(first)
    space, masks = beside_mask(environment, env.observation_space(first), actions)
    making.check_spaces(environment.env_id, space, actions)
    if environment.agent_number:
        space = spaces.Tuple((space, spaces.Discrete(len(agents))))
    limits = limit_of(environment, env), _own_limit(env)
    return EnvironmentSpec(
        environment.env_id,
        space,
        actions,
        time_limit=min((limit for limit in limits if limit is not None), default=None),
        agents=tuple(map(str, agents)),
        limited_by_default=environment.max_episode_steps is None and limits[0] is not None,
        action_mask=masks or "none",
        renders=making.can_be_drawn(env),
    )


def turn_of(env: ParallelEnv) -> Hashable | None:
    """Whose turn it is, where agents take turns; None where all play at once."""
    from pettingzoo.utils.conversions import turn_based_aec_to_parallel_wrapper

    if isinstance(env, turn_based_aec_to_parallel_wrapper):
        return env.aec_env.agent_selection
    return None


def limit_of(environment: Environment, env: ParallelEnv) -> int | None:
    """The time limit besides the environment's own, as `Environment.max_episode_steps` says."""
    if environment.max_episode_steps is None and _own_limit(env) is None:
        return making.DEFAULT_LIMIT
    return environment.max_episode_steps or None


def _own_limit(env: ParallelEnv) -> int | None:
    """What PettingZoo's own environments call `max_cycles`."""
    limit = getattr(env.unwrapped, "max_cycles", None)
    return limit if isinstance(limit, int) else None


def _made(env_id: str, module: ModuleType, options: dict[str, Any]) -> ParallelEnv:
    if hasattr(module, "parallel_env"):
        return module.parallel_env(**options)
    if not hasattr(module, "env"):
        raise unusable(f"module {env_id} has no function parallel_env, nor env, as PettingZoo's do")
    from pettingzoo import AECEnv
    from pettingzoo.utils.conversions import aec_to_parallel, turn_based_aec_to_parallel

    env = module.env(**options)
    if not isinstance(env, AECEnv):
        name = type(env).__name__
        raise unusable(f"{env_id}: env() returned a {name}, which is no AECEnv of PettingZoo")
    cycles = env.metadata.get("is_parallelizable", False)
    return aec_to_parallel(env) if cycles else turn_based_aec_to_parallel(env)


def _explain(env_id: str, error: BaseException) -> SimulatorError:
    """What importing and making raised, as one sentence with a remedy."""
    absent = making.absent_module(error)
    if absent is None:
        return making.cannot_be_made(env_id, error)
    if absent.name in making.GROUPS or not f"{env_id}.".startswith(f"{absent.name}."):
        return making.needs_package(env_id, absent, "agents")
    if "." not in absent.name:
        return making.module_not_found(env_id, absent.name)
    # The modules beside it, without versions: the same name in another version is nearest.
    folder, _, name = env_id.rpartition(".")
    places = getattr(sys.modules.get(folder), "__path__", [])
    beside = {info.name.rpartition("_v")[0]: info.name for info in pkgutil.iter_modules(places)}
    near = difflib.get_close_matches(name.rpartition("_v")[0], filter(None, beside), n=4)
    hint = f"; nearest names: {', '.join(beside[stem] for stem in near)}" if near else ""
    return unusable(f"unknown environment {env_id}: there is no module {absent.name}{hint}")
