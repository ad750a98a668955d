"""Settings compared by the final scores of their seeds."""

from __future__ import annotations

import math

import numpy as np

from flame_rl.report.curves import Setting, smooth
from flame_rl.report.grid import grid

# Points of the integral of a density, and halvings of the interval that holds a quantile.
_POINTS = 20_001
_HALVINGS = 60


def compare(settings: list[Setting]) -> str:
    """A table: for each setting the number of seeds, the mean of their final scores, and its 95 %
    interval. A final score is the mean of the last tenth of a run's values."""
    rows = []
    for setting in settings:
        scores = np.array([smooth(run.values)[-1] for run in setting.runs])
        interval = "-"
        if len(scores) > 1:
            low, high = mean_interval(scores)
            interval = f"{low:,.1f} to {high:,.1f}"
        of = "training" if setting.column == "reward_mean" else setting.column
        mean = float(scores.mean())
        rows.append((setting.env, setting.name, of, len(scores), mean, interval))
    return grid(("env", "setting", "of", "seeds", "final score", "95 % interval"), rows)


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Student's 95 % interval of the mean of a few values, float64 [N] with N at least 2 (Student
    1908, "The Probable Error of a Mean"): of two or three seeds a bootstrap's would be far too
    narrow."""
    count, mean = len(values), float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(count)
    reach = student_quantile(0.975, count - 1) * error
    return mean - reach, mean + reach


def student_quantile(share: float, freedom: int) -> float:
    """The t below which Student's distribution has this share, above a half."""
    low, high = 0.0, 1.0
    while _student_share(high, freedom) < share:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = _student_share(middle, freedom) < share
        low, high = (middle, high) if below else (low, middle)
    return high


def _student_share(t: float, freedom: int) -> float:
    """The share below t, at least 0. With x = sqrt(freedom) tan(angle) the density is that of a
    power of the cosine, which is smooth."""
    angles = np.linspace(0, math.atan(t / math.sqrt(freedom)), _POINTS)
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    density = constant / math.sqrt(math.pi) * np.cos(angles) ** (freedom - 1)
    return 0.5 + float(np.trapezoid(density, angles))
