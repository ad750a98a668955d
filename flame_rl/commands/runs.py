"""`main.py runs`: a table of the runs in folders."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import tyro

from flame_rl.settings.checks import names_of
from flame_rl.settings.parse import parse_command
from flame_rl.system.errors import UsageError, say, warn
from flame_rl.system.files import refused_as

_GREATEST_FIRST = ("env_steps", "last", "best", "seconds")  # from the greatest to the least


@dataclass(frozen=True)
class RunsCommand:
    """List the runs in folders, at any depth, with how far they are and how good.

    The last and the best score are mean returns: of the evaluations, or where a run has none, of
    the iterations in training. A run is running, done, or interrupted: --resume goes on with it.
    """

    folders: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """The folders, or run folders themselves."""

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
    command = parse_command(RunsCommand, arguments, "runs")
    from flame_rl.report.runs import RunRow, grid, read_row
    from flame_rl.run.folder import runs_below
    from flame_rl.settings.experiment import environment_id

    with refused_as(UsageError, "runs", "; name a folder of runs"):
        found = [runs_below(folder) for folder in command.folders]
    rows: list[RunRow] = []
    for folder in dict.fromkeys(folder for folders, _ in found for folder in folders):
        try:
            rows.append(read_row(folder))
        except UsageError as error:
            warn(f"warning: {error}; it is left out")
    for folder in dict.fromkeys(folder for _, foreign in found for folder in foreign):
        warn(f"warning: {folder} holds no run; it is left out")
    env = None if command.env is None else environment_id(command.env)
    algorithm, column = command.algorithm, command.sort.replace("-", "_")
    rows = [row for row in rows if env in (None, row.env) and algorithm in (None, row.algorithm)]
    having = [row for row in rows if getattr(row, column) is not None]  # others come last
    having.sort(key=lambda row: getattr(row, column), reverse=column in _GREATEST_FIRST)
    rows = having + [row for row in rows if getattr(row, column) is None]
    if command.json:
        for row in rows:
            say(json.dumps(asdict(row) | {"run": str(row.run)}))
    elif rows:
        first, *names = names_of(RunRow)  # the folder last: it may be long
        names.append(first)
        header = [name.replace("_", " ") for name in names]
        say(grid(header, [[getattr(row, name) for name in names] for row in rows]))
    else:
        named = ", ".join(map(str, command.folders))
        say(f"{named}: no run{' that was asked for' * any((env, algorithm))}")
