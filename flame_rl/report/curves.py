"""Learning curves from run folders: runs grouped by setting, and the mean over seeds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from flame_rl.report.tables import METRICS_NAME, TIMING_NAME, read_metrics, read_timing
from flame_rl.run.folder import CONFIG_NAME
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError

# The horizontal axis of a curve: an attribute of `Run`.
Axis = Literal["env_steps", "seconds"]

# Student's t, 0.975 quantile, for 1 to 10 degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
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
        rewards: mean over the iteration's episodes.
    """

    folder: Path
    config: TrainConfig
    env_steps: np.ndarray
    seconds: np.ndarray
    rewards: np.ndarray


@dataclass(frozen=True)
class Setting:
    """Runs that differ in nothing but the seed and in what changes no result.

    Attributes:
        name: the algorithm, and the fields in which others of this environment differ.
        runs: at least one.
    """

    name: str
    runs: tuple[Run, ...]

    @property
    def env(self) -> str:
        return self.runs[0].config.experiment.env


@dataclass(frozen=True)
class Curve:
    """Points of a line, float64 [P] each; `half_width` is 0 if there is only one run."""

    x: np.ndarray
    mean: np.ndarray
    half_width: np.ndarray


def read_run(folder: Path) -> Run:
    """Read a run's files.

    Raises:
        UsageError: `folder` is no run folder, or no iteration was finished.
    """
    try:
        config = TrainConfig.from_json((folder / CONFIG_NAME).read_text(errors="replace"))
        metrics, timing = read_metrics(folder), read_timing(folder)
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
        rewards=np.array(metrics["reward_mean"][:count]),
    )


def group_runs(runs: list[Run]) -> list[Setting]:
    """Group runs by setting, in the order in which the settings first appear.

    Raises:
        UsageError: two runs of a setting have the same seed, which would count double.
    """
    groups: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        values = _setting_values(run.config)
        same = groups[repr(values)]
        for other in same:
            if other.config.experiment.seed == run.config.experiment.seed:
                raise UsageError(
                    f"{other.folder} and {run.folder} have the same configuration and seed; name "
                    "one of them"
                )
        same.append(run)
    settings = [tuple(group) for group in groups.values()]
    return [
        Setting(_name(group[0].config, [g[0].config for g in settings]), group)
        for group in settings
    ]


def mean_curve(runs: tuple[Run, ...], axis: Axis) -> Curve:
    """The mean of the runs' smoothed rewards and half the width of its 95 % interval.

    The interval is Student's, so it takes the seeds' results for normally distributed; it covers
    the mean over all seeds, not a single seed's result. It ends where the first run ends.

    Args:
        runs: seeds of one setting.
        axis: the horizontal axis.
    """
    lines = [(getattr(run, axis), smooth(run.rewards)) for run in runs]
    if len(lines) == 1:
        ((x, y),) = lines
        return Curve(x, y, np.zeros_like(y))
    start, stop = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    grid = np.linspace(start, max(start, stop), _POINTS)
    values = np.stack([np.interp(grid, x, y) for x, y in lines])
    error = values.std(axis=0, ddof=1) / np.sqrt(len(lines))
    return Curve(grid, values.mean(axis=0), student(len(lines) - 1) * error)


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


def student(degrees: int) -> float:
    """The 0.975 quantile of Student's t (beyond 10 by its expansion around the normal quantile,
    Abramowitz and Stegun 1964, 26.7.5)."""
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    return 1.95996 + 2.37227 / degrees + 2.82250 / degrees**2


def _setting_values(config: TrainConfig) -> dict[str, object]:
    """All settings that decide the result, except the seed."""
    values = {
        "algorithm": config.algorithm_name,
        **vars(config.experiment),
        **vars(config.algorithm),
    }
    values["env"] = config.experiment.env_name
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
    return ", ".join(
        [config.algorithm_name, *(f"{name.replace('_', ' ')} {mine[name]}" for name in differing)]
    )
