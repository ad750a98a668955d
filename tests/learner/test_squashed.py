"""The squashed Gaussian at the ends of its range, against torch's distributions and autograd;
test_off_policy.py compares whole steps."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from flame_rl.learner.off_policy.critics import squashed_gaussian

ROWS, WIDTH = 50, 3


def by_torch(output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions and log-probabilities. TanhTransform remembers u, so that no atanh is taken."""
    mean, log_std = output.chunk(2, dim=1)
    normal = Independent(Normal(mean, log_std.clamp(-20, 2).exp(), validate_args=False), 1)
    tanh = TanhTransform(cache_size=1)
    actions = tanh(normal.mean + normal.stddev * noise)
    distribution = TransformedDistribution(normal, [tanh], validate_args=False)
    return actions, distribution.log_prob(actions)


def slopes_by_torch(output, noise, of_actions, of_log_probs):
    leaf = torch.from_numpy(output).double().requires_grad_()
    results = by_torch(leaf, torch.from_numpy(noise).double())
    weights = [torch.from_numpy(x).double() for x in (of_actions, of_log_probs)]
    total = sum((result * weight).sum() for result, weight in zip(results, weights, strict=True))
    (slope,) = torch.autograd.grad(total, leaf)
    return *(result.detach().numpy() for result in results), slope.numpy()


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
    noise = np.full((2, 3), 0.5)
    of_actions, of_log_probs = np.ones((2, 3)), np.ones(2)
    actions, log_probs, backward = squashed_gaussian(output, noise)
    slope = backward(of_actions, of_log_probs)
    np.testing.assert_array_equal(slope[:, 3:] == 0, [[True, True, False], [False, True, False]])
    for own, other in zip(
        (actions, log_probs, slope),
        slopes_by_torch(output, noise, of_actions, of_log_probs),
        strict=True,
    ):
        np.testing.assert_allclose(own, other, atol=1e-9)
    assert actions[0, 0] == pytest.approx(0.5 * math.exp(-20), rel=1e-6)
    assert actions[0, 1] == pytest.approx(math.tanh(0.5 * math.exp(2)))
