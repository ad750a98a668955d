"""Arithmetic on flat parameters as machine code."""

from __future__ import annotations

import math

import numpy as np

from flame_rl.learner.kernels.emit import LANES
from flame_rl.learner.kernels.library import library


class CompiledArithmetic:
    """See `flame_rl.learner.training.adam.Arithmetic`."""

    def __init__(self) -> None:
        functions = library()
        self._squared_norm, self._adam = functions["squared_norm"], functions["adam"]
        self._follow = functions["follow"]

    def norm(self, x: np.ndarray) -> float:
        squares = np.empty(LANES, np.float32)
        self._squared_norm(squares, x, x.size)
        return math.sqrt(np.add.reduce(squares))

    def step(
        self,
        parameters: np.ndarray,
        gradient: np.ndarray,
        sums: tuple[np.ndarray, np.ndarray],
        factors: tuple[float, float],
    ) -> None:
        self._adam(parameters, gradient, *sums, 1.0, *factors, parameters.size)

    def follow(self, parameters: np.ndarray, others: np.ndarray, tau: float) -> None:
        self._follow(parameters, others, tau, parameters.size)
