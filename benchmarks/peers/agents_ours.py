"""This package's PPO with several agents. Argument: `SEED`; prints the mean return of the last
episodes."""

from __future__ import annotations

import sys

from benchmarks.peers.work import (
    AGENTS_ENV,
    AGENTS_ITERATION,
    AGENTS_STEPS,
    MINIBATCH,
    last_returns,
)
from flame_rl import TrainConfig, Trainer


def main(seed: int) -> float:
    config = TrainConfig(
        env=AGENTS_ENV,
        algorithm="ppo",
        local=True,
        seed=seed,
        steps_per_iter=AGENTS_ITERATION,
        env_steps=AGENTS_STEPS,
        # As the other's.
        minibatches=AGENTS_ITERATION // MINIBATCH,
        learning_rate=3e-4,
        learning_rate_decay=True,
    )
    returns, before = [], 0
    with Trainer(config) as trainer:
        for result in trainer:
            returns += [result.reward_mean] * (result.episodes - before)
            before = result.episodes
    return last_returns(returns)


if __name__ == "__main__":
    print(main(int(sys.argv[1])))
