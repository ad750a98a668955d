"""Choose an environment's simulator: a fast one where it is sure to give the same bits. Then the
environment is the registered one as Gymnasium makes it, the libraries have versions with which the
fast simulator was compared, and a short comparison in this process agrees."""

import importlib
import importlib.metadata
from collections.abc import Iterator
from dataclasses import replace

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, RecordVideo, TimeLimit

from flame_rl.actor.environments.making import import_environment
from flame_rl.actor.environments.wrapping import SLOT, wrappers_of
from flame_rl.actor.failure import summary, unusable
from flame_rl.actor.simulators.agents import AgentsSimulator, plain_simulator
from flame_rl.actor.simulators.plain import MAKING_SECONDS, MOST_SLOTS, EnvironmentsSimulator
from flame_rl.actor.simulators.repeatable import SEED, check_beside, check_repeats
from flame_rl.actor.simulators.simulator import Simulator
from flame_rl.wire.messages import Environment, EnvironmentSpec

# The fast simulator, the class of Gymnasium's that it replaces, and its parts of the reward.
_CARTPOLE = "flame_rl.actor.simulators.cartpole:FastCartPole"
_MUJOCO = "flame_rl.actor.simulators.mujoco_fast:FastMujoco"
_MOVES = ("reward_forward", "reward_ctrl")
_LIVES = (*_MOVES, "reward_survive")
_FAST = {
    "CartPole-v1": (_CARTPOLE, "gymnasium.envs.classic_control.cartpole:CartPoleEnv", ()),
    "HalfCheetah-v5": (_MUJOCO, "gymnasium.envs.mujoco.half_cheetah_v5:HalfCheetahEnv", _MOVES),
    "Hopper-v5": (_MUJOCO, "gymnasium.envs.mujoco.hopper_v5:HopperEnv", _LIVES),
    "Walker2d-v5": (_MUJOCO, "gymnasium.envs.mujoco.walker2d_v5:Walker2dEnv", _LIVES),
    "Ant-v5": (_MUJOCO, "gymnasium.envs.mujoco.ant_v5:AntEnv", (*_LIVES, "reward_contact")),
}
# Versions with which tests/actor/test_simulators.py has passed. mujoco.batch exists from 4.0 on.
VERIFIED_GYMNASIUM = ("1.4",)
VERIFIED_MUJOCO = ("4.0",)
# The memory that a process's environments may take, as far as that of the first tells.
MOST_BYTES = 1_000_000_000
_CHECK_EPISODES = 4
_CHECK_STEPS = 40


def choose_simulator(
    environment: Environment, plain: EnvironmentsSimulator | None = None
) -> tuple[Simulator, str]:
    """The simulator of an environment, and one line on why its fast one is not used, or "". Raises
    SimulatorError of kind "environment", also if "fast" is not possible. `plain`, its plain one if
    there is one already, is closed unless it is returned."""
    env_id, wanted = environment.env_id, environment.simulator
    plain = plain or plain_simulator(environment)
    if wanted == "plain":
        return plain, ""
    try:
        reason = _why_not(environment, plain)
        if reason is None:
            env, limit = plain.first, plain.first.spec.max_episode_steps
            fast = _imported(_FAST[env_id][0])(env, limit, environment.reward_parts)
            if _trace(fast, env.action_space) == _trace(plain, env.action_space):
                plain.close()
                return fast, ""
            reason = f"the fast simulator of {env_id} differs from it on this processor"
    except Exception as error:
        reason = f"the fast simulator of {env_id} raises {summary(error)}"
    if wanted == "fast":
        plain.close()
        raise unusable(f"--simulator fast is not possible: {reason}")
    note = f"Played by Gymnasium's own environment: {reason}." if env_id in _FAST else ""
    return plain, note


def describe(environment: Environment) -> tuple[Simulator, EnvironmentSpec]:
    """The simulator of an environment and its spec, with what `check_repeats` and `check_beside`
    have found. Raises SimulatorError as `choose_simulator` does."""
    # Here, and not in a fork, after which it would be imported again.
    import_environment(environment)
    # Before another object may hold what the environment needs alone.
    checked = check_repeats(environment)
    differs = checked.differs
    if not (differs or checked.unknown or checked.failed) and 2 * checked.bytes <= MOST_BYTES:
        differs, _ = check_beside(environment)
    plain = plain_simulator(environment)
    if plain.masks.found_in is None and checked.action_mask is None:
        slots = np.arange(plain.agents)
        plain.reset(slots, np.full(len(slots), SEED))
    masks = checked.action_mask or plain.masks.found_in or "none"
    simulator, note = choose_simulator(environment, plain)
    longer = checked.unknown and f"{checked.unknown} The command check takes the time for it."
    notes, slots = [note, longer, checked.rounded], None
    if simulator is plain:
        if environment.slots is None and checked.bytes:
            plain.hold_at_most(MOST_BYTES // checked.bytes)
        slots = environment.slots or plain.most * plain.agents
        notes += _notes(environment, plain, checked.bytes)
    note = "\n".join(filter(None, notes))
    found = {"differs": differs, "action_mask": masks, "slots": slots}
    return simulator, replace(plain.spec, note=note, **found)


def _notes(environment: Environment, plain: EnvironmentsSimulator, taken: int) -> Iterator[str]:
    """What a user should know of an environment that takes so many bytes."""
    spec = plain.spec
    if spec.limited_by_default:
        yield (
            f"{spec.env_id} has no time limit that Gymnasium knows: episodes are cut after "
            f"{spec.time_limit:,} steps; --max-episode-steps N sets another limit, 0 none."
        )
    most = plain.most * plain.agents
    if environment.slots is None and most < MOST_SLOTS // plain.agents * plain.agents:
        yield (
            f"An environment takes {taken / 1e6:,.0f} MB: a process has {plain.most} of them; "
            "--slots N sets another number of episodes side by side."
        )
    if any(isinstance(layer, RecordVideo) for layer in wrappers_of(plain.first)):
        yield (
            f"RecordVideo records {spec.env_id} in each slot of each process: films overwrite each "
            f"other unless their folder has the name in the environment variable {SLOT}."
        )
    if plain.making_seconds > MAKING_SECONDS:
        yield (
            f"Making the environment took {plain.making_seconds:.1f} s: a process begins with one "
            f"and makes more as the run goes on, up to --slots {most}."
        )


def _why_not(environment: Environment, plain: EnvironmentsSimulator) -> str | None:
    """Why no fast simulator of the environment can be used, or None."""
    env_id, env = environment.env_id, plain.first
    if isinstance(plain, AgentsSimulator):
        return f"{env_id} has several agents, and no fast simulator"
    if env_id not in _FAST:
        return f"there is no fast simulator of {env_id}, only of {', '.join(_FAST)}"
    if environment.outcomes or environment.env_kwargs or environment.wrapper:
        return f"--outcomes, --env-kwargs, --wrapper: the fast simulator of {env_id} has none"
    path, original, parts = _FAST[env_id]
    for name in environment.reward_parts:
        if name not in parts:
            known = ", ".join(parts) or "no parts of its reward"
            return f"--reward-parts: the fast simulator of {env_id} has no {name!r}; it has {known}"
    layers = wrappers_of(env)
    known = [TimeLimit, OrderEnforcing, _imported(original)]
    if [type(layer) for layer in layers] != known or layers[-1].spec.kwargs:
        return f"{env_id} is registered with a class, wrappers or arguments that are not its own"
    libraries = {"gymnasium": VERIFIED_GYMNASIUM}
    if path == _MUJOCO:
        libraries["mujoco"] = VERIFIED_MUJOCO
    for library, verified in libraries.items():
        version = importlib.metadata.version(library)
        if ".".join(version.split(".")[:2]) not in verified:
            compared = f"was compared with {library} {', '.join(verified)}, and this is {version}"
            return f"the fast simulator of {env_id} {compared}"
    return None


def _imported(path: str) -> type:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _trace(simulator: Simulator, actions: gymnasium.Space) -> list[bytes]:
    """The bits of a few short episodes with random actions, side by side."""
    rng, running = np.random.default_rng(0), np.arange(_CHECK_EPISODES)
    simulator.reset(running, 1000 + running)
    seen = [simulator.observations[running].tobytes()]
    for _ in range(_CHECK_STEPS):
        if isinstance(actions, gymnasium.spaces.Box):
            # Beyond the bounds, too.
            chosen = rng.uniform(-1.2, 1.2, (_CHECK_EPISODES, *actions.shape)).astype("f4")
        else:
            chosen = rng.integers(actions.n, size=_CHECK_EPISODES, dtype=np.int32)
        if len(running):
            simulator.step(chosen, running)
        ends = simulator.terminated, simulator.truncated
        arrays = simulator.observations, simulator.rewards, simulator.reward_parts, *ends
        seen += [array[running].tobytes() for array in arrays]
        running = running[~(ends[0] | ends[1])[running]]
    return seen
