"""What is refused, or warned of, before a run's first episode."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
from gymnasium import spaces

from flame_rl.actor.environments.actions import MAX_BOUND, has_bounds
from flame_rl.actor.environments.wrapping import flags_of
from flame_rl.actor.failure import summary, traceback_of
from flame_rl.backends.select import local_workers
from flame_rl.settings.algorithms import OnPolicy, Replay
from flame_rl.settings.checks import flag
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.experiment import Experiment
from flame_rl.system.errors import UsageError
from flame_rl.system.machine import physical_bytes
from flame_rl.wire.inputs import (
    OF_ONE_BYTE,
    ObservationPart,
    is_channels_first,
    observation_inputs,
    observation_parts,
    picture_size,
)
from flame_rl.wire.messages import MAX_LAYERS, EnvironmentSpec

# Weights, gradient, Adam's two moments, the copy for undoing, and the actors': float32 each.
_BYTES_OF_A_WEIGHT = 6 * 4
# Policy and value network.
_NETWORKS = 2
# The share of this machine's memory that is worth a warning.
_MUCH = 0.25
# Those of a GRU; an LSTM has one more.
_GATES = 3
# Python, NumPy, Gymnasium and a small environment.
_BYTES_OF_A_WORKER = 60_000_000
# An index, a seed, a generator's state, a step or two.
_BYTES_OF_AN_EPISODE = 200
# A reward, a number of an observation, and an action.
_BYTES_OF_A_RECORDED_STEP = 16
# The position, an int64, of each step that is drawn for a gradient step.
_BYTES_OF_A_STEP = 8
# A policy gradient moves a policy only so far in an update.
FEW_UPDATES = 20
# Parts of an observation, or of an action, that are named.
_SHOWN = 6
# Numbers from which on a Box of several axes may be meant as a picture.
_MANY = 1000
# Pixels of the usual Atari pictures, and how many times as many are worth a word.
_USUAL_PIXELS, _MANY_TIMES = 84 * 84, 5


def about_goals(spec: EnvironmentSpec) -> str:
    """What to know of an environment with goals; "" of others."""
    space = spec.observation_space
    if spec.agents or not isinstance(space, spaces.Dict):
        return ""
    if not {"achieved_goal", "desired_goal"} <= space.spaces.keys():
        return ""
    return (
        "dqn, ddpg, td3 and sac learn from goals that are reached by chance, too, with "
        "--hindsight future"
    )


def refuse_impossible_sizes(config: TrainConfig) -> None:
    """Raise UsageError for more layers than actors take, and for a setting that alone would need
    more memory than this machine has."""
    widths, memory = config.experiment.hidden_sizes, config.experiment.memory != "none"
    stacked = config.experiment.frame_stack > 1
    selected = len(config.experiment.policy_observations) > 0
    # A hidden layer is two layers of a policy, dense and activation; normalisation, stacked frames,
    # what it observes, memory and output are further ones.
    most = (MAX_LAYERS - 2 - stacked - selected - memory) // 2
    if len(widths) > most:
        beside = [flag("frame_stack")] * stacked + [flag("memory")] * memory
        raise UsageError(
            f"{flag('hidden_sizes')}: {len(widths)} hidden layers, and actors take at most {most}"
            + (f" beside {' and '.join(beside)}" if beside else "")
        )
    weights = _NETWORKS * sum(inputs * outputs for inputs, outputs in pairwise((1, *widths, 1)))
    recurrent = _NETWORKS * _GATES * config.experiment.memory_size**2 * memory
    algorithm = vars(config.algorithm)
    drawn = algorithm.get("batch_size", 0) * _BYTES_OF_A_STEP
    needs = {
        "hidden_sizes": weights * _BYTES_OF_A_WEIGHT,
        "memory_size": recurrent * _BYTES_OF_A_WEIGHT,
        "steps_per_iter": (config.experiment.steps_per_iter or 0) * _BYTES_OF_A_RECORDED_STEP,
        "episodes_per_iter": config.experiment.episodes_per_iter * _BYTES_OF_AN_EPISODE,
        "evaluate_episodes": config.experiment.evaluate_episodes * _BYTES_OF_AN_EPISODE,
        "workers": (config.execution.workers or 0) * _BYTES_OF_A_WORKER,
        "batch_size": drawn,
        "n_step": drawn * algorithm.get("n_step", 0),
        "sequence_length": drawn * algorithm.get("sequence_length", 0),
        "burn_in": drawn * algorithm.get("burn_in", 0),
        "atoms": algorithm.get("atoms", 0) * _BYTES_OF_A_WEIGHT,
    }
    values = vars(config.experiment) | vars(config.execution) | algorithm
    for name, needed in needs.items():
        _refuse_beyond_memory(name, values.get(name), needed)


def refuse_many_episodes(episodes: int) -> None:
    """Raise UsageError for an evaluation of more episodes than fit into this machine's memory."""
    _refuse_beyond_memory("episodes", episodes, episodes * _BYTES_OF_AN_EPISODE)


def _refuse_beyond_memory(name: str, value: object, needed: float) -> None:
    there = physical_bytes()
    if needed > there:
        raise UsageError(
            f"{flag(name)}: {value} would take at least {needed / 1e9:.1f} GB, and this machine "
            f"has {there / 1e9:.1f} GB; choose less"
        )


def most_env_steps(experiment: Experiment, spec: EnvironmentSpec) -> int | None:
    """The greatest number of env steps of a run, but for the end of its last iteration; None: not
    known without a time limit."""
    if experiment.env_steps is not None:
        return experiment.env_steps
    each = _most_env_steps_of_an_iteration(experiment, spec)
    return None if each is None else experiment.iterations * each


def _most_env_steps_of_an_iteration(experiment: Experiment, spec: EnvironmentSpec) -> int | None:
    if experiment.steps_per_iter is not None or spec.time_limit is None:
        return experiment.steps_per_iter
    # Each of several agents has an episode of its own.
    return experiment.episodes_per_iter * spec.agent_count * spec.time_limit


def few_updates(experiment: Experiment, spec: EnvironmentSpec) -> str:
    """How many updates a run has, one an iteration, where they are fewer than `FEW_UPDATES`, and
    what would change that; "" where they are not, or their number is not known."""
    updates, each = experiment.iterations, _most_env_steps_of_an_iteration(experiment, spec)
    remedy, at_least = "--iterations sets more", ""
    if experiment.env_steps is not None:
        if each is None:
            return ""
        updates = -(-experiment.env_steps // each)
        remedy = (
            "--env-steps sets a longer run, and a smaller --steps-per-iter more frequent updates"
        )
        if experiment.steps_per_iter is None:  # episodes may be shorter than they might be
            remedy, at_least = remedy.replace("smaller ", ""), "at least "
    if updates >= FEW_UPDATES:
        return ""
    return (
        f"{at_least}{updates}, one an iteration; fewer than {FEW_UPDATES} seldom teach much "
        f"({remedy})"
    )


def refuse_large_observations(config: TrainConfig, spec: EnvironmentSpec) -> list[str]:
    """A warning where an iteration's observations may take much of this machine's memory. Raises
    UsageError if they do not fit into it."""
    experiment = config.experiment
    most = _most_env_steps_of_an_iteration(experiment, spec)
    if most is None:
        return []
    # An on-policy epoch has them in an order of its own, too.
    copies = 2 if isinstance(config.algorithm, OnPolicy) else 1
    inputs = observation_inputs(spec.observation_space)
    numbers = sum(each.width * np.dtype(each.dtype).itemsize for each in inputs)
    needed, there = most * copies * numbers, physical_bytes()
    up_to = "up to "
    if experiment.steps_per_iter is not None:
        up_to = ""
        _refuse_beyond_memory("steps_per_iter", most, needed)
    if needed < there * _MUCH:
        return []
    return [
        f"an iteration's observations: {up_to}{most:,} steps of {spec.env_id} take "
        f"{needed / 1e9:.1f} GB, and this machine has {there / 1e9:.1f} GB; fewer steps "
        "(--steps-per-iter) or smaller pictures take less"
    ]


def environment_warnings(config: TrainConfig, spec: EnvironmentSpec) -> list[str]:
    """What a run's user should know of time limits, the warm-up, the bounds of actions, and
    pictures."""
    warnings = []
    wanted, limit = config.experiment.max_episode_steps, spec.time_limit
    if wanted is not None and limit is not None and limit < wanted:
        warnings.append(
            f"--max-episode-steps: {wanted} has no effect: {spec.env_id} has a time limit of "
            f"{limit} steps in its own code; change it there"
        )
    if config.experiment.evaluate_every is not None and limit is None:
        warnings.append(
            f"--evaluate-every: there is no time limit of {spec.env_id}, and without exploration "
            "an episode may never end; --max-episode-steps sets one"
        )
    most = most_env_steps(config.experiment, spec)
    replays = isinstance(config.algorithm, Replay) and not config.algorithm.with_replay
    warm_up = config.algorithm.warm_up_steps if replays else 0
    if most is not None and most < warm_up:
        warnings.append(
            f"--warm-up-steps: {warm_up:,} env steps before the first gradient step, and the run "
            f"has about {most:,} at most: it would learn nothing; choose fewer, or a longer run"
        )
    space = spec.action_space
    if isinstance(space, spaces.Box) and not has_bounds(space).all():
        effect = f"the actions of {config.algorithm.title} never leave -1 to 1"
        if hasattr(config.algorithm, "initial_log_std"):
            effect = "exploration begins with a standard deviation of exp(--initial-log-std)"
        warnings.append(
            f"the action space of {spec.env_id}: {(~has_bounds(space)).sum()} of "
            f"{space.low.size} numbers have no bounds below {MAX_BOUND:,.0f}, and {effect} in "
            "their own units. Bounds in the environment are better: actions are scaled to them"
        )
    parts = observation_parts(spec.observation_space)
    return warnings + [text for part in parts if (text := _about_pictures(part))]


def _about_pictures(part: ObservationPart) -> str:
    """A warning of a large picture, or of a Box that may be meant as one, and is none; or ""."""
    space, numbers = part.space, part.stop - part.start
    if (size := picture_size(space)) is not None:
        rows, columns, _ = size
        times = rows * columns / _USUAL_PIXELS
        if times < _MANY_TIMES:
            return ""
        return (
            f"observation{part.name} is a picture of {rows} x {columns}, {times:.0f} times the "
            "84 x 84 that are usual, and takes the networks about as many times as long: make it "
            "smaller in a --wrapper of your own, by gymnasium.wrappers.ResizeObservation, or "
            "TransformObservation for one key of a Dict"
        )
    axes = len(space.shape) if isinstance(space, spaces.Box) else 0
    if axes < 2 or numbers < _MANY:
        return ""
    if axes > 3:
        remedy = (
            "a picture has two or three axes. Where several are stacked, give the latest alone, "
            "without the wrapper that stacks them (such as FrameStackObservation): --frame-stack N "
            "shows the last N"
        )
    elif space.dtype in OF_ONE_BYTE:  # as narrow as no picture is
        return ""
    else:
        remedy = (
            "as a Box of uint8 it would be a picture (gymnasium.wrappers.TransformObservation "
            "makes such an observation)"
        )
    return (
        f"observation{part.name}, a Box of {space.dtype} {list(space.shape)}, is taken for "
        f"{numbers:,} single numbers, without convolutions; {remedy}"
    )


def what_says_more(experiment: Experiment) -> str:
    """The command that examines the environment, to follow a warning; "" where a function makes
    it, which no command can name."""
    if not isinstance(experiment.env, str):
        return ""
    flags = flags_of(experiment.env, experiment.env_kwargs, experiment.wrapper, experiment.observe)
    return f". `uv run main.py check {flags}` says more"


def acted(spec: EnvironmentSpec) -> str:
    """What an action is, in words."""
    space = spec.action_space
    if not isinstance(space, spaces.Box):
        return _choice(space)
    bounded = has_bounds(space).sum()
    scaled = {0: "in their own units", space.low.size: "from -1 to 1 at their bounds"}
    numbers = "1 number" if space.low.size == 1 else f"{space.low.size:,} numbers"
    return f"{numbers}, {scaled.get(bounded, f'{bounded} of them from -1 to 1 at their bounds')}"


def _choice(space: spaces.Space) -> str:
    """A space of choices, in words."""
    if isinstance(space, spaces.Discrete):
        return f"one of {space.n:,} choices"
    if isinstance(space, spaces.MultiDiscrete):
        return f"a choice each among {_listed(list(map(str, space.nvec.ravel())))}"
    return f"{spaces.flatdim(space):,} bits"


def _listed(words: list[str]) -> str:
    """The first words of a list, and the number of the others."""
    more = len(words) - _SHOWN
    return ", ".join(words[:_SHOWN]) + (f", … ({more:,} more)" if more > 0 else "")


def observed(spec: EnvironmentSpec) -> str:
    """What an observation is taken for, in words."""
    inputs = observation_inputs(spec.observation_space)
    if len(inputs) == 1 and inputs[0].picture is None:
        return _numbers_observed(spec)
    pictures, numbers = [], 0
    for each in inputs:
        if (size := each.picture) is None:
            numbers += each.width
            continue
        first = " (they come first, and are put last)" if is_channels_first(each.space) else ""
        pictures.append(f"a picture of {size[0]} x {size[1]}, channels: {size[2]}{first}")
    rest = [f"{numbers:,} number{'s' * (numbers > 1)}"] if numbers else []
    return " and ".join([*pictures, *rest])


def _numbers_observed(spec: EnvironmentSpec) -> str:
    """What a vector is made of, in words."""
    space, numbers = spec.observation_space, f"{spec.observation_dim:,} numbers"
    parts = observation_parts(space)
    if not parts[0].path:
        return numbers if isinstance(space, spaces.Box) else f"{_choice(space)}, as {numbers}"
    words = [
        f"{part.name} {part.stop - part.start:,}"
        if isinstance(part.space, spaces.Box)
        else f"{part.name} {_choice(part.space)}"
        for part in parts
    ]
    return f"{numbers}: {_listed(words)}"


def environments(config: TrainConfig, spec: EnvironmentSpec, distributed: bool) -> str:
    """How many environments each process holds, in words."""
    slots, workers = config.execution.slots, local_workers(config)
    where = "in each executor" if distributed else f"in each of {workers} processes"
    if not distributed and workers < 2:
        where = "in a process" if workers else "in this process"
    if slots is None:
        return f"in a fast simulator {where}"
    return f"at most {max(1, slots // spec.agent_count)} {where}"


@contextmanager
def own_networks() -> Iterator[None]:
    """Raise UsageError where the block needs a network that the user's own model.py lacks, and
    where that file ends the program."""
    try:
        yield
    except SystemExit as error:
        raise UsageError(
            f"model.py raised {summary(error)}\n\n{traceback_of(error).rstrip()}"
        ) from error
    except (AttributeError, ImportError) as error:
        module = sys.modules.get("model")
        asked = error.name if isinstance(error, ImportError) else getattr(error.obj, "__name__", "")
        if module is None or asked != "model":
            raise
        raise UsageError(
            f"{module.__file__}: {error}. This file is found before the networks of flame_rl, its "
            "model.py: begin with a copy of that one, or give this file another name"
        ) from error
