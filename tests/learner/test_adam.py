"""Adam, compiled and in NumPy, against the paper; where gradients vanish, what is left of
them costs no time and moves nothing."""

from __future__ import annotations

import numpy as np
import pytest

from flame_rl.learner.training import adam as module
from flame_rl.learner.training import trained
from flame_rl.learner.training.adam import Adam
from flame_rl.learner.training.trained import follow

RATE, SIZE = 1e-3, 64
SUBNORMAL = np.finfo(np.float32).tiny


@pytest.fixture(params=["compiled", "NumPy"])
def by(request, monkeypatch) -> str:
    if request.param == "NumPy":
        monkeypatch.setattr(module, "library", lambda: None)
        monkeypatch.setattr(trained, "library", lambda: None)
    elif module.library() is None:
        pytest.skip("the package was built without its library")
    return request.param


def test_parameters_follow_the_paper_and_no_sum_becomes_subnormal(by) -> None:
    """Algorithm 1 of Kingma and Ba 2015, in float64. A half of the units never fires again after
    the first ten steps, and some gradients are tiny all the time."""
    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((2_500, SIZE)) * 10.0 ** rng.integers(-9, 1, SIZE)
    gradients[10:, : SIZE // 2] = 0
    start = rng.standard_normal(SIZE).astype(np.float32)
    adam = Adam(start.copy())
    expected, m, v = start.astype(np.float64), np.zeros(SIZE), np.zeros(SIZE)
    for t, gradient in enumerate(gradients.astype(np.float32), start=1):
        adam.gradient[:] = gradient
        adam.step(RATE)
        g = gradient.astype(np.float64)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        expected -= RATE * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        for sums in adam.sums:
            assert not ((np.abs(sums) > 0) & (np.abs(sums) < SUBNORMAL)).any(), t
    # Float32 rounds in each of the steps.
    np.testing.assert_allclose(adam.parameters, expected, atol=1e-4)
    assert np.abs(adam.parameters - start).max() > 50 * 1e-4


@pytest.mark.parametrize("size", [1, 7, 16, 1003])
def test_clipped_steps_and_what_follows_are_the_papers(size, by) -> None:
    """Kingma and Ba 2015, algorithm 1, in float64; not torch.optim, which imports triton, and with
    other libraries in a process that ends it."""
    rng = np.random.default_rng(3)
    own, other = rng.standard_normal((2, size)).astype(np.float32)
    moved = own.copy()
    follow(moved, other, 0.005)
    np.testing.assert_allclose(moved, own + 0.005 * (other - own), rtol=1e-6, atol=1e-7)
    adam, expected = Adam(moved), moved.astype(np.float64)
    m, v = np.zeros(size), np.zeros(size)
    for t in range(1, 6):
        g = 100 * rng.standard_normal(size)
        adam.gradient[:] = g
        norm = np.linalg.norm(g)
        assert adam.clip_gradient(2.0) == pytest.approx(norm, rel=1e-5)
        assert np.linalg.norm(adam.gradient) == pytest.approx(2.0, rel=1e-5)
        adam.step(0.01)
        g *= 2.0 / norm
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        expected -= 0.01 * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(adam.parameters, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(adam.parameters - own).max() > 0.01
