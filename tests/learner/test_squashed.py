"""The squashed Gaussian at the ends of its range; test_off_policy.py compares whole steps with
torch's."""

import math

import numpy as np
import pytest

from flame_rl.learner.off_policy.critics import squashed_gaussian


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_outputs_stay_finite(dtype):
    output = np.array([[1e4, -1e4, 100, 2, 2, -3], [-50, 50, 0, 0, 0, 0]], dtype)
    noise = np.zeros((2, 3), dtype)
    actions, log_probs, backward = squashed_gaussian(output, noise)
    slope = backward(np.ones((2, 3), dtype), np.ones(2, dtype))
    np.testing.assert_array_equal(actions, [[1, -1, 1], [-1, 1, 0]])
    # log(1 - tanh(u)^2) is 2 (log 2 - |u|) there, and 0 at u = 0.
    each = 0.5 * math.log(2 * math.pi)
    expected = [
        -3 * each - 1 + 2 * (20_100 - 3 * math.log(2)),
        -3 * each + 2 * (100 - 2 * math.log(2)),
    ]
    np.testing.assert_allclose(log_probs, expected, rtol=1e-6)
    # There log p rises by 2 with |u|, and the action stays; at u = 0 the action moves with u.
    np.testing.assert_allclose(slope, [[2, -2, 2, -1, -1, -1], [-2, 2, 1, -1, -1, -1]], atol=1e-6)


def test_clipped_log_stds():
    """Clipped ones act as the limit, and have no slope."""
    log_stds = np.array([[-30.0, 5, 1.9999], [-19.9999, 2.0001, 0]])
    output = np.concatenate([np.zeros((2, 3)), log_stds], axis=1)
    actions, log_probs, backward = squashed_gaussian(output, np.full((2, 3), 0.5))
    slope = backward(np.ones((2, 3)), np.ones(2))
    np.testing.assert_array_equal(slope[:, 3:] == 0, [[True, True, False], [False, True, False]])
    stds = np.exp([[-20, 2, 1.9999], [-19.9999, 2, 0]])
    np.testing.assert_allclose(actions, np.tanh(0.5 * stds), rtol=1e-6)
    normal = -0.125 - np.log(stds) - 0.5 * math.log(2 * math.pi)
    expected = (normal + 2 * np.log(np.cosh(0.5 * stds))).sum(axis=1)
    np.testing.assert_allclose(log_probs, expected, rtol=1e-6)
