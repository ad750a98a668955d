"""Learning curves from run folders: runs grouped by setting, and the mean over seeds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from flame_rl.report.tables import TIMING_NAME, read_columns
from flame_rl.run.folder import EVALUATIONS_NAME, METRICS_NAME, read_config
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.environments import environment_id
from flame_rl.system.errors import UsageError

# The horizontal axis of a curve: an attribute of `Run`.
Axis = Literal["env_steps", "seconds"]

# Stands, among the columns of metrics.csv, for the mean returns of evaluations.csv.
EVALUATION = "evaluation"
# Points of a mean curve.
_POINTS = 200


@dataclass(frozen=True)
class Run:
    """The learning curve of a run; all arrays float64 [iterations].

    Attributes:
        folder: the run folder.
        config: with presets filled in.
        env_steps: total number by the end of each iteration.
        seconds: total time of collecting and updating by the end of each iteration.
        values: the mean return of each iteration's episodes, or another column of metrics.csv.
    """

    folder: Path
    config: TrainConfig
    env_steps: np.ndarray
    seconds: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Setting:
    """Runs that differ in nothing but the seed and in what changes no result.

    Attributes:
        name: the algorithm, and the fields in which others of this environment differ.
        runs: at least one.
        column: what the values of the runs are, a column of metrics.csv or `EVALUATION`.
    """

    name: str
    runs: tuple[Run, ...]
    column: str = "reward_mean"

    @property
    def env(self) -> str:
        """The environment's Gymnasium id."""
        return environment_id(self.runs[0].config.experiment.env_name)


def read_run(folder: Path) -> Run:
    """Read a run's files.

    Raises:
        UsageError: `folder` is no run folder, or no iteration was finished.
    """
    try:
        config = read_config(folder)
        metrics, timing = (read_columns(folder / name) for name in (METRICS_NAME, TIMING_NAME))
    except OSError as error:
        raise UsageError(f"{folder} holds no run: {error}") from error
    except (UsageError, ValueError, TypeError) as error:
        raise UsageError(f"{folder} holds no run that can be read: {error}") from error
    # A run that was killed may have one row more in metrics.csv than in timing.csv.
    count = min(len(metrics.get("env_steps", ())), len(timing.get("collecting_seconds", ())))
    if count == 0:
        raise UsageError(f"{folder}: no iteration was finished; {METRICS_NAME} has no rows")
    for file, columns, names in (
        (METRICS_NAME, metrics, ("env_steps", "reward_mean")),
        (TIMING_NAME, timing, ("collecting_seconds", "updating_seconds")),
    ):
        for name in names:
            if not np.isfinite(columns.get(name, [np.nan])[:count]).all():
                raise UsageError(f"{folder / file}: the column {name} is missing or has gaps")
    spent = np.add(timing["collecting_seconds"][:count], timing["updating_seconds"][:count])
    return Run(
        folder=folder,
        config=config,
        env_steps=np.array(metrics["env_steps"][:count]),
        seconds=np.cumsum(spent),
        values=np.array(metrics["reward_mean"][:count]),
    )


def without_repetitions(runs: list[Run]) -> list[Run]:
    """One run of each setting and seed, that with the most iterations: the others have the same
    returns, and would count double in a mean."""
    kept: dict[tuple[str, int], Run] = {}
    for run in runs:
        key = repr(_setting_values(run.config)), run.config.experiment.seed
        if key not in kept or len(run.values) > len(kept[key].values):
            kept[key] = run
    return list(kept.values())


def group_runs(runs: list[Run]) -> list[Setting]:
    """Group runs by setting, in the order in which the settings first appear."""
    groups: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[repr(_setting_values(run.config))].append(run)
    settings = [tuple(group) for group in groups.values()]
    return [
        Setting(_name(group[0].config, [g[0].config for g in settings]), group)
        for group in settings
    ]


def columns_of(settings: list[Setting], columns: tuple[str, ...]) -> list[Setting]:
    """For each setting and each of these columns of metrics.csv, or `EVALUATION`, a setting whose
    runs have that column in place of their returns. Of several columns the names tell which.

    Raises:
        UsageError: a run has no such column, or iterations without a value of it.
    """
    found = []
    for setting in settings:
        alone = sum(other.env == setting.env for other in settings) == 1
        for column in columns:
            name = f"{setting.name}, {column}"
            if len(columns) == 1:
                name = setting.name
            elif alone:
                name = column
            runs = tuple(_with_column(run, column) for run in setting.runs)
            found.append(Setting(name, runs, column))
    return found


def scores_of(settings: list[Setting]) -> list[Setting]:
    """The settings with the evaluations of their runs, in environments where every run has some;
    elsewhere they would be compared with returns of training, in which actions are sampled."""
    without = {each.env for each in settings if not all(map(_has_evaluations, each.runs))}
    return [
        each if each.env in without else columns_of([each], (EVALUATION,))[0] for each in settings
    ]


def _has_evaluations(run: Run) -> bool:
    try:
        table = read_columns(run.folder / EVALUATIONS_NAME)
    except (OSError, ValueError):
        return False
    return any(iteration < len(run.values) for iteration in table.get("iteration", ()))


def _with_column(run: Run, column: str) -> Run:
    if column == EVALUATION:
        return _with_evaluations(run)
    table = read_columns(run.folder / METRICS_NAME)
    if column not in table:
        raise UsageError(
            f"--columns: {run.folder / METRICS_NAME} has no column {column!r}; it has "
            f"{', '.join(table)}"
        )
    numbers = np.array(table[column][: len(run.values)])
    # Iterations of a warm-up have no loss, for example.
    there = np.isfinite(numbers)
    if not there.any():
        raise UsageError(
            f"--columns: {run.folder / METRICS_NAME}: the column {column} has no values; draw "
            "another"
        )
    return replace(
        run,
        values=numbers[there],
        env_steps=run.env_steps[there],
        seconds=run.seconds[there],
    )


def _with_evaluations(run: Run) -> Run:
    try:
        table = read_columns(run.folder / EVALUATIONS_NAME)
    except OSError as error:
        raise UsageError(
            f"--columns: {run.folder} has no evaluations; --evaluate-every makes them"
        ) from error
    iterations = np.array(table.get("iteration", ()), np.int64)
    there = iterations[iterations < len(run.values)]
    if not len(there):
        raise UsageError(f"--columns: {run.folder / EVALUATIONS_NAME} has no rows yet")
    return replace(
        run,
        values=np.array(table["reward_mean"])[: len(there)],
        env_steps=run.env_steps[there],
        seconds=run.seconds[there],
    )


def mean_curve(runs: tuple[Run, ...], axis: Axis) -> tuple[np.ndarray, np.ndarray]:
    """The mean of the runs' smoothed values: its points' places on the axis and their heights.

    It begins where every run has finished an iteration, and reaches the end of the longest run. A
    run that has ended keeps its last value: its policy changes no more, and were it left out, the
    mean would jump where it ends.

    Args:
        runs: seeds of one setting.
        axis: the horizontal axis.

    Returns:
        Two arrays float64 [P].
    """
    lines = [(getattr(run, axis), smooth(run.values)) for run in runs]
    if len(lines) == 1:
        return lines[0]
    start, stop = max(x[0] for x, _ in lines), max(x[-1] for x, _ in lines)
    grid = np.linspace(start, stop, _POINTS)
    # Beyond a line's end, np.interp gives its last value.
    return grid, np.mean([np.interp(grid, x, y) for x, y in lines], axis=0)


def smooth(values: np.ndarray) -> np.ndarray:
    """Moving average of each value and those before it, over a tenth of the values at most."""
    window = smoothing_window(len(values))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    stop = np.arange(1, len(values) + 1)
    start = np.maximum(stop - window, 0)
    return (sums[stop] - sums[start]) / (stop - start)


def smoothing_window(iterations: int) -> int:
    """The number of values that `smooth` averages."""
    return max(1, iterations // 10)


def _setting_values(config: TrainConfig) -> dict[str, object]:
    """All settings that decide the result, except the seed."""
    values = {
        "algorithm": config.algorithm_name,
        **vars(config.experiment),
        **vars(config.algorithm),
        "device": config.execution.device,
    }
    values["env"] = environment_id(config.experiment.env_name)
    del values["seed"]
    return values


def _name(config: TrainConfig, all_configs: list[TrainConfig]) -> str:
    """The algorithm, and the fields that differ between its settings in this environment."""
    mine = _setting_values(config)
    rivals = [
        values
        for values in map(_setting_values, all_configs)
        if (values["env"], values["algorithm"]) == (mine["env"], mine["algorithm"])
    ]
    differing = [name for name in mine if any(other[name] != mine[name] for other in rivals)]
    # The path says enough.
    for path, digest in (("from_", "from_digest"), ("demonstrations", "demonstrations_digest")):
        if path in differing:
            differing.remove(digest)
    # What is not there needs no words: the others have them.
    words = [
        f"{name.rstrip('_').replace('_', ' ')} {_shown(mine[name])}"
        for name in differing
        if mine[name] not in (None, ())
    ]
    return ", ".join([config.algorithm_name, *words])


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
