"""The heads of a policy: one entry of `HEADS` for each kind."""

from __future__ import annotations

from flame_rl.nets.continuous import (
    Gaussian,
    Noisy,
    SquashedGaussian,
)
from flame_rl.nets.discrete import (
    Categorical,
    EpsilonGreedy,
    EpsilonGreedyDistribution,
    FactoredCategorical,
)
from flame_rl.nets.protocol import Head

HEADS: dict[str, type[Head]] = {
    "categorical": Categorical,
    "factored": FactoredCategorical,
    "gaussian": Gaussian,
    "epsilon_greedy": EpsilonGreedy,
    "epsilon_greedy_distribution": EpsilonGreedyDistribution,
    "squashed_gaussian": SquashedGaussian,
    "noisy": Noisy,
}
