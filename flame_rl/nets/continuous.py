"""Heads whose actions are real numbers; see heads.py."""

from typing import ClassVar

import numpy as np

from flame_rl.nets.heads import NOTHING, Columns, HeadKind
from flame_rl.nets.layers import Shapes
from flame_rl.wire.packing import WireError

# The logarithms of a squashed Gaussian's standard deviations are clipped to this, where it acts and
# where it learns. From the authors' code: beyond it a standard deviation is useless, or its
# exponential too large.
LOG_STD_RANGE = (-20.0, 2.0)


class GaussianHead(HeadKind):
    """A diagonal Gaussian: the output is its mean; its standard deviation does not depend on
    observations. Actions are float32 [B, A].

    A loss sees log-probabilities of "actions", and entropies, float32 [B] each. With
    z = (a - mean) / std: d log p / d mean = z / std, d log p / d log std = z^2 - 1, and
    d entropy / d log std = 1.
    """

    kind = "gaussian"
    arrays: ClassVar[Shapes] = {"log_std": ("in",)}
    noise = "normal"
    dtype = "float32"

    def __init__(self, width: int, log_std: np.ndarray) -> None:
        self.noise_width = width
        self.shape = (width,)
        self.log_std = log_std
        self._std = np.exp(log_std.astype(np.float64))

    def sample(self, output: np.ndarray, noise: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        return (output + self._std * noise).astype(np.float32)

    def greedy(self, output: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        return output.astype(np.float32)


class SquashedGaussianHead(HeadKind):
    """The tanh of a diagonal Gaussian: the output is its means, then the logarithms of its standard
    deviations, which are clipped to `LOG_STD_RANGE` (Haarnoja et al. 2018, appendix C).
    Actions are float32 [B, A] between -1 and 1, or at these where float32 rounds to them."""

    kind = "squashed_gaussian"
    noise = "normal"
    dtype = "float32"

    def __init__(self, width: int) -> None:
        if width % 2:
            raise WireError(
                f"an output of width {width} where an even one is expected: a mean and the "
                "logarithm of a standard deviation for each number of an action"
            )
        self.noise_width = width // 2
        self.shape = (self.noise_width,)

    def mean_and_log_std(self, output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and log standard deviation of the Gaussian: float64 [B, 2 * A] -> two of [B, A]."""
        # Contiguous copies, because NumPy may compute exp and tanh another way on a slice.
        mean = np.ascontiguousarray(output[:, : self.noise_width])
        log_std = np.ascontiguousarray(output[:, self.noise_width :])
        return mean, np.minimum(np.maximum(log_std, LOG_STD_RANGE[0]), LOG_STD_RANGE[1])

    def sample(self, output: np.ndarray, noise: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        mean, log_std = self.mean_and_log_std(output)
        return np.tanh(mean + np.exp(log_std) * noise).astype(np.float32)

    def greedy(self, output: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        mean, _ = self.mean_and_log_std(output)
        return np.tanh(mean).astype(np.float32)


class NoisyHead(HeadKind):
    """A deterministic action, which is the output, and normal noise that is added to it (Fujimoto
    et al. 2018, algorithm 1), or the noise x of an Ornstein-Uhlenbeck process that begins at 0 in
    every episode (Lillicrap et al. 2016, section 7, with theta 0.15):

        x_t = (1 - theta) x_{t-1} + std * N_t,  N_t standard normal.

    With theta 1 the noise of each step is independent. The head takes x / std as noise.
    Actions are float32 [B, A], clipped to -1 and 1; the output should be within these already."""

    kind = "noisy"
    arrays: ClassVar[Shapes] = {"std": ("in",), "theta": (1,)}
    noise = "normal"
    dtype = "float32"

    def __init__(self, width: int, std: np.ndarray, theta: np.ndarray) -> None:
        """`std`, float32 [A], is the standard deviation of what is added to the noise at each step;
        `theta`, float32 [1], from 0 to 1, is the share of the noise that is lost at each step."""
        # Not "below 0 or above 1": NaN must not pass.
        if not 0 <= theta[0] <= 1:
            raise WireError(f"theta: {theta[0]} is not from 0 to 1")
        if not (np.isfinite(std).all() and (std >= 0).all()):
            raise WireError("std: not finite, or below 0")
        self.noise_width = width
        self.noise_carry = 1.0 - float(theta[0])
        self.shape = (width,)
        self._std = std.astype(np.float64)

    def sample(self, output: np.ndarray, noise: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        return self.greedy(output + self._std * noise)

    def greedy(self, output: np.ndarray, seen: Columns = NOTHING) -> np.ndarray:
        # np.clip takes several times as long on arrays this small.
        return np.minimum(np.maximum(output, -1.0), 1.0).astype(np.float32)
