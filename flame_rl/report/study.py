"""Pictures of a study: the best score so far, how much each setting matters, and the final."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from flame_rl.report.figures import choose_output, save_and_show


def draw_best_so_far(path: Path, trials: Sequence[tuple[float, bool]], title: str) -> Path:
    """Draw every trial's score, and the best one so far.

    Args:
        path: of the picture.
        trials: in order, the score of each, and whether it was trained to its end; at least one
            was.
        title: above the plot.

    Returns:
        `path`.
    """
    choose_output()
    scores = np.array([score for score, _ in trials])
    done = np.array([whole for _, whole in trials])
    numbers = np.arange(len(trials))
    best = np.maximum.accumulate(np.where(done, scores, -np.inf))
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(numbers[done], scores[done], "o", color="#0072B2", label="trial")
    if not done.all():
        axes.plot(
            *(numbers[~done], scores[~done], "x"), color="0.55", label="pruned: when it ended"
        )
    there = np.isfinite(best)
    # In numbers, too: beside trials that failed to learn, the good ones look alike.
    label = f"best so far: {best[-1]:.1f} in trial {np.where(done, scores, -np.inf).argmax()}"
    axes.step(*(numbers[there], best[there]), where="post", color="#D55E00", lw=2, label=label)
    axes.set(xlabel="trial", ylabel="mean return", title=title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    save_and_show(figure, path)
    return path


def draw_importances(path: Path, shares: Mapping[str, float], title: str) -> Path:
    """Draw how much each setting matters; `shares` has the greatest first, and sums to 1."""
    choose_output()
    names = [name.replace("_", " ") for name in shares]
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.35 * len(names)), layout="constrained")
    bars = axes.barh(names, list(shares.values()), color="#0072B2")
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(
        xlabel="importance for being in the better half of the trials (shares of 1)", title=title
    )
    save_and_show(figure, path)
    return path


def draw_finals(path: Path, finalists: Sequence[tuple[str, Sequence[float]]], title: str) -> Path:
    """Draw the score of each seed, and the mean.

    Args:
        path: of the picture.
        finalists: the best first, the name and the scores of each.
        title: above the plot.

    Returns:
        `path`.
    """
    choose_output()
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for place, (_, scores) in enumerate(finalists):
        label = "one seed" if place == 0 else None
        axes.plot([place] * len(scores), scores, "o", color="#0072B2", label=label)
    means = [np.mean(scores) for _, scores in finalists]
    axes.plot(means, "_", ms=30, mew=2, color="#D55E00", label="mean")
    names = [f"{name}\n{mean:.1f}" for (name, _), mean in zip(finalists, means, strict=True)]
    axes.set_xticks(range(len(names)), names)
    axes.set(ylabel="mean return without exploration", title=title)
    axes.margins(x=0.2)
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    save_and_show(figure, path)
    return path
