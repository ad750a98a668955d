"""`main.py runs`: a table of the runs in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from flame_rl.settings.parse import parse_command
from flame_rl.system.errors import UsageError
from flame_rl.system.files import why_refused
from flame_rl.system.output import say, warn

if TYPE_CHECKING:
    from flame_rl.report.runs import RunRow

# Columns that are sorted from the greatest to the least.
_GREATEST_FIRST = ("env_steps", "last", "best", "seconds")


@dataclass(frozen=True)
class RunsCommand:
    """List the runs in a folder, at any depth, with how far they are and how good.

    The last and the best score are mean returns: of the evaluations, or where a run has none, of
    the iterations in training. A run is running, done, or interrupted: --resume goes on with it.
    """

    folder: tyro.conf.Positional[Path] = Path("runs")
    """The folder."""

    sort: Literal[
        "run", "env", "algorithm", "seed", "env-steps", "last", "best", "seconds", "state"
    ] = "run"
    """The column that decides the order; the greatest scores, env steps and seconds come first."""

    env: str | None = None
    """Only runs in this environment, named as for training."""

    algorithm: str | None = None
    """Only runs of this algorithm."""

    json: bool = False
    """Print a line of JSON for each run."""


def runs(arguments: Sequence[str]) -> None:
    """Run the command. Raises UsageError if there is no such folder."""
    command = parse_command(RunsCommand, arguments, "main.py runs")
    # Here and not above, so that --help and mistakes are answered at once.
    from flame_rl.report.runs import RunRow, grid, read_row
    from flame_rl.run.folder import runs_below

    try:
        folders, foreign = runs_below(command.folder)
    except OSError as error:
        raise UsageError(f"runs: {why_refused(error)}; name a folder of runs") from error
    rows: list[RunRow] = []
    for folder in folders:
        try:
            rows.append(read_row(folder))
        except UsageError as error:
            warn(f"warning: {error}; it is left out")
    for folder in foreign:
        warn(f"warning: {folder} holds no run; it is left out")
    rows = _chosen(rows, command)
    if command.json:
        for row in rows:
            say(json.dumps(asdict(row) | {"run": str(row.run)}))
        return
    if not rows:
        asked = " that was asked for" * any((command.env, command.algorithm))
        say(f"{command.folder}: no run{asked}")
        return
    names = [field.name for field in fields(RunRow)]
    # The folder last: it may be long.
    names.append(names.pop(0))
    header = [name.replace("_", " ") for name in names]
    say(grid(header, [[getattr(row, name) for name in names] for row in rows]))


def _chosen(rows: list[RunRow], command: RunsCommand) -> list[RunRow]:
    """Those that were asked for, in the order that was asked for; what has no score comes last."""
    from flame_rl.settings.experiment import environment_id

    env = None if command.env is None else environment_id(command.env)
    chosen = [
        row for row in rows if env in (None, row.env) and command.algorithm in (None, row.algorithm)
    ]
    column = command.sort.replace("-", "_")
    having = [row for row in chosen if getattr(row, column) is not None]
    having.sort(key=lambda row: getattr(row, column), reverse=column in _GREATEST_FIRST)
    return having + [row for row in chosen if row not in having]
