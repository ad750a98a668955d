"""This package. Arguments: `ENV_ID` to serve, `ENV_ID SEED TARGET` to train up to a score."""

from __future__ import annotations

import sys

from benchmarks.peers.work import BATCH, EPISODES, EPOCHS, MINIBATCH, serve
from flame_rl import TrainConfig, Trainer

# As many as a run has by default.
COLLECTED = 100
# For a score soon: few episodes an iteration; in HalfCheetah small minibatches, and collecting
# during updates; in Hopper, which does worse by that, wider steps in fewer epochs.
SCORE_FLAGS = {
    "HalfCheetah-v5": {"steps_per_iter": 2000, "minibatches": 32, "overlap": True},
    "Hopper-v5": {"steps_per_iter": 2000, "epochs": 3, "clip_range": 0.3},
}


def main(env_id: str) -> None:
    config = TrainConfig(
        env=env_id,
        algorithm="ppo",
        local=True,
        steps_per_iter=BATCH,
        epochs=EPOCHS,
        minibatches=BATCH // MINIBATCH,
        # No work that the others do not have, and none left out.
        recompute_advantages=False,
        max_kl=1e9,
        overlap=True,
        iterations=10**6,
    )
    seeds = iter(range(10**6))
    with (
        Trainer(config) as trainer,
        Trainer(config.changed(minibatches=16)) as coarse,
    ):

        def collect() -> int:
            evaluation = trainer.evaluate(COLLECTED, explore=True, seed=next(seeds))
            return round(evaluation.episodes * evaluation.length_mean)

        def train(trainer: Trainer) -> int:
            before = trainer.totals.env_steps
            trainer.train()
            return trainer.totals.env_steps - before

        serve(
            {
                "collect": collect,
                "train": lambda: train(trainer),
                "train coarse": lambda: train(coarse),
            },
            # The episodes of an iteration are collected during the update before it, which may not
            # have been while others were measured.
            uncounted={"train": trainer.train, "train coarse": coarse.train},
        )


def score(env_id: str, seed: int, target: float) -> int:
    """See `steps_to`."""
    config = TrainConfig(env=env_id, algorithm="ppo", local=True, seed=seed, **SCORE_FLAGS[env_id])
    return steps_to(target, config)


def steps_to(target: float, config: TrainConfig) -> int:
    """Env steps until the mean return of the last `EPISODES` episodes, or a few more, is `target`;
    0 if it is not within a million. Iterations are as long as the configuration says."""
    config = config.changed(iterations=1_000_000 // config.experiment.steps_per_iter)
    with Trainer(config) as trainer:
        last: list[tuple[int, float]] = []
        before = 0
        for result in trainer:
            last.append((result.episodes - before, result.reward_mean))
            before = result.episodes
            while sum(count for count, _ in last[1:]) >= EPISODES:
                last.pop(0)
            episodes = sum(count for count, _ in last)
            mean = sum(count * reward for count, reward in last) / episodes
            if episodes >= EPISODES and mean >= target:
                return result.env_steps
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        print(score(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
