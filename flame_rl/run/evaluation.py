"""How good a policy is: the undiscounted returns of whole episodes that it does not learn from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import numpy as np

from flame_rl.learner.rewards import Rewards
from flame_rl.wire.messages import Episodes

RESAMPLES = 10_000
# Numbers that are resampled at a time.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Evaluation:
    """The undiscounted returns of an evaluation's episodes; each of several agents has one of its
    own. `reward_low` to `reward_high` is a 95 % bootstrap interval of their mean; `outcomes` has
    the means of `--outcomes` by name."""

    episodes: int
    reward_mean: float
    reward_low: float
    reward_high: float
    reward_median: float
    reward_min: float
    reward_max: float
    length_mean: float
    outcomes: dict[str, float] = field(default_factory=dict)

    def numbers(self) -> dict[str, float]:
        """All numbers by name."""
        numbers = asdict(self)
        return numbers | numbers.pop("outcomes")

    def __str__(self) -> str:
        return (
            f"mean {self.reward_mean:.1f} (95 %: {self.reward_low:.1f} to {self.reward_high:.1f}), "
            f"median {self.reward_median:.1f}, {self.reward_min:.1f} to {self.reward_max:.1f} in "
            f"{self.episodes} episodes of {self.length_mean:.1f} steps"
            + "".join(f", {name} {value:.2f}" for name, value in self.outcomes.items())
        )


def evaluation_of(collected: Episodes, agents: int, rewards: Rewards) -> Evaluation:
    """The summary of collected episodes, where `agents` play one together. Raises as
    `Rewards.raw` does."""
    episodes = rewards.raw(collected)
    returns = np.array([episode.rewards.sum() for episode in episodes])
    # Agents that play together share their luck: their mean is one sample.
    low, high = bootstrap_interval(returns.reshape(-1, agents).mean(axis=1))
    return Evaluation(
        episodes=len(episodes),
        reward_mean=float(returns.mean()),
        reward_low=low,
        reward_high=high,
        reward_median=float(np.median(returns)),
        reward_min=float(returns.min()),
        reward_max=float(returns.max()),
        length_mean=episodes.steps / len(episodes),
        outcomes=rewards.outcomes_of(collected),
    )


def bootstrap_interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the mean of values, float64 [N], by the percentile bootstrap (Efron
    1979, "Bootstrap Methods: Another Look at the Jackknife"); equal values give equal intervals."""
    generator = np.random.default_rng(0)
    means = np.empty(RESAMPLES)
    block = max(1, _BLOCK // len(values))
    for start in range(0, RESAMPLES, block):
        count = min(block, RESAMPLES - start)
        picked = generator.integers(0, len(values), (count, len(values)))
        means[start : start + count] = values[picked].mean(axis=1)
    low, high = np.quantile(means, [(1 - 0.95) / 2, (1 + 0.95) / 2])
    return float(low), float(high)
