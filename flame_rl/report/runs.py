"""What run folders say: learning curves grouped by setting, final scores, and how far runs are."""

import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from flame_rl.report.tables import TIMING_NAME, read_columns
from flame_rl.run.folder import EVALUATIONS_NAME, METRICS_NAME, is_held, read_config
from flame_rl.run.results import Totals, bootstrap_interval, ended, mean_interval
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.experiment import environment_id
from flame_rl.system.errors import UsageError

Axis = Literal["env_steps", "seconds"]  # the horizontal axis of a curve: an attribute of `Run`
Columns = dict[str, list[float]]

EVALUATION = "evaluation"  # stands for the mean returns of evaluations.csv, as a column
_WINDOW = 1 / 20  # of the env steps of the longest run, the share over which curves are averaged
_SECONDS = ("collecting_seconds", "updating_seconds", "evaluating_seconds")
_WIDTH = 10_000  # wider than any table: no line is cut off or wrapped


@dataclass(frozen=True)
class Run:
    """The learning curve of a run: its folder and settings, by the end of each iteration the total
    number of env steps and of seconds of collecting and updating, and the mean return of its
    episodes, or another column of metrics.csv; all arrays float64 [iterations]. `metrics` and
    `evaluations` have the columns of these files."""

    folder: Path
    config: TrainConfig
    env_steps: np.ndarray
    seconds: np.ndarray
    values: np.ndarray
    metrics: Columns
    evaluations: Columns


@dataclass(frozen=True)
class Setting:
    """Runs that differ in nothing but the seed and in what changes no result, at least one; named
    by the algorithm, and the fields in which others of this environment differ. `column` says what
    the values of the runs are: a column of metrics.csv or `EVALUATION`."""

    name: str
    runs: tuple[Run, ...]
    column: str = "reward_mean"

    @property
    def env(self) -> str:
        """The environment's Gymnasium id."""
        return environment_id(self.runs[0].config.experiment.env_name)


def _read(folder: Path) -> tuple[TrainConfig, Columns, Columns, Columns]:
    """A run's settings, and the columns of its tables, if they are there. Raises UsageError."""
    try:
        config = read_config(folder)
        metrics, timing, evaluations = (
            read_columns(path) if (path := folder / name).exists() else {}
            for name in (METRICS_NAME, TIMING_NAME, EVALUATIONS_NAME)
        )
        for table, names in ((metrics, ("env_steps", "reward_mean")), (timing, _SECONDS[:2])):
            if table and not np.isfinite([table[name] for name in names]).all():
                raise ValueError(f"there are gaps in {' or '.join(names)}")
    except (OSError, UsageError, LookupError, ValueError, TypeError) as error:
        readable = "" if isinstance(error, OSError) else " that can be read"
        raise UsageError(f"{folder} holds no run{readable}: {error}") from error
    return config, metrics, timing, evaluations


def read_run(folder: Path) -> Run:
    """Read a run's files. Raises UsageError as `_read` does, or if no iteration was finished."""
    config, metrics, timing, evaluations = _read(folder)
    # A run that was killed may have one row more in metrics.csv than in timing.csv.
    count = min(len(table.get("iteration", ())) for table in (metrics, timing))
    if count == 0:
        raise UsageError(f"{folder}: no iteration was finished; its tables have no rows")
    steps, returns = (np.array(metrics[name][:count]) for name in ("env_steps", "reward_mean"))
    seconds = np.cumsum(np.sum([timing[name][:count] for name in _SECONDS[:2]], axis=0))
    return Run(folder, config, steps, seconds, returns, metrics, evaluations)


def group_runs(runs: list[Run]) -> list[Setting]:
    """Group runs by setting, in the order in which the settings first appear. Of several with one
    seed, which have the same returns, that with the most iterations counts."""
    groups: defaultdict[str, dict[int, Run]] = defaultdict(dict)
    for run in runs:
        group, seed = groups[repr(_setting_values(run.config))], run.config.experiment.seed
        if seed not in group or len(run.values) > len(group[seed].values):
            group[seed] = run
    found = [tuple(group.values()) for group in groups.values()]
    configs = [first.config for first, *_ in found]
    return [Setting(_name(group[0].config, configs), group) for group in found]


def columns_of(settings: list[Setting], columns: tuple[str, ...]) -> list[Setting]:
    """The settings with each of these columns of metrics.csv, or `EVALUATION`, in place of returns;
    of several the names tell which. Raises UsageError if a run has no value of one."""
    found = []
    for setting in settings:
        alone = sum(other.env == setting.env for other in settings) == 1
        for column in columns:
            name = column if alone else f"{setting.name}, {column}"
            runs = tuple(_with_column(run, column) for run in setting.runs)
            found.append(Setting(setting.name if len(columns) == 1 else name, runs, column))
    return found


def scores_of(settings: list[Setting]) -> list[Setting]:
    """The settings with the evaluations of their runs, in environments where every run has some;
    in others they would be compared with returns of training, in which actions are sampled."""
    found = []
    for env in dict.fromkeys(setting.env for setting in settings):
        here = [setting for setting in settings if setting.env == env]
        evaluated = all(run.evaluations for setting in here for run in setting.runs)
        found += columns_of(here, (EVALUATION,)) if evaluated else here
    return found


def _with_column(run: Run, column: str) -> Run:
    """The run with the values of a column, in the iterations that have one."""
    table, name = run.metrics, column
    if column == EVALUATION:
        table, name = run.evaluations, "reward_mean"
        if not table:
            raise UsageError(f"--columns: {run.folder} has no evaluations (--evaluate-every)")
    if name not in table:
        raise UsageError(f"--columns: {run.folder} has no {name!r}; it has {', '.join(table)}")
    values, at = np.array(table[name]), np.array(table["iteration"], np.int64)
    there = np.isfinite(values) & (at < len(run.values))  # a warm-up has no loss
    if not there.any():
        raise UsageError(f"--columns: {run.folder}: the column {name} has no values")
    values, at = values[there], at[there]
    return replace(run, values=values, env_steps=run.env_steps[at], seconds=run.seconds[at])


def window_of(settings: Sequence[Setting]) -> float:
    """The env steps over which the curves of these settings are averaged, the same for all."""
    return _WINDOW * max(run.env_steps[-1] for setting in settings for run in setting.runs)


def smooth(run: Run, window: float) -> np.ndarray:
    """For each value of a run, the mean of those within half a `window` of env steps of it."""
    sums = np.concatenate([[0.0], np.cumsum(run.values)])
    start, stop = (
        np.searchsorted(run.env_steps, run.env_steps + half, side)
        for half, side in ((-window / 2, "left"), (window / 2, "right"))
    )
    return (sums[stop] - sums[start]) / (stop - start)


def mean_curve(
    runs: Sequence[Run], axis: Axis, window: float
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """The mean of the smoothed values of a setting's seeds: its points' places on the axis, their
    heights, and the 95 % interval of these over the seeds, arrays float64 [P].

    It begins where every run has finished an iteration, and reaches the end of the longest run. A
    run that has ended keeps its last value, so that the mean does not jump there.
    """
    lines = [(getattr(run, axis), smooth(run, window)) for run in runs]
    if len(lines) == 1:
        return (*lines[0], (lines[0][1],) * 2)
    start, stop = max(x[0] for x, _ in lines), max(x[-1] for x, _ in lines)
    places = np.linspace(start, stop, 200)
    heights = np.array([np.interp(places, x, y) for x, y in lines])  # beyond the end: the last y
    return places, heights.mean(axis=0), bootstrap_interval(heights)


def final_score(run: Run) -> float:
    """The mean of the last tenth of a run's values."""
    return float(run.values[-max(1, len(run.values) // 10) :].mean())


def _setting_values(config: TrainConfig) -> dict[str, object]:
    """All settings that decide the result, except the seed."""
    values = {"algorithm": config.algorithm_name} | vars(config.experiment) | vars(config.algorithm)
    env, device = environment_id(config.experiment.env_name), config.execution.device
    return values | {"device": device, "env": env, "seed": None}


def _name(config: TrainConfig, all_configs: list[TrainConfig]) -> str:
    """The algorithm, and the fields that differ between its settings in this environment."""
    mine, words = _setting_values(config), [config.algorithm_name]
    others = [_setting_values(each) for each in all_configs]
    rivals = [o for o in others if all(o[name] == mine[name] for name in ("env", "algorithm"))]
    for name, value in mine.items():
        # What is not there needs no words: the others have them; and a path says enough.
        said = value not in (None, ()) and not name.endswith("_digest")
        if said and any(other[name] != value for other in rivals):
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
            words.append(f"{name.rstrip('_').replace('_', ' ')} {shown}")
    return ", ".join(words)


def compare(settings: list[Setting]) -> str:
    """A table of each setting's seeds, the mean of their final scores, and its 95 % interval."""
    rows = []
    for setting in settings:
        scores = np.array([final_score(run) for run in setting.runs])
        low, high = mean_interval(scores)
        interval = "-" if low is None else f"{low:,.1f} to {high:,.1f}"
        of = "training" if setting.column == "reward_mean" else setting.column
        rows.append((setting.env, setting.name, of, len(scores), float(scores.mean()), interval))
    return grid(("env", "setting", "of", "seeds", "final score", "95 % interval"), rows)


@dataclass(frozen=True)
class RunRow:
    """A run, as its folder tells. `last` and `best` are mean returns of what `score` says, None
    before the first; `seconds` are of collecting, updating and evaluating."""

    run: Path
    env: str
    algorithm: str
    seed: int
    env_steps: int
    score: Literal["evaluation", "training"]
    last: float | None
    best: float | None
    seconds: float
    state: Literal["running", "done", "interrupted"]


def read_row(folder: Path) -> RunRow:
    """The row of a run folder. Raises UsageError if it is damaged."""
    config, metrics, timing, evaluations = _read(folder)
    experiment = config.experiment
    returns, evaluated = metrics.get("reward_mean", []), evaluations.get("reward_mean", [])
    scores, done = evaluated or returns, len(returns)
    steps = int(metrics["env_steps"][-1]) if done else 0
    # Without a row of its own, no evaluation was due.
    latest = evaluations.get("iteration", [])[-1:]
    due = experiment.evaluate_every is None or latest == [done - 1]
    totals = Totals(done, 0, steps, mean_return=scores[-1] if scores and due else None)
    state = "done" if ended(experiment, totals) else "interrupted"
    return RunRow(
        run=folder,
        env=environment_id(experiment.env_name),
        algorithm=config.algorithm_name,
        seed=experiment.seed,
        env_steps=steps,
        score="evaluation" if evaluated else "training",
        last=scores[-1] if scores else None,
        best=max(scores, default=None),
        seconds=float(sum(sum(timing.get(name, [])) for name in _SECONDS)),
        state="running" if is_held(folder) else state,
    )


def grid(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of numbers and texts for the console, without colours; numbers are at the right."""
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(header):
        numbers = all(isinstance(row[place], int | float | None) for row in rows)
        table.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(_cell, row))
    console = Console(file=io.StringIO(), width=_WIDTH, markup=False, emoji=False, highlight=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
