"""The learning curve of a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

from flame_rl.report.files import read_metrics


def plot_curve(folder: Path, title: str) -> Path | None:
    """Draw curve.png from the run's metrics.csv and show it where there is a display.

    Mean reward over env steps, its spread (one standard deviation over the iteration's episodes)
    and a moving average over a tenth of the iterations.

    Args:
        folder: the run folder.
        title: above the plot.

    Returns:
        The path of the picture; None if there is nothing to draw.
    """
    if not _has_display():
        matplotlib.use("Agg")
    metrics = {name: np.array(values) for name, values in read_metrics(folder).items()}
    if not metrics:
        return None
    steps, mean, std = metrics["env_steps"], metrics["reward_mean"], metrics["reward_std"]
    window = max(1, len(mean) // 10)
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.fill_between(
        steps, mean - std, mean + std, color="0.85", label="± 1 standard deviation of the episodes"
    )
    axes.plot(steps, mean, color="0.45", linewidth=1, label="mean of an iteration", marker=".")
    if window > 1:
        smooth = np.convolve(mean, np.ones(window) / window, mode="valid")
        axes.plot(
            steps[window - 1 :],
            smooth,
            color="tab:blue",
            linewidth=2,
            label=f"moving average over {window} iterations",
        )
    axes.set(xlabel="environment steps", ylabel="reward of an episode", title=title)
    axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter())
    axes.grid(alpha=0.3)
    axes.legend(loc="best", framealpha=0.9)
    path = folder / "curve.png"
    figure.savefig(path, dpi=150)
    # Without a window toolkit, matplotlib falls back to drawing files only.
    if matplotlib.get_backend().lower() != "agg":
        plt.show()
    plt.close(figure)
    return path


def _has_display() -> bool:
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
