"""Adam where gradients vanish: what is left of them costs no time and moves nothing."""

from __future__ import annotations

import numpy as np
import pytest
from flame_rl.learner.kernels.arithmetic import CompiledArithmetic

from flame_rl.learner.training.adam import Adam, PlainArithmetic

RATE, STEPS, SIZE = 1e-3, 5_000, 64
SUBNORMAL = np.finfo(np.float32).tiny


def gradients() -> np.ndarray:
    """[STEPS, SIZE]: a half of the units never fires again after the first ten steps, and some
    gradients are tiny all the time."""
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal((STEPS, SIZE)) * 10.0 ** rng.integers(-9, 1, SIZE)
    drawn[10:, : SIZE // 2] = 0
    return drawn.astype(np.float32)


def slow_adam(parameters: np.ndarray, gradient: np.ndarray, sums: list[np.ndarray], t: int) -> None:
    """One step by algorithm 1 of Kingma and Ba 2015, in float64."""
    g = gradient.astype(np.float64)
    sums[0] = 0.9 * sums[0] + 0.1 * g
    sums[1] = 0.999 * sums[1] + 0.001 * g * g
    m, v = sums[0] / (1 - 0.9**t), sums[1] / (1 - 0.999**t)
    parameters -= RATE * m / (np.sqrt(v) + 1e-8)


@pytest.mark.parametrize("arithmetic", [PlainArithmetic, CompiledArithmetic])
def test_parameters_follow_the_paper_and_no_sum_becomes_subnormal(arithmetic) -> None:
    start = np.random.default_rng(1).standard_normal(SIZE).astype(np.float32)
    adam = Adam(start.copy(), arithmetic())
    expected, sums = start.astype(np.float64), [np.zeros(SIZE), np.zeros(SIZE)]
    for t, gradient in enumerate(gradients(), start=1):
        adam.gradient[:] = gradient
        adam.step(RATE)
        slow_adam(expected, gradient, sums, t)
        for name in ("first", "second"):
            size = np.abs(adam.state_dict()[name])
            assert not ((size > 0) & (size < SUBNORMAL)).any(), (name, t)
    # Float32 rounds in each of the steps.
    np.testing.assert_allclose(adam.parameters, expected, atol=1e-4)
    assert np.abs(adam.parameters - start).max() > 100 * 1e-4


def test_both_kinds_of_arithmetic_agree() -> None:
    rng = np.random.default_rng(3)
    own, other = rng.standard_normal((2, 1003)).astype(np.float32)
    results = []
    for arithmetic in (PlainArithmetic(), CompiledArithmetic()):
        moved = own.copy()
        arithmetic.follow(moved, other, 0.005)
        adam = Adam(moved, arithmetic)
        for seed in range(5):
            gradient = np.random.default_rng(seed).standard_normal(1003)
            adam.gradient[:] = gradient
            norm = adam.clip_gradient(20.0)
            assert norm == pytest.approx(np.linalg.norm(gradient), rel=1e-5)
            assert np.linalg.norm(adam.gradient) == pytest.approx(20.0, rel=1e-5)
            adam.step(0.01)
        results.append(adam.parameters)
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)
    assert np.abs(results[0] - own).max() > 0.01
