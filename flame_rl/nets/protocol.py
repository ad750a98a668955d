"""What a head is: it turns a network's output into actions, row by row, in NumPy."""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol

import numpy as np

NoiseKind = Literal["normal", "uniform"]
# By name of an array: its type and its shape. A size is a number or a name, which stands for the
# same number wherever it occurs; "in" is the width of the network's output.
ArrayTypes = dict[str, tuple[str, tuple[str | int, ...]]]


class Head(Protocol):
    """A head, made of the width of the network's output and its arrays by name.

    An action must not depend on which other observations share the batch: the order in which the
    numbers of a row are added must not depend on the number of rows.

    Attributes:
        arrays: the type and shape of each array.
        noise: the kind of random numbers that an action is sampled with: standard normal, or
            uniform in [0, 1).
        noise_width: how many random numbers an action takes.
        noise_carry: the share of a step's noise that is added to the next step's own random
            numbers; 0: the steps of an episode have independent noise.
        noise_repeat: the probability that a step has the noise of the step before; an episode's
            first step never has.
        dtype, shape: the type and shape of one action.
    """

    arrays: ClassVar[ArrayTypes]
    noise: ClassVar[NoiseKind]
    noise_width: int
    noise_carry: float
    noise_repeat: float
    dtype: ClassVar[str]
    shape: tuple[int, ...]

    def sample(self, output: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """An action for each row of the output, float64 [B, width], from a row of noise, float64
        [B, noise_width]."""
        ...

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """The action without noise: the mean, or the choice that is likeliest or worth most."""
        ...
