"""How much may be learned from how much was played.

It is Reverb's rate limiter (Cassirer et al. 2021, "Reverb: A Framework for Experience Replay") for
a learner that collects and learns in turn: nobody waits, so it says how many gradient steps
are due.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class RateLimiter:
    """Keeps the number of samples near `samples_per_insert` times the number of env steps.

    After i env steps and s samples, samples_per_insert * i - s stays within `error_buffer` of
    samples_per_insert * min_size_to_sample: what the warm-up played is not caught up on.

    Attributes:
        samples_per_insert: how often an env step is sampled, on average. A gradient step for each
            env step: `batch_size`.
        batch_size: samples of a gradient step.
        min_size_to_sample: the warm-up in env steps, before which nothing is sampled.
        error_buffer: samples by which learning may be ahead or behind.
    """

    samples_per_insert: float
    batch_size: int
    min_size_to_sample: int
    error_buffer: float

    def __post_init__(self) -> None:
        for name in ("samples_per_insert", "batch_size", "min_size_to_sample"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: {value}; it must be greater than 0")
        least = max(self.samples_per_insert, self.batch_size)
        if not least <= self.error_buffer < math.inf:
            raise ValueError(
                f"error_buffer: {self.error_buffer} samples; it must be at least {least:g}, one "
                "env step's samples and one gradient step's, or neither could go on"
            )

    def gradient_steps(self, inserted: int, taken: int) -> int:
        """How many gradient steps may be taken, after `inserted` env steps and `taken` gradient
        steps since the beginning of the run."""
        if inserted < self.min_size_to_sample:
            return 0
        ahead = self._due(inserted, taken) + self._exactly(self.error_buffer)
        return max(0, math.floor(ahead / self.batch_size))

    def _due(self, inserted: int, taken: int) -> Fraction:
        """Samples by which learning is behind; negative: ahead."""
        since = inserted - self.min_size_to_sample
        return self._exactly(self.samples_per_insert) * since - self.batch_size * taken

    @staticmethod
    def _exactly(number: float) -> Fraction:
        """0.1 as a tenth, so that ten times a tenth is 1."""
        return Fraction(number).limit_denominator(1_000_000)
