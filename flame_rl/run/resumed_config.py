"""The configuration of a run that goes on: what it was, and what may differ now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flame_rl.run.folder import CONFIG_NAME
from flame_rl.settings.checks import flag
from flame_rl.settings.config import TrainConfig, names_of
from flame_rl.settings.parse import parse
from flame_rl.system.errors import UsageError


def resumed_config(folder: Path, arguments: Sequence[str]) -> TrainConfig:
    """The configuration of the run in `folder`, changed by the flags that were given.

    Args:
        folder: the run folder.
        arguments: the command line.

    Raises:
        UsageError: the folder holds no run, or a flag would change its results.
    """
    saved = saved_config(folder)
    given, _ = parse(arguments, saved)
    refuse_another_run(saved, given)
    if given.output.output != saved.output.output:
        raise UsageError(
            f"--output: a resumed run stays in its folder, {folder}; leave the flag out, or copy "
            "the folder and resume the copy"
        )
    experiment, episode = given.experiment, given.output.reproduce
    until, longer = experiment.env_steps, experiment.iterations != saved.experiment.iterations
    if longer and until is not None and until == saved.experiment.env_steps:
        raise UsageError(
            f"--iterations: the run trains until {until:,} env steps, however many iterations that "
            "takes; give --env-steps another number"
        )
    fixed = experiment.steps_per_iter is None
    if fixed and episode is not None and episode >= experiment.episodes_per_iter:
        raise UsageError(
            f"--reproduce: an episode from 0 to {experiment.episodes_per_iter - 1}, not {episode}"
        )
    return given


def saved_config(folder: Path) -> TrainConfig:
    """The configuration of the run in `folder`, to be resumed. Raises UsageError if there is
    none."""
    try:
        text = (folder / CONFIG_NAME).read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"--resume: {folder} holds no run: {error}") from error
    return TrainConfig.from_json(text).changed(resume=folder)


def refuse_another_run(saved: TrainConfig, given: TrainConfig) -> None:
    """Raise UsageError where flags would change the results of the run that is resumed."""
    if different := differences(saved, given):
        raise UsageError(
            f"--resume: these flags would make it another run: {different}. Leave them "
            "out, or begin a new run"
        )


def differences(saved: TrainConfig, given: TrainConfig) -> str:
    """The settings of `given` that make it another run than `saved`, as text; "" if there are none.

    Settings that decide the result must stay, except for the number of iterations or env steps, and
    what the algorithm's `may_change` names.
    """
    names = ("iterations", "env_steps", *saved.algorithm.may_change)
    wanted = {name: getattr(given.experiment, name) for name in names}
    extended = replace(saved.experiment, **wanted)
    pairs = [(extended, given.experiment), (saved.algorithm, given.algorithm)]
    return "; ".join(
        f"{flag(name)} {getattr(before, name)} in the run, {getattr(after, name)} now"
        for before, after in pairs
        for name in names_of(type(before))
        if getattr(before, name) != getattr(after, name)
    )
