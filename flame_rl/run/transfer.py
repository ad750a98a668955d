"""What a run takes from a checkpoint: all of its own; what fits of another run's."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from flame_rl.learner.state import REPLAY, arrays_digest, part_of
from flame_rl.run.checkpoint import Checkpoint, find_checkpoint
from flame_rl.run.folder import files_of, library_versions
from flame_rl.settings import algorithms
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec

if TYPE_CHECKING:  # imports torch, which takes seconds
    from torch import nn

    from flame_rl.learner.learner import Learner

State = dict[str, np.ndarray]

# Settings that say which layers a network has.
_OF_NETWORKS = ("model", "hidden_sizes", "activation", "frame_stack", "memory", "memory_size")
_OF_NETWORKS += ("shared_torso", "dueling", "layer_norm")
_OBSERVATIONS = "observations"  # running moments; see `Statistics` and `NormalizedObservations`
_MOMENTS = (_OBSERVATIONS, "returns")
# A layer's array, such as policy.network.2.weight: the network's name and the layer's place in it.
_PLACED = re.compile(r"^(.*\bnetwork\.)(\d+)(\..*)$")
_OF_POLICY = re.compile(r"((?:shared\.)?policy\.network\.\d+)\..*")  # the layers of a policy


def load_state(learner: Learner, checkpoint: Checkpoint, path: Path) -> None:
    """Load the state of a checkpoint that was found at this path, whose replayed episodes are read
    when they are needed. Raises UsageError if it does not fit."""
    if (files := learner.parts.get(REPLAY)) is not None:
        files.source = files_of(path)
    try:
        learner.load_state_dict(checkpoint.learner)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        text = f"the checkpoint in {path} does not fit the network in model.py"
        raise UsageError(f"{text}: {error}") from error


def what_differs(checkpoint: Checkpoint, config: TrainConfig) -> list[str]:
    """Warnings about changes that make results differ from a run that never stopped."""
    saved, settings, warnings = TrainConfig.from_data(checkpoint.config), config.algorithm, []
    before, now = ((run.experiment.iterations, run.experiment.env_steps) for run in (saved, config))
    if before != now and (settings.learning_rate_decay or getattr(settings, "prioritized", False)):
        what = "sample weights rise" if not settings.learning_rate_decay else "learning rates fall"
        warnings.append(f"{what} until the end of the run, which is another one now")
    then, device = saved.execution.device, config.execution.device
    if then != device:
        devices = f"the run learned with --device {then}, and goes on with --device {device}"
        warnings.append(f"{devices}: results differ from now on")
    here = library_versions()
    return warnings + [
        f"the run was made with {name} {version}, this is {here.get(name)}: results may differ"
        for name, version in checkpoint.versions.items()
        if here.get(name) != version
    ]


def changed_networks(checkpoint: Checkpoint, config: TrainConfig, learner: Learner) -> list[str]:
    """A warning if the file with the networks has changed since the run that was saved began."""
    model, then = config.experiment.model, checkpoint.networks_file
    same = TrainConfig.from_data(checkpoint.config).experiment.model == model
    if not then or not same or then == learner.networks_file:  # older checkpoints have none
        return []
    what = f"{model or 'model.py'} has changed since that run began"
    return [f"{what}: its networks may compute something else"]


def refuse_another_environment(trained: EnvironmentSpec, here: EnvironmentSpec, path: Path) -> None:
    """Raise UsageError where a run would go on in another environment than that of the checkpoint
    at `path`. The name may differ, and old checkpoints do not say the time limit."""
    same = {"env_id": "", "time_limit": None, "limited_by_default": False, "renders": False}
    then, now = (replace(spec, **same) for spec in (trained, here))
    if then != now:
        raise UsageError(f"--env: the environment of {path} was another one: {then}, now {now}")


def refuse_other_spaces(trained: EnvironmentSpec, here: EnvironmentSpec) -> None:
    """Raise UsageError unless a policy that was trained in one environment can act in the other.
    Bounds may differ: actions are scaled to those that are there."""
    forms = {"observation_space": form_of, "action_space": form_of, "masked": bool}
    for name, form in forms.items():
        then, now = getattr(trained, name), getattr(here, name)
        if form(then) != form(now):
            raise UsageError(
                f"--env: {name} of {trained.env_id}, where the policy was trained, is {then}, and "
                f"of {here.env_id} {now}; make it the same by a wrapper, or train by --from RUN"
            )


def form_of(space: spaces.Space) -> object:
    """All of a space but its bounds, to be compared."""
    match space:
        case spaces.Dict() | spaces.Tuple():  # in the order of the network's inputs
            items = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
            return type(space), [(name, form_of(each)) for name, each in items]
        case spaces.Discrete():
            return int(space.n)
        case spaces.MultiDiscrete():
            return space.nvec.tolist()
    return type(space), space.shape, space.dtype


def begin_from(
    learner: Learner, config: TrainConfig, spec: EnvironmentSpec
) -> tuple[str, str, list[str]] | None:
    """Give a new learner, for the environment `spec`, what fits of the run that
    `config.experiment.from_` names, if any. All else begins anew, such as optimisers and counters.

    Returns the SHA-256 of the other run's state, see `arrays_digest`; what was taken, in words; and
    what was not, and why. Raises UsageError if there is no sound checkpoint, its state is not that
    of `from_digest`, nothing of it fits, or with `with_replay` its replay memory does not.
    """
    path, with_replay = config.experiment.from_, getattr(config.algorithm, "with_replay", False)
    if path is None:
        if with_replay:
            raise UsageError("--with-replay: of which run? --from RUN names it")
        return None
    run, checkpoint, warnings = _found(path)
    old = TrainConfig.from_data(checkpoint.config)
    name = old.algorithm_name
    source = f"{name} on {checkpoint.spec.env_id} after {checkpoint.totals.iterations} iterations"
    digest = arrays_digest(checkpoint.learner)
    if config.experiment.from_digest not in (None, digest):
        raise UsageError(
            f"--from: {path} has gone on or was replaced: its SHA-256 is {digest}, not "
            f"{config.experiment.from_digest}; name the checkpoint that the run began with"
        )
    then, now = output_of(old, checkpoint.spec), output_of(config, spec)
    another = "" if then == now else f"gives {then} there and {now} here"
    parts, left = take(learner, checkpoint.learner, another)
    if not parts:
        raise UsageError(
            f"--from: nothing of {path}, {source}, fits these networks: {'; '.join(left)}. "
            "Give the ones it has (--hidden-sizes, --memory, --shared-torso)"
        )
    if with_replay:
        parts.append(_take_replay(learner, config, checkpoint, files_of(run), source))
    warnings += changed_networks(checkpoint, config, learner)
    warnings += [f"--from: {reason}; it begins anew" for reason in left]
    if _normalizes(checkpoint.learner) and not _normalizes(learner.state_dict()):
        remedy = f"--normalize-observations True, where {config.algorithm_name} has it"
        warnings.append(f"--from: {path} normalises observations, and this run does not: {remedy}")
    return digest, f"Begun with {path}, {source}: {', '.join(parts)}", warnings


def settings_of_networks(path: Path) -> dict[str, object]:
    """The settings of the networks of the run that --from names. Raises UsageError without one."""
    _, checkpoint, _ = _found(path)
    old = TrainConfig.from_data(checkpoint.config)
    values = vars(old.experiment) | vars(old.algorithm)
    return {name: values[name] for name in _OF_NETWORKS if name in values}


def _found(path: Path) -> tuple[Path, Checkpoint, list[str]]:
    """The run or file that --from names, and what `find_checkpoint` returns. Raises UsageError."""
    best = path.name == "best" and not path.exists() and path.parent.is_dir()  # RUN/best
    run = path.parent if best else path
    try:
        return run, *find_checkpoint(run, best)
    except UsageError as error:
        raise UsageError(f"--from: {error}") from error


def _normalizes(state: State) -> bool:
    return any("normalizer" in name.split(".") for name in state)


def _take_replay(
    learner: Learner, config: TrainConfig, checkpoint: Checkpoint, files: Path, source: str
) -> str:
    """Add the other run's episodes to the replay memory, and return its name. The gradient steps
    that are due for them count as taken: what comes is learned from at the usual pace."""
    from flame_rl.learner.off_policy.update import gradient_steps_due

    state, replay = part_of(checkpoint.learner, REPLAY), learner.parts[REPLAY]
    if not state:
        raise UsageError(f"--with-replay: {source} has no replay memory; leave the flag out")
    try:
        replay.take_over(state, files)
    except (KeyError, ValueError, OSError) as error:
        raise UsageError(f"--with-replay: {files}: {error}") from error
    learner.algorithm.steps.count = gradient_steps_due(config.algorithm, replay.env_steps, 0)
    return REPLAY


def output_of(config: TrainConfig, spec: EnvironmentSpec) -> str:
    """What the last layer of a run's policy gives, in words."""
    real = spec.continuous
    match config.algorithm:
        case algorithms.DQNSettings(distribution="c51") as own:
            words = f"atoms of returns from {own.lowest_return} to {own.highest_return}"
        case algorithms.DQNSettings(distribution="quantiles"):
            words = "quantiles of returns"
        case algorithms.SuccessorSettings():
            words = "returns of the parts of rewards"
        case algorithms.Exploration():
            words = "action values"
        case algorithms.ActionNoise() | algorithms.BCSettings(policy="deterministic") if real:
            words = "actions"
        case algorithms.SACSettings() | algorithms.BCSettings(policy="squashed") if real:
            words = "means and deviations"
        case _ if real:
            words = "means"
        case _:
            words = "logits" if len(spec.choices) == 1 else f"logits of {spec.choices} choices"
    return f"duelling {words}" if getattr(config.algorithm, "dueling", False) else words


def take(learner: Learner, state: State, another: str) -> tuple[list[str], list[str]]:
    """Give a new learner what fits of a state that another one's `state_dict` returned; `another`
    says, if so, that the last layer of its policy gives something else.

    A layer is taken where the names and shapes of all its arrays fit, and so are moments. Layers
    are counted from the first with arrays: the one that selects --policy-observations has none.
    Copies of networks, such as target networks, are copies again.

    Returns the parts of which something was taken, none if no weights fit; and why layers were not.
    """
    from flame_rl.learner.learner import modules_in

    modules = modules_in(learner.parts)
    new = {name: array.copy() for name, array in learner.state_dict().items()}
    digests = {part: arrays_digest(part_of(new, part)) for part in modules}
    first: dict[str, str] = {}
    sources = {part: first.setdefault(digest, part) for part, digest in digests.items()}
    layers = [each[1] for each in map(_OF_POLICY.fullmatch, new) if each]
    unlike = {layer: another for layer in layers[-1:] if another}
    parts = (*first.values(), *_MOMENTS)
    taken, left = _fitting(new, _named_as_in(new, state), parts, unlike)
    if not any(array.ndim > 1 for array in taken.values()):  # biases may fit anything
        return [], left
    merged = new | taken
    for copy, source in sources.items():
        merged |= {f"{copy}.{name}": array for name, array in part_of(merged, source).items()}
    learner.load_state_dict(merged)
    if f"{_OBSERVATIONS}.mean" in taken:
        _set_normalizers(learner, modules, taken)
    return list(dict.fromkeys(name.partition(".")[0] for name in taken)), left


def _named_as_in(new: State, old: State) -> State:
    """The old arrays, with the first layer of each network at the place that it has in the new."""

    def first_place(state: State, network: str) -> int:
        found = filter(None, map(_PLACED.fullmatch, state))
        return min((int(each[2]) for each in found if each[1] == network), default=0)

    def renamed(found: re.Match[str]) -> str:
        network, place, rest = found.groups()
        moved = first_place(new, network) - first_place(old, network)
        return f"{network}{int(place) + moved}{rest}"

    return {_PLACED.sub(renamed, name): array for name, array in old.items()}


def _fitting(
    new: State, old: State, parts: tuple[str, ...], others: dict[str, str]
) -> tuple[State, list[str]]:
    """The old arrays of these parts that fit, layer by layer, but none of the layers `others`; and
    reasons why others do not, a single one for a part that is not there at all."""
    taken, left, there = {}, {}, {name.partition(".")[0] for name in old}
    for layer, group in itertools.groupby(new, lambda name: name.rpartition(".")[0]):
        part, names = layer.partition(".")[0], list(group)
        if part not in parts:
            continue
        unlike = [name for name in names if name not in old or _form(old[name]) != _form(new[name])]
        if layer in others:
            left[f"{layer} {others[layer]}"] = True
        elif not unlike:
            taken |= {name: old[name] for name in names}
        elif (name := unlike[0]) in old:
            left[f"{name} is {_form(old[name])} there and {_form(new[name])} here"] = True
        else:
            left[f"{layer if part in there else part} is not there"] = True
    return taken, list(left)


def _form(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _set_normalizers(learner: Learner, modules: dict[str, nn.Module], taken: State) -> None:
    """Set normalisers that were not taken by the moments of observations that were."""
    from flame_rl.modules.observations import normalizers_of

    moments = learner.parts[_OBSERVATIONS]
    for part, module in modules.items():
        names = {child: name for name, child in module.named_modules()}
        for numbers, normalizer in normalizers_of(module):
            if ".".join(filter(None, (part, names[normalizer], "mean"))) not in taken:
                normalizer.set(moments.mean[numbers], moments.std[numbers])
