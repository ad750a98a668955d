"""Returns of complete episodes, as pure functions over concatenated arrays.

N is the number of steps of all episodes together, E the number of episodes. Sutton and Barto is
"Reinforcement Learning: An Introduction", 2nd edition, 2018.
"""

from __future__ import annotations

import numpy as np


def discounted_returns(
    rewards: np.ndarray, lengths: np.ndarray, discount: float, bootstrap: np.ndarray
) -> np.ndarray:
    """G_t = r_t + discount * G_{t+1}, to the end of each episode (Sutton and Barto, eq. 3.9).

    Args:
        rewards: float64 [N], of the episodes one after another.
        lengths: int64 [E], steps of each, summing to N.
        discount: from 0 to 1.
        bootstrap: float64 [E], the value of what follows the last step: 0 for a terminated
            episode, an estimate for one that a time limit cut.

    Returns:
        float64 [N].

    Raises:
        ValueError: ranks or sizes that do not fit.
    """
    _check_episodes(rewards, lengths)
    if bootstrap.shape != lengths.shape:
        raise ValueError(f"bootstrap: shape {bootstrap.shape}, not {lengths.shape}")
    returns = rewards.astype(np.float64)
    ends = np.cumsum(lengths)
    returns[ends - 1] += discount * bootstrap
    # All episodes together, from their last step backwards: long ones first, so that those still
    # running are always the first few.
    order = np.argsort(-lengths, kind="stable")
    position = ends[order] - 1
    remaining = lengths[order] - 1
    for back in range(1, int(lengths.max())):
        running = int(np.searchsorted(-remaining, -back, side="right"))
        at = position[:running] - back
        returns[at] += discount * returns[at + 1]
    return returns


def constant_value(
    rewards: np.ndarray, lengths: np.ndarray, truncated: np.ndarray, discount: float
) -> float:
    """The value of going on after a time limit, as one number for all states.

    Without a value network, the simplest critic is a constant v, and the consistent one is the
    mean return over all steps when v itself bootstraps the truncated episodes: the fixed point of
    v = mean(G0_t + discount^(T-t) v 1[truncated]), where G0 are the returns without bootstrap.
    It is linear in v, so it is solved at once. For discount 1 there may be no such value (nobody
    says what follows), and 0 is returned: the return is then the sum up to the time limit.

    Args:
        rewards, lengths, discount: as in `discounted_returns`.
        truncated: bool [E], episodes that a time limit cut.
    """
    if discount >= 1.0 or not truncated.any():
        return 0.0
    none = np.zeros(len(lengths))
    plain = discounted_returns(rewards, lengths, discount, none)
    weight = discounted_returns(np.zeros_like(rewards), lengths, discount, truncated.astype(float))
    return float(plain.mean() / (1.0 - weight.mean()))


def normalize(values: np.ndarray) -> np.ndarray:
    """Shift to mean 0 and scale to standard deviation 1, over the whole batch.

    Never per episode: that would give an episode of 1 per step and one of 5 per step the same
    weights. Equal values carry no preference and become 0.

    Args:
        values: float64 [N].
    """
    if values.ndim != 1:
        raise ValueError(f"values: rank {values.ndim}, not 1")
    centered = values - values.mean()
    scale = centered.std()
    # Rounding alone leaves about 1e-16 of the magnitude; that is no difference.
    if scale <= 1e-12 * max(1.0, np.abs(values).max()):
        return np.zeros_like(centered)
    return centered / scale


def _check_episodes(rewards: np.ndarray, lengths: np.ndarray) -> None:
    if rewards.ndim != 1 or lengths.ndim != 1:
        raise ValueError(f"rewards, lengths: ranks {rewards.ndim} and {lengths.ndim}, not 1 and 1")
    if len(lengths) == 0 or lengths.min() < 1 or lengths.sum() != len(rewards):
        raise ValueError(f"lengths: do not divide {len(rewards)} rewards into episodes")
