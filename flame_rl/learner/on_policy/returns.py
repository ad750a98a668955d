"""Returns of episodes or fragments, baselines, their scale: pure functions over arrays of N steps,
one of E episodes after another.

Sutton and Barto is "Reinforcement Learning: An Introduction", 2nd edition, 2018.
"""

import math

import numpy as np

from flame_rl.learner.training.frames import time_steps

# Relative rounding error of sums in float64; a single number has 1e-16.
_ROUNDING = 1e-12


def discounted_returns(
    rewards: np.ndarray, lengths: np.ndarray, discount: np.ndarray | float, bootstrap: np.ndarray
) -> np.ndarray:
    """G_t = r_t + discount * G_{t+1}, to the end of each episode (Sutton and Barto, eq. 3.9).

    Each pass doubles the number of rewards that a sum has: ten passes over whole arrays for
    episodes of 1,000 steps (Hillis and Steele 1986, "Data Parallel Algorithms").

    Rewards and returns are float64 [N], `lengths` the steps of each episode, int64 [E]; `discount`,
    from 0 to 1, is one number or [N]. `bootstrap`, float64 [E], is the value of the state after the
    last step: 0 for a terminated episode, an estimate for one that a time limit truncated.
    """
    sums = rewards.astype(np.float64)
    products = np.empty(len(rewards))
    products[:] = discount
    ends = np.cumsum(lengths) - 1
    sums[ends] += products[ends] * bootstrap
    products[ends] = 0.0
    reach = 1
    while reach < lengths.max():
        sums[:-reach] += products[:-reach] * sums[reach:]
        # The last `reach` products contain an episode's end: they are 0 already.
        products[:-reach] *= products[reach:]
        reach *= 2
    return sums


def leave_one_out(returns: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """A baseline without a network: the mean return of the other episodes at the same time step.

    An episode's own return is left out, so that the gradient stays unbiased (Kool et al. 2019, "Buy
    4 REINFORCE Samples, Get a Baseline for Free!", eq. 7, here for each time step). An episode
    that has ended counts with the 0 that follows its end. Returns and baseline are float64 [N],
    `lengths` int64 [E]; the baseline of a single episode is 0.
    """
    if len(lengths) == 1:
        return np.zeros_like(returns)
    time = time_steps(lengths)
    total = np.bincount(time, weights=returns)
    return (total[time] - returns) / (len(lengths) - 1)


def above_baseline(returns: np.ndarray, baseline: np.ndarray | float) -> np.ndarray:
    """Returns, float64 [N], minus the baseline, [N] or one number. A difference that is no more
    than rounding is 0: `standardize` would scale that of equal returns up to a gradient."""
    differences = returns - baseline
    rounding = _ROUNDING * np.abs(returns).max()
    return np.where(np.abs(differences) <= rounding, 0.0, differences)


def trust(advantages: np.ndarray, targets: np.ndarray) -> np.float32:
    """A factor of standardised advantages: 1, or less where the baseline's errors are most of them.

    Once a task is solved, all returns are alike, and what is left of the advantages is the errors
    of V(s), which at unit scale would move the policy at random. With the best constant baseline
    they would spread no more than the targets: the factor is 1 down to an explained variance of -1,
    which a run may begin with, and then falls with the spread of the targets over theirs. Both
    arguments are float64 [N], before they are standardised.
    """
    spread, most = float(advantages.std()), math.sqrt(2) * float(targets.std())
    return np.float32(1.0 if spread <= most else most / spread)


def standardize(values: np.ndarray, weights: np.ndarray | float = 1.0) -> np.ndarray:
    """Shift values, float64 [N], to mean 0 and scale them to standard deviation 1, float32 [N].

    Over the whole batch, and never per episode: an episode with reward 1 per step and one with 5
    per step would get the same weights. Equal values carry no preference and become 0. Weighted
    values come with their weights, `Batch.self_normalized_weights`: what is subtracted is a
    baseline, and weighted like them, so that a step of weight 0 stays 0.
    """
    centered = values - weights * values.mean()
    scale = centered.std()
    if scale <= _ROUNDING * np.abs(values).max():
        return np.zeros(len(values), np.float32)
    return (centered / scale).astype(np.float32)
