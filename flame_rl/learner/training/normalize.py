"""Running mean and variance of a stream of batches."""

from collections.abc import Iterable

import numpy as np

from flame_rl.learner.state import count_in
from flame_rl.learner.training.frames import SideBySide
from flame_rl.modules.observations import Centering, ObservationNormalizer

# Least standard deviation, relative to the mean: what varies less is the rounding of float32.
_LEAST_STD = 1e-6
# This number of float64 rows fits in a cache, unless they are wide.
_CHUNK_ROWS = 8192
# So that the float64 rows of pictures take 64 MB at most.
_CHUNK_NUMBERS = 1 << 23
# Outliers are at most this share of a chunk's rows, at either end, and farther from the others than
# this number of times the distance between the least and the greatest of these.
_OUTLIERS = 0.005
_FAR = 100


class RunningMoments:
    """Mean and variance of all rows seen so far, in float64 (Chan et al. 1979, "Updating Formulae
    and a Pairwise Algorithm for Computing Sample Variances", eq. 1.3). `count`: number of rows.
    `mean`: float64 [D]."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean = np.zeros(width)
        self._squares = np.zeros(width)  # summed squared differences from the mean

    @property
    def std(self) -> np.ndarray:
        """Standard deviations, float64 [D], in whatever unit; 1 where all rows so far are 0."""
        std = np.sqrt(self._squares / max(self.count, 1))
        std = np.maximum(std, _LEAST_STD * np.abs(self.mean))
        return np.where(std == 0, 1.0, std)

    def update(self, rows: np.ndarray | SideBySide, outliers: bool = True) -> None:
        """Add rows, [N, D] of any type; without `outliers` those of `clip_outliers` clipped."""
        chunk = max(1, min(_CHUNK_ROWS, _CHUNK_NUMBERS // max(1, len(self.mean))))
        for start in range(0, len(rows), chunk):
            own = np.asarray(rows[start : start + chunk], np.float64)
            # Infinite rows become NaN here, and the learner refuses the update.
            with np.errstate(over="ignore", invalid="ignore"):
                if not outliers and getattr(rows, "dtype", None) != np.uint8:
                    own = clip_outliers(own)
                mean = own.mean(axis=0)
                squares = np.square(own - mean).sum(axis=0)
                total = self.count + len(own)
                difference = mean - self.mean
                self.mean = self.mean + difference * (len(own) / total)
                between = difference**2 * (self.count * len(own) / total)
                self._squares = self._squares + squares + between
                self.count = total

    def set_in(self, modules: Iterable[tuple[slice, ObservationNormalizer | Centering]]) -> None:
        """Set normalisers of the rows, each with the columns that it gets."""
        for columns, normalizer in modules:
            normalizer.set(self.mean[columns], self.std[columns])

    def state_dict(self) -> dict[str, np.ndarray]:
        """See `Stateful`."""
        return {"count": np.array(self.count), "mean": self.mean, "squares": self._squares}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """See `Stateful`. Raises KeyError or ValueError if D differs."""
        for name in ("mean", "squares"):
            if state[name].shape != self.mean.shape:
                raise ValueError(f"{name}: {state[name].shape}, not {self.mean.shape}")
        self.count = count_in(state, "count")
        self.mean, self._squares = state["mean"].copy(), state["squares"].copy()


def clip_outliers(rows: np.ndarray) -> np.ndarray:
    """Rows, float64 [N, D], in which a few wild numbers, as a broken sensor gives them, are the
    nearest of the others of their column: a single one would widen its spread for good, and so hide
    all others. Numbers of which all but a few are equal stay, because these few may be events."""
    if len(rows) < 50:  # of which none can be that far from the mean
        return rows
    far = np.abs(rows - rows.mean(axis=0)).max(axis=0)
    # Those that widen the spread manyfold are beyond it manyfold, because they are few.
    columns = np.flatnonzero(far > 5 * rows.std(axis=0))
    few = max(1, int(_OUTLIERS * len(rows)))
    if not len(columns):
        return rows
    some = rows[:, columns]
    least, greatest = np.partition(some, (few, -1 - few), axis=0)[[few, -1 - few]]
    clipped = some.clip(least, greatest)
    wild = (np.abs(some - clipped) > _FAR * (greatest - least)) & (greatest > least)
    rows = rows.copy()
    rows[:, columns] = np.where(wild, clipped, some)
    return rows
