"""`main.py plot RUN [RUN ...]`: draw the learning curves of one or more runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from flame_rl.settings.parse import parse_command
from flame_rl.system.errors import UsageError
from flame_rl.system.output import say, warn

if TYPE_CHECKING:
    from flame_rl.report.curves import Run


@dataclass(frozen=True)
class PlotCommand:
    """Draw learning curves over environment steps and over seconds; of several columns, over
    environment steps alone.

    Runs that differ in nothing but the seed share a colour: a thin line for each, a thick one for
    their mean.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders; of one environment or of several."""

    columns: tuple[str, ...] = ("reward_mean",)
    """Columns of metrics.csv, a curve for each; evaluation: the mean return of evaluations."""

    output: Path = Path("curves.png")
    """The picture, .png or .svg."""


def plot(arguments: Sequence[str]) -> None:
    """Run the command. Raises UsageError if there is nothing to draw."""
    command = parse_command(PlotCommand, arguments, "main.py plot")
    # Here and not above, so that --help and mistakes are answered at once.
    from flame_rl.report.curves import columns_of, group_runs, without_repetitions
    from flame_rl.report.figures import SUFFIXES, plot_settings

    if not command.runs:
        raise UsageError("plot: name one run folder or more, such as runs/*")
    if command.output.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--output: {command.output} must end in {' or '.join(SUFFIXES)}")
    found = _readable(list(dict.fromkeys(command.runs)))
    runs = without_repetitions(found)
    for run in found:
        if not any(run is each for each in runs):
            warn(
                f"warning: {run.folder} is left out: another of these runs has its configuration "
                "and seed"
            )
    for run in runs:
        done, wanted = len(run.values), run.config.experiment.iterations
        if done < wanted and run.config.experiment.env_steps is None:
            warn(
                f"warning: {run.folder} has {done} of its {wanted} iterations; a mean of seeds "
                "keeps its last value from there on"
            )
    settings = columns_of(group_runs(runs), command.columns)
    plot_settings(settings, command.output, command.columns)
    say(f"Curves: {command.output}")


def _readable(folders: list[Path]) -> list[Run]:
    """The runs in these folders; of several, those that cannot be read are left out."""
    from flame_rl.report.curves import read_run

    runs: list[Run] = []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except UsageError as error:
            if len(folders) == 1:
                raise
            warn(f"warning: {error}; it is left out")
    if not runs:
        raise UsageError("plot: none of these folders holds a run with an iteration to draw")
    return runs
