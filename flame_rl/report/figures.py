"""Learning curves as pictures. Lines also differ in their markers, for print in grey."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flame_rl.report.curves import EVALUATION, Axis, Setting, mean_curve, smooth, smoothing_window
from flame_rl.report.tables import read_columns
from flame_rl.run.folder import EVALUATIONS_NAME, METRICS_NAME
from flame_rl.system.errors import UsageError
from flame_rl.system.machine import has_display

SUFFIXES = (".png", ".svg")
_LABELS: dict[Axis, str] = {
    "env_steps": "environment steps",
    "seconds": "time of collecting and updating (seconds)",
}
# Colours that colour-blind readers tell apart (Okabe and Ito 2008); without colour, the first three
# are black, middle grey and light grey.
_STYLES = (
    {"color": "#000000", "marker": "o"},
    {"color": "#D55E00", "marker": "s"},
    {"color": "#56B4E9", "marker": "^"},
    {"color": "#0072B2", "marker": "D"},
    {"color": "#E69F00", "marker": "v"},
    {"color": "#009E73", "marker": "P"},
    {"color": "#CC79A7", "marker": "X"},
)
# Environments below one another.
_MOST_ROWS = 6
# Markers on each line.
_MARKERS = 8
# Characters beside one another in the legend, for each inch of the picture.
_LEGEND_WIDTH = 12


def plot_curve(folder: Path, title: str) -> Path | None:
    """Draw curves.png from the run's metrics.csv and show it where there is a display.

    It shows the mean return over env steps, its spread (one standard deviation over the iteration's
    episodes), a moving average over a tenth of the iterations, and the evaluations.

    Args:
        folder: the run folder.
        title: above the plot.

    Returns:
        The path of the picture; None if there is nothing to draw.
    """
    choose_output()
    metrics = {
        name: np.array(values) for name, values in read_columns(folder / METRICS_NAME).items()
    }
    if not metrics:
        return None
    steps, mean, std = metrics["env_steps"], metrics["reward_mean"], metrics["reward_std"]
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.fill_between(
        steps, mean - std, mean + std, color="0.85", label="± 1 standard deviation of the episodes"
    )
    axes.plot(steps, mean, color="0.45", linewidth=1, label="mean of an iteration", marker=".")
    window = smoothing_window(len(mean))
    if window > 1:
        label = f"moving average over {window} iterations"
        axes.plot(steps, smooth(mean), color="tab:blue", linewidth=2, label=label)
    _draw_evaluations(axes, folder)
    _finish(axes, "env_steps")
    axes.set(ylabel="return of an episode", title=title)
    axes.legend(loc="best", framealpha=0.9)
    path = folder / "curves.png"
    save_and_show(figure, path)
    return path


def _draw_evaluations(axes: Axes, folder: Path) -> None:
    """The evaluations of a run that has some, with their 95 % intervals."""
    path = folder / EVALUATIONS_NAME
    if not path.exists() or not (rows := read_columns(path)):
        return
    mean, low, high = (np.array(rows[f"reward_{name}"]) for name in ("mean", "low", "high"))
    axes.errorbar(
        rows["env_steps"],
        mean,
        # Rounding may put an interval's end on the other side of the mean.
        np.maximum(0, [mean - low, high - mean]),
        fmt="D",
        color="tab:red",
        markersize=4,
        capsize=2,
        label="evaluation, with its 95 % interval",
    )


def pages_of(settings: list[Setting]) -> list[list[Setting]]:
    """The settings in parts that are legible in one picture each: so many environments, and so many
    names."""
    envs = list(dict.fromkeys(setting.env for setting in settings))
    pages = []
    for some in _in_parts(envs, _MOST_ROWS):
        here = [setting for setting in settings if setting.env in some]
        names = list(dict.fromkeys(setting.name for setting in here))
        for part in _in_parts(names, len(_STYLES)):
            pages.append([setting for setting in here if setting.name in part])
    return pages


def _in_parts(names: list[str], most: int) -> list[list[str]]:
    """As few parts as can be, of about the same size."""
    count = -(-len(names) // most)
    return [list(part) for part in np.array_split(np.array(names, object), count)]


def plot_settings(
    settings: list[Setting], path: Path, columns: tuple[str, ...] = ("reward_mean",)
) -> None:
    """Draw the settings' curves over env steps and over seconds, a row for each environment, and
    show them where there is a display. Of several columns, the second would be no other picture.

    Args:
        settings: of one or more environments.
        path: of the picture; its suffix is one of `SUFFIXES`.
        columns: the columns of metrics.csv that the curves show.

    Raises:
        UsageError: more settings than can be told apart; `pages_of` prevents it.
    """
    choose_output()
    # A name has the same style in every row.
    names = list(dict.fromkeys(setting.name for setting in settings))
    if len(names) > len(_STYLES):
        raise UsageError(
            f"{len(names)} settings in one picture; at most {len(_STYLES)} are legible"
        )
    envs = list(dict.fromkeys(setting.env for setting in settings))
    across: tuple[Axis, ...] = ("env_steps",) if len(columns) > 1 else tuple(_LABELS)
    width = 8 if len(columns) > 1 else 11
    figure, grid = plt.subplots(
        len(envs),
        len(across),
        figsize=(width, 1.2 + 3.6 * len(envs)),
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for env, row in zip(envs, grid, strict=True):
        for axis, axes in zip(across, row, strict=True):
            for setting in settings:
                if setting.env == env:
                    _draw(axes, axis, setting, names.index(setting.name))
            _finish(axes, axis)
        returns = all(column.startswith(("reward_", EVALUATION)) for column in columns)
        of_env = {setting.column for setting in settings if setting.env == env}
        label = "return of an episode" if returns else "mean of an iteration"
        row[0].set_ylabel("return in evaluations" if of_env == {EVALUATION} else label)
        row[0].set_title(env, loc="left", fontweight="bold")
    entries = _legend(grid.ravel())
    # Long names need fewer columns to fit in the picture.
    beside = _LEGEND_WIDTH * width // (10 + max(map(len, entries["labels"])))
    legend = figure.legend(
        **entries,
        loc="outside lower center",
        ncols=min(len(names), max(1, beside)),
        handlelength=4,
        frameon=False,
        title=_caption(settings),
        title_fontsize="medium",
    )
    legend.get_title().set_multialignment("center")
    save_and_show(figure, path)


def _draw(axes: Axes, axis: Axis, setting: Setting, number: int) -> None:
    """Thin lines for the runs (for the iterations of a single one), a thick line for their mean."""
    style, runs = _STYLES[number], setting.runs
    single = len(runs) == 1
    for run in runs:
        heights = run.values if single else smooth(run.values)
        thin = {"color": style["color"], "linewidth": 0.8, "alpha": 0.45}
        # Below the thick lines of all settings.
        axes.plot(getattr(run, axis), heights, zorder=1.9, **thin)
    x, mean = mean_curve(runs, axis)
    step = max(1, len(x) // _MARKERS)
    # Where lines run together, markers at different places still tell them apart.
    first = number * step // len(_STYLES)
    seeds = f"seed {runs[0].config.experiment.seed}" if single else f"{len(runs)} seeds"
    label = _literal(f"{setting.name} ({seeds})")
    axes.plot(x, mean, label=label, linewidth=2.4, markevery=(first, step), markersize=5, **style)


def _literal(text: str) -> str:
    """A label that is shown as it is: not hidden for its leading underscore, and without
    mathematics."""
    return re.sub("^_", "\u200b_", text).replace("$", r"\$")


def _caption(settings: list[Setting]) -> str:
    lines = ["Moving averages over a tenth of the iterations."]
    if any(len(setting.runs) > 1 for setting in settings):
        lines.append(
            "Thick: mean of the seeds; a run that has ended keeps its last value. Thin: each seed."
        )
    if any(len(setting.runs) == 1 for setting in settings):
        lines.append("Thin, of a single seed: its iterations, not averaged.")
    return "\n".join(lines)


def _legend(panels: Iterable[Axes]) -> dict[str, list]:
    """The lines of all panels, each label once."""
    lines = {line.get_label(): line for axes in panels for line in axes.get_lines()}
    named = {label: line for label, line in lines.items() if not label.startswith("_")}
    return {"labels": list(named), "handles": list(named.values())}


def _finish(axes: Axes, axis: Axis) -> None:
    axes.set_xlabel(_LABELS[axis])
    if axis == "env_steps":
        axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)


def choose_output() -> None:
    """Draw files only, where there is no display."""
    if not has_display():
        matplotlib.use("Agg")


def save_and_show(figure: Figure, path: Path) -> None:
    """Write the picture, and show it where there is a display."""
    figure.savefig(path, dpi=150)
    # Without a window toolkit, matplotlib falls back to drawing files only.
    if matplotlib.get_backend().lower() != "agg":
        plt.show()
    plt.close(figure)
