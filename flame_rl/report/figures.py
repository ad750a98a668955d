"""Learning curves as pictures. Lines also differ in dashes and markers, for print in grey."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flame_rl.report.curves import Axis, Setting, mean_curve, smooth, smoothing_window
from flame_rl.report.tables import read_metrics
from flame_rl.system.display import has_display
from flame_rl.system.errors import UsageError

SUFFIXES = (".png", ".svg")
_LABELS: dict[Axis, str] = {
    "env_steps": "environment steps",
    "seconds": "seconds of collecting and updating",
}
# Colours that colour-blind readers tell apart (Okabe and Ito 2008); without colour, the first three
# are black, middle grey and light grey.
_STYLES = (
    {"color": "#000000", "linestyle": "-", "marker": "o"},
    {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    {"color": "#56B4E9", "linestyle": "-.", "marker": "^"},
    {"color": "#0072B2", "linestyle": (0, (1, 1)), "marker": "D"},
    {"color": "#E69F00", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "#009E73", "linestyle": (0, (8, 2)), "marker": "P"},
    {"color": "#CC79A7", "linestyle": (0, (3, 3)), "marker": "X"},
)
# Markers on each line.
_MARKERS = 8


def plot_curve(folder: Path, title: str) -> Path | None:
    """Draw curve.png from the run's metrics.csv and show it where there is a display.

    It shows the mean reward over env steps, its spread (one standard deviation over the iteration's
    episodes) and a moving average over a tenth of the iterations.

    Args:
        folder: the run folder.
        title: above the plot.

    Returns:
        The path of the picture; None if there is nothing to draw.
    """
    _choose_output()
    metrics = {name: np.array(values) for name, values in read_metrics(folder).items()}
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
    _finish(axes, "env_steps")
    axes.set(ylabel="reward of an episode", title=title)
    axes.legend(loc="best", framealpha=0.9)
    path = folder / "curve.png"
    _save_and_show(figure, path)
    return path


def plot_settings(settings: list[Setting], path: Path) -> None:
    """Draw the settings' curves over env steps and over seconds, a row for each environment, and
    show them where there is a display.

    Args:
        settings: of one or more environments.
        path: of the picture; its suffix is one of `SUFFIXES`.

    Raises:
        UsageError: more settings than can be told apart.
    """
    _choose_output()
    # A name has the same style in every row.
    names = list(dict.fromkeys(setting.name for setting in settings))
    if len(names) > len(_STYLES):
        raise UsageError(
            f"{len(names)} settings in one picture; at most {len(_STYLES)} are legible"
        )
    envs = list(dict.fromkeys(setting.env for setting in settings))
    figure, grid = plt.subplots(
        len(envs),
        len(_LABELS),
        figsize=(11, 1.2 + 3.6 * len(envs)),
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for env, row in zip(envs, grid, strict=True):
        for axis, axes in zip(_LABELS, row, strict=True):
            for setting in settings:
                if setting.env == env:
                    _draw(axes, axis, setting, names.index(setting.name))
            _finish(axes, axis)
        row[0].set_ylim(_limits([setting for setting in settings if setting.env == env]))
        row[0].set_ylabel("reward of an episode")
        row[0].set_title(env, loc="left", fontweight="bold")
    figure.legend(
        **_legend(grid.ravel()),
        loc="outside lower center",
        ncols=min(4, len(settings)),
        handlelength=4,
        frameon=False,
        title=_caption(settings),
        title_fontsize="medium",
    )
    _save_and_show(figure, path)


def _draw(axes: Axes, axis: Axis, setting: Setting, number: int) -> None:
    style, curve = _STYLES[number], mean_curve(setting.runs, axis)
    seeds = len(setting.runs)
    if seeds == 1:
        (run,) = setting.runs
        label = f"{setting.name} (seed {run.config.experiment.seed})"
        axes.plot(getattr(run, axis), run.rewards, color=style["color"], alpha=0.3, linewidth=0.8)
    else:
        label = f"{setting.name} ({seeds} seeds)"
        low, high = curve.mean - curve.half_width, curve.mean + curve.half_width
        axes.fill_between(curve.x, low, high, color=style["color"], alpha=0.13, linewidth=0)
        edge = {"color": style["color"], "linestyle": style["linestyle"], "linewidth": 0.6}
        for border in (low, high):
            axes.plot(curve.x, border, **edge)
    step = max(1, len(curve.x) // _MARKERS)
    # Where lines run together, markers at different places still tell them apart.
    first = number * step // len(_STYLES)
    axes.plot(
        curve.x,
        curve.mean,
        label=label,
        linewidth=1.8,
        markersize=5,
        markevery=(first, step),
        **style,
    )


def _limits(settings: list[Setting]) -> tuple[float, float]:
    """Limits of the vertical axis, from the runs alone: a band may reach far beyond all of them."""
    several = [smooth(r.rewards) for s in settings for r in s.runs if len(s.runs) > 1]
    single = [s.runs[0].rewards for s in settings if len(s.runs) == 1]
    shown = np.concatenate(several + single)
    margin = 0.06 * float(np.ptp(shown)) or 1.0
    return float(shown.min()) - margin, float(shown.max()) + margin


def _caption(settings: list[Setting]) -> str:
    text = "Lines: moving average over a tenth of the iterations"
    if any(len(setting.runs) > 1 for setting in settings):
        text += ", mean of the seeds. Bands: 95 % interval of that mean"
    if any(len(setting.runs) == 1 for setting in settings):
        text += ". Pale: single iterations"
    return text + "."


def _legend(panels: Iterable[Axes]) -> dict[str, list]:
    """The lines of all panels, each label once."""
    lines = {line.get_label(): line for axes in panels for line in axes.get_lines()}
    named = {label: line for label, line in lines.items() if not label.startswith("_")}
    return {"labels": list(named), "handles": list(named.values())}


def _finish(axes: Axes, axis: Axis) -> None:
    axes.set_xlabel(_LABELS[axis])
    axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter())
    axes.grid(alpha=0.3)


def _choose_output() -> None:
    if not has_display():
        matplotlib.use("Agg")


def _save_and_show(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=150)
    # Without a window toolkit, matplotlib falls back to drawing files only.
    if matplotlib.get_backend().lower() != "agg":
        plt.show()
    plt.close(figure)
