"""The squashed Gaussian policy of soft actor-critic, and its temperature, with
their derivatives.

Haarnoja et al. 2018 is "Soft Actor-Critic Algorithms and Applications". B is the number of samples,
A the width of an action. All arrays are float32 or float64, and so are the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from flame_rl.nets.continuous import LOG_STD_RANGE

# Given the slopes of a loss for actions, [B, A], and for their log-probabilities, [B], returns its
# slope for the output, [B, 2A].
Backward = Callable[[np.ndarray, np.ndarray], np.ndarray]


def squashed_gaussian(
    output: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Backward]:
    """Actions a = tanh(u) with u = mean + std * noise, and their log-probabilities,
    log N(u; mean, std) - sum log(1 - tanh(u)^2) (Haarnoja et al. 2018, eq. 26), by
    reparameterisation: both are functions of the output, with the noise held fixed.

    With a = tanh(u): da / du = 1 - a^2, d log p / du = 2 a, and besides u's part
    d log p / d log std = -1; du / d mean = 1, du / d log std = std * noise.

    Args:
        output: a policy's, [B, 2A]: the means, then the logarithms of the standard deviations,
            which are clipped to `LOG_STD_RANGE`; where they are, their slope is 0.
        noise: standard normal, [B, A].

    Returns:
        Actions in [-1, 1], [B, A]; their log-probabilities, [B]; and the backward pass, see
        `Backward`.

    Raises:
        ValueError: shapes that do not fit.
    """
    rows, width = noise.shape
    if output.shape != (rows, 2 * width):
        raise ValueError(f"output: shape {output.shape}, not ({rows}, {2 * width})")
    mean, raw_log_std = output[:, :width], output[:, width:]
    log_std = np.clip(raw_log_std, *LOG_STD_RANGE)
    shift = np.exp(log_std) * noise
    u = mean + shift
    actions = np.tanh(u)
    # log(1 - tanh(u)^2), which for large u would be the logarithm of 0; the function is even.
    size = np.abs(u)
    log_slope = 2 * (math.log(2) - size - np.log1p(np.exp(-2 * size)))
    constant = 0.5 * math.log(2 * math.pi)
    log_probs = -(0.5 * noise * noise + log_std + constant + log_slope).sum(axis=1)

    def backward(action_slopes: np.ndarray, log_prob_slopes: np.ndarray) -> np.ndarray:
        column = log_prob_slopes[:, None]
        slope = np.empty_like(output)
        u_slopes = action_slopes * np.exp(log_slope) + 2 * column * actions
        slope[:, :width] = u_slopes
        slope[:, width:] = (u_slopes * shift - column) * (raw_log_std == log_std)
        return slope

    return actions, log_probs, backward


def temperature_slope(log_probs: np.ndarray, target_entropy: float) -> float:
    """The slope for log alpha of the loss mean -log alpha * (log pi(a | s) + target entropy), which
    raises the temperature alpha while the policy's entropy is below its target (Haarnoja et al.
    2018, eq. 18, but with log alpha in alpha's place, as in the authors' code: the step does not
    shrink with alpha).

    Args:
        log_probs: of actions by the current policy, [B].
        target_entropy: in nats; usually -A.
    """
    return -float(log_probs.mean()) - target_entropy
