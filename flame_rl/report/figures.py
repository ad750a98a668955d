"""Pictures: learning curves, and the final of a study; lines differ in grey, too, by markers."""

import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flame_rl.report import runs
from flame_rl.system.machine import has_display

# Files only, where there is no display.
if not has_display():
    matplotlib.use("Agg")

SUFFIXES = (".png", ".svg")
_LABELS: dict[runs.Axis, str] = {
    "env_steps": "environment steps",
    "seconds": "time of collecting and updating (seconds)",
}
_RED, _BLUE = "#D55E00", "#0072B2"
# Colours that colour-blind readers tell apart (Okabe and Ito 2008); the first three also in grey.
_COLORS = ("#000000", _RED, "#56B4E9", _BLUE, "#E69F00", "#009E73", "#CC79A7")
_STYLES = [{"color": color, "marker": m} for color, m in zip(_COLORS, "os^DvPX", strict=True)]
_ONE_PANEL = (8, 4.5)  # inches
_CAPTION = (
    "Thick line: mean of the seeds, averaged over a twentieth of the longest run's env steps; one "
    "that has ended keeps its last value.\nBand: its 95 % interval (bootstrap). Thin lines: each "
    "seed, or of a single one its iterations."
)


def plot_settings(
    settings: list[runs.Setting], path: Path, columns: tuple[str, ...] = ("reward_mean",)
) -> None:
    """Draw and show the curves of settings, a row of panels for each environment: over env steps
    and over seconds, or of several `columns` of metrics.csv over env steps alone."""
    names = list(dict.fromkeys(setting.name for setting in settings))  # each has its own style
    envs = list(dict.fromkeys(setting.env for setting in settings))
    across: tuple[runs.Axis, ...] = ("env_steps",) if len(columns) > 1 else tuple(_LABELS)
    width = 8 if len(columns) > 1 else 11
    size = (width, 1.2 + 3.6 * len(envs))
    figure, panels = plt.subplots(
        *(len(envs), len(across)), figsize=size, sharey="row", squeeze=False, layout="constrained"
    )
    returns = all(column.startswith(("reward_", runs.EVALUATION)) for column in columns)
    for env, row in zip(envs, panels, strict=True):
        here = [setting for setting in settings if setting.env == env]
        for axis, axes in zip(across, row, strict=True):
            for setting in here:
                _draw(axes, axis, setting, names.index(setting.name), runs.window_of(here))
            _finish(axes, axis)
        label = "return of an episode" if returns else "mean of an iteration"
        evaluated = {setting.column for setting in here} == {runs.EVALUATION}
        row[0].set_ylabel("return in evaluations" if evaluated else label)
        row[0].set_title(env, loc="left", fontweight="bold")
    # The lines of all panels, each label once.
    lines = [line for axes in panels.flat for line in axes.get_legend_handles_labels()[0]]
    named = {line.get_label(): line for line in lines}
    beside = 12 * width // (10 + max(map(len, named)))  # an inch has twelve characters
    legend = figure.legend(
        handles=list(named.values()),
        loc="outside lower center",
        ncols=min(len(names), max(1, beside)),
        handlelength=4,
        frameon=False,
        title=_CAPTION,
        title_fontsize="medium",
    )
    legend.get_title().set_multialignment("center")
    save_and_show(figure, path)


def plot_run(folder: Path) -> Path:
    """Draw curves.png of a run folder over env steps, and show it where there is a display: the
    return, its spread over the episodes of an iteration, and the evaluations; returns its path."""
    run = runs.read_run(folder)
    (setting,) = runs.group_runs([run])
    figure, axes = plt.subplots(figsize=_ONE_PANEL, layout="constrained")
    axes.set(ylabel="return of an episode", title=setting.env)
    mean, std = (np.array(run.metrics[name]) for name in ("reward_mean", "reward_std"))
    spread = "± 1 standard deviation of the episodes"
    axes.fill_between(run.metrics["env_steps"], mean - std, mean + std, color="0.85", label=spread)
    _draw(axes, "env_steps", setting, 0, runs.window_of([setting]))
    if rows := run.evaluations:
        mean, low, high = (np.array(rows[f"reward_{name}"]) for name in ("mean", "low", "high"))
        reach = np.maximum(0, [mean - low, high - mean])  # rounded, the mean may be outside
        style = {"fmt": "D", "color": _RED, "markersize": 4, "capsize": 2}
        label = "evaluation, with its 95 % interval"
        axes.errorbar(rows["env_steps"], mean, reach, label=label, **style)
    _finish(axes, "env_steps")
    axes.legend(title="Thick: average over a twentieth of the env steps")
    return save_and_show(figure, folder / "curves.png")


def _draw(axes: Axes, axis: runs.Axis, setting: runs.Setting, number: int, window: float) -> None:
    """A thick line for the mean of the runs, in its 95 % interval, and a thin line for each."""
    again, place = divmod(number, len(_STYLES))
    style, single = _STYLES[place], len(setting.runs) == 1
    x, mean, interval = runs.mean_curve(setting.runs, axis, window)
    for run in setting.runs:
        heights = run.values if single else runs.smooth(run, window)
        thin = {"color": style["color"], "linewidth": 0.8, "alpha": 0.45}
        axes.plot(getattr(run, axis), heights, zorder=1.9, **thin)  # below all thick lines
    axes.fill_between(x, *interval, color=style["color"], alpha=0.2, linewidth=0)
    step = max(1, len(x) // 8)  # eight markers on each line
    # Where lines run together, markers at different places still tell them apart.
    first = 3 * place % len(_STYLES) * step // len(_STYLES)
    seed, count = setting.runs[0].config.experiment.seed, len(setting.runs)
    seeds = f"seed {seed}" if single else f"{count} seeds"
    # Not hidden for its leading underscore, and without mathematics.
    name = re.sub("^_", "\u200b_", setting.name).replace("$", r"\$")
    thick = {"linewidth": 2.4, "markevery": (first, step), "markersize": 5}
    thick["linestyle"] = ("-", "--", ":")[min(again, 2)]
    axes.plot(x, mean, label=f"{name} ({seeds})", **thick, **style)


def _finish(axes: Axes, axis: runs.Axis) -> None:
    axes.set_xlabel(_LABELS[axis])
    if axis == "env_steps":
        axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)


def draw_finals(path: Path, finalists: Sequence[tuple[str, Sequence[float]]], title: str) -> Path:
    """Draw the scores of the seeds of each finalist, named, the best first; returns `path`."""
    figure, axes = plt.subplots(figsize=_ONE_PANEL, layout="constrained")
    axes.set(ylabel="mean return without exploration", title=title)
    for place, (_, scores) in enumerate(finalists):
        label = "one seed" if place == 0 else None
        # Side by side, because scores may be equal.
        beside = place + 0.03 * (np.arange(len(scores)) - (len(scores) - 1) / 2)
        axes.plot(beside, scores, "o", color=_BLUE, label=label)
    means = [np.mean(scores) for _, scores in finalists]
    axes.plot(means, "_", ms=30, mew=2, color=_RED, label="mean")
    names = [f"{name}\n{mean:.1f}" for (name, _), mean in zip(finalists, means, strict=True)]
    axes.set_xticks(range(len(names)), names)
    axes.margins(x=0.2)
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return save_and_show(figure, path)


def save_and_show(figure: Figure, path: Path) -> Path:
    """Write the picture, show it where there is a display, and return its path."""
    figure.savefig(path, dpi=150, bbox_inches="tight")
    if matplotlib.get_backend().lower() != "agg":  # no window toolkit is there
        plt.show()
    plt.close(figure)
    return path
