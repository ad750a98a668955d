"""`main.py plot RUN [RUN ...]`: draw the learning curves of one or more runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from flame_rl.settings.parse import parse_command
from flame_rl.system.errors import UsageError, say, warn
from flame_rl.system.files import refuse_unless_file


@dataclass(frozen=True)
class PlotCommand:
    """Draw learning curves over environment steps and over seconds; of several columns, over
    environment steps alone.

    Runs that differ in nothing but the seed share a colour: a thin line for each, a thick one for
    their mean, and a band, its 95 % interval (bootstrap). A table compares their final scores, the
    means of the last tenth of each run, with Student's 95 % interval over the seeds.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run folders, or folders of them; of one environment or of several."""

    columns: tuple[str, ...] = ()
    """Columns of metrics.csv, or evaluation; by default that, or else reward_mean."""

    output: Path = Path("curves.png")
    """The picture, .png or .svg."""


def plot(arguments: Sequence[str]) -> None:
    """Run the command. Raises UsageError if there is nothing to draw."""
    command = parse_command(PlotCommand, arguments, "plot")
    from flame_rl.report.figures import SUFFIXES, plot_settings
    from flame_rl.report.runs import columns_of, compare, group_runs, read_run, scores_of
    from flame_rl.run.folder import runs_below

    if not command.runs:
        raise UsageError("plot: name one run folder or more, such as runs/*")
    if command.output.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--output: {command.output} must end in {' or '.join(SUFFIXES)}")
    refuse_unless_file(command.output, "--output: ")
    below = [(runs_below(path)[0] if path.is_dir() else []) or [path] for path in command.runs]
    folders = list(dict.fromkeys(folder for some in below for folder in some))
    runs = []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except UsageError as error:
            if len(folders) == 1:
                raise
            warn(f"warning: {error}; it is left out")
    if not runs:
        raise UsageError("plot: none of these folders holds a run with an iteration to draw")
    groups = group_runs(runs)
    settings = columns_of(groups, command.columns) if command.columns else scores_of(groups)
    plot_settings(settings, command.output, command.columns or ("reward_mean",))
    say(f"Curves: {command.output}")
    if len(runs) > 1:
        say(f"\n{compare(settings)}")
