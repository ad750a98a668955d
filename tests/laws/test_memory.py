"""Runs with a memory: the same bytes on any number of workers, and after a resume."""

from __future__ import annotations

import pytest

from flame_rl import Trainer
from tests.helpers import environment_id
from tests.learners import ON_POLICY, make_config

ITERATIONS = 4
OPTIONS = {
    "memory_size": 6,
    "hidden_sizes": (6,),
    "episodes_per_iter": 14,
    "iterations": ITERATIONS,
    "minibatches": 3,
    "epochs": 2,
    "learning_rate": 0.01,
    "local": True,
}


def config_of(algorithm: str, memory: str = "gru", **options):
    options = OPTIONS | {"workers": 0} | options
    return make_config(environment_id("Wandering"), algorithm=algorithm, memory=memory, **options)


def digests(trainer: Trainer) -> list[str]:
    """Of the weights after each of the iterations that are left."""
    return [trainer.learner.weights_digest() for _ in trainer]


def whole(*arguments: str, **options) -> list[str]:
    with Trainer(config_of(*arguments, **options)) as trainer:
        found = digests(trainer)
    assert len(set(found)) == ITERATIONS
    return found


@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("overlap", [False, True])
def test_the_number_of_workers_changes_no_byte(memory, overlap):
    options = {"overlap": overlap}
    assert whole("ppo", memory, workers=2, **options) == whole("ppo", memory, **options)


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_a_run_that_was_saved_goes_on(algorithm, tmp_path):
    expected = whole(algorithm)
    with Trainer(config_of(algorithm)) as trainer:
        trainer.train()
        trainer.train()
        trainer.save(tmp_path / "half.ckpt")
    with Trainer.load(tmp_path / "half.ckpt") as trainer:
        assert digests(trainer) == expected[2:]


def test_another_memory_is_another_run():
    assert whole("ppo", "gru") != whole("ppo", "lstm")


def test_a_trained_policy_acts_and_is_evaluated():
    with Trainer(config_of("ppo", iterations=1)) as trainer:
        trainer.train()
        assert trainer.evaluate(5).episodes == 5
        with pytest.raises(ValueError, match="episode: none has begun"):
            trainer.compute_action([0.5])
        actions = []
        for _ in range(2):
            trainer.begin_episode()
            actions.append([float(trainer.compute_action([x])[0]) for x in (0.5, 0.5, -1)])
    assert actions[0] == actions[1] and actions[0][0] != actions[0][1]
