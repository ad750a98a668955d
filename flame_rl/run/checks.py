"""What is refused, or warned of, before a run's first episode."""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from traceback import walk_tb

from gymnasium import spaces

from flame_rl.actor.environments.converting import MAX_BOUND, has_bounds
from flame_rl.actor.failure import summary
from flame_rl.learner.rewards import raised_by
from flame_rl.settings.algorithms import OnPolicySettings, PQNSettings, ReplaySettings
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.experiment import Experiment
from flame_rl.system.errors import Interrupted, RunError, UsageError
from flame_rl.system.machine import physical_bytes
from flame_rl.wire.inputs import OF_ONE_BYTE, observation_parts
from flame_rl.wire.messages import EnvironmentSpec
from flame_rl.wire.spaces import choices_of

# Bytes of a weight, its gradient, Adam's moments, copies to undo and for actors, in two networks.
_WEIGHT_BYTES = 48
# Choices that take tens of seconds, and numbers in several axes that may be meant as a picture.
_MANY_CHOICES, _MANY = 100_000, 1000
# Fragments of an iteration, and the least steps of one: of fewer, values decide most advantages.
_FRAGMENTS, _LEAST_FRAGMENT = 8, 64


def refuse_impossible_sizes(config: TrainConfig) -> None:
    """Raise UsageError for more weights than this machine has memory for."""
    widths = config.experiment.hidden_sizes
    weights = sum(inputs * outputs for inputs, outputs in pairwise((1, *widths, 1)))
    if (needed := _WEIGHT_BYTES * weights / 1e9) > (there := physical_bytes() / 1e9):
        share = f"{needed:.1f} of {there:.1f} GB"
        raise UsageError(f"--hidden-sizes: {widths} would take at least {share}; choose less")


def training_refusal(config: TrainConfig, spec: EnvironmentSpec) -> str:
    """Why a run in such an environment would not begin, or ""."""
    from flame_rl.learner.make import make_learner  # others need no torch

    try:
        with own_networks():
            make_learner(config.changed(device="cpu"), spec).algorithm.close()
    except UsageError as error:
        return str(error)
    return ""


def most_env_steps_of_an_iteration(experiment: Experiment, spec: EnvironmentSpec) -> int | None:
    """The most env steps of an iteration; None where that is not known without a time limit."""
    if experiment.steps_per_iter is not None or spec.time_limit is None:
        return experiment.steps_per_iter
    # Each of several agents has an episode of its own.
    return experiment.episodes_per_iter * spec.agent_count * spec.time_limit


def most_env_steps(experiment: Experiment, spec: EnvironmentSpec) -> int | None:
    """The most env steps of a run, or None; the end of the last iteration or episode is more."""
    if experiment.env_steps is not None:
        return experiment.env_steps
    each = most_env_steps_of_an_iteration(experiment, spec)
    return None if each is None else experiment.iterations * each


def fragment_steps(config: TrainConfig, spec: EnvironmentSpec) -> int | None:
    """The steps after which an iteration cuts an episode, which the next one goes on with; None:
    episodes are whole. Raises UsageError where they must be and `fragment_steps` is set."""
    experiment, limit = config.experiment, spec.time_limit
    wanted, steps = experiment.fragment_steps, experiment.steps_per_iter
    lacking = "--steps-per-iter N, the steps of an iteration" if steps is None else ""
    if limit is None:  # the actions of an episode are kept until it ends
        lacking = "a time limit, --max-episode-steps N"
    lacking = "a single agent" if spec.agents else lacking
    if wanted and lacking:
        raise UsageError(f"--fragment-steps: fragments of episodes need {lacking}")
    if wanted is not None or lacking:
        return wanted or None
    # What follows looks at whole episodes, or remembers them.
    if experiment.memory != "none" or experiment.reward is not None or experiment.gamma == 1:
        return None
    on_policy = isinstance(config.algorithm, OnPolicySettings | PQNSettings)
    if not on_policy or limit < 2 * steps or steps < _FRAGMENTS * _LEAST_FRAGMENT:
        return None
    return math.ceil(steps / _FRAGMENTS)


def about_goals(spec: EnvironmentSpec) -> str:
    """What to know of an environment with goals; "" of others."""
    space = spec.observation_space
    names = space.spaces.keys() if isinstance(space, spaces.Dict) else ()
    if spec.agents or "achieved_goal" not in names or "desired_goal" not in names:
        return ""
    return "with --hindsight future, dqn, ddpg, td3 and sac learn from goals reached by chance"


def environment_warnings(config: TrainConfig, spec: EnvironmentSpec) -> list[str]:
    """What a user should know of time limits, the warm-up, the bounds of actions and pictures."""
    warnings, experiment, algorithm = [], config.experiment, config.algorithm
    wanted, limit, env = experiment.max_episode_steps, spec.time_limit, spec.env_id
    if wanted is not None and limit is not None and limit < wanted:
        own = f"{env} has a time limit of {limit} steps in its own code; change it there"
        warnings.append(f"--max-episode-steps: {wanted} has no effect: {own}")
    if experiment.evaluate_every is not None and limit is None:
        never = "without exploration an episode may never end; --max-episode-steps sets one"
        warnings.append(f"--evaluate-every: there is no time limit of {env}, and {never}")
    most = most_env_steps(experiment, spec)
    replays = isinstance(algorithm, ReplaySettings) and not algorithm.with_replay
    if replays and most is not None and most < (warm_up := algorithm.warm_up_steps):
        warnings.append(
            f"--warm-up-steps: {warm_up:,} env steps before the first gradient step, and the run "
            f"has about {most:,} at most: it would learn nothing; choose fewer, or a longer run"
        )
    space = spec.action_space
    if isinstance(space, spaces.Box) and not (bounded := has_bounds(space)).all():
        effect = f"the actions of {algorithm.title} never leave -1 to 1"
        if hasattr(algorithm, "initial_log_std"):
            effect = "exploration begins with a standard deviation of exp(--initial-log-std)"
        warnings.append(
            f"the action space of {env}: {(~bounded).sum()} of {space.low.size} numbers have no "
            f"bounds below {MAX_BOUND:,.0f}, and {effect} in their own units. Give them bounds, to "
            "which actions are scaled, or a wrapper (gymnasium.wrappers.TransformAction)"
        )
    if (choices := sum(choices_of(space))) >= _MANY_CHOICES:
        remedy = "make it a MultiDiscrete, or a Box that a wrapper rounds"
        slow = f"{choices:,} choices take minutes an iteration"
        warnings.append(f"the action space of {env}: {slow}; {remedy}")
    for part in observation_parts(spec.observation_space):
        box, numbers = part.space, part.stop - part.start
        axes = len(box.shape) if isinstance(box, spaces.Box) else 0
        # A Box of bytes with up to three axes is a picture, or narrower than any.
        if axes >= 2 and numbers >= _MANY and (axes > 3 or box.dtype not in OF_ONE_BYTE):
            warnings.append(
                f"observation{part.name}, a Box of {box.dtype} {list(box.shape)}, is taken for "
                f"{numbers:,} single numbers, without convolutions; a picture is a Box of uint8 "
                "with two or three axes"
            )
    return warnings


@contextmanager
def own_networks() -> Iterator[None]:
    """Raise UsageError where the user's own model.py lacks a network, is no Python, raises, or ends
    the program, and where there is too little address space for torch."""
    try:
        yield
    except SystemExit as error:
        raise raised_by("model.py", error) from error
    except SyntaxError as error:
        where = f"{error.filename}, line {error.lineno}"
        raise UsageError(f"{where}: {type(error).__name__}: {error.msg}") from error
    except (UsageError, RunError, Interrupted):
        raise
    except Exception as error:
        if "failed to map segment" in str(error):
            remedy = "let it have 3.5 GB of address space (ulimit -v)"
            raise UsageError(f"torch cannot be loaded: {error}; {remedy}") from error
        module = getattr(error, "obj", None)  # of an AttributeError
        if isinstance(error, ImportError):
            module = sys.modules.get(error.name)
        # See flame_rl.learner.own_model.
        if getattr(module, "__name__", "") in ("model", getattr(module, "__file__", None)):
            raise UsageError(
                f"{module.__file__}: {error}. This file is found before the networks of flame_rl, "
                "its model.py: begin with a copy of that one, or give this file another name"
            ) from error
        lines = [
            f"{frame.f_code.co_filename}, line {number}"
            for frame, number in walk_tb(error.__traceback__)
            if frame.f_globals.get("__name__") in ("model", frame.f_code.co_filename)
        ]
        if lines:  # model.py was at work
            raise UsageError(f"{lines[-1]}: {summary(error)}; correct it there") from error
        raise
