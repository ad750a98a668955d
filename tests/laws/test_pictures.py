"""Runs that see pictures: the same bytes on any number of workers, and after a resume."""

from __future__ import annotations

import pytest

from flame_rl import Trainer
from tests.helpers import environment_id
from tests.learners import make_config
from tests.runs import SEVERAL_UPDATES

RUNS = [
    pytest.param({"algorithm": "ppo"}, id="ppo"),
    pytest.param({"algorithm": "ppo", "overlap": True, "memory": "gru"}, id="ppo with memory"),
    pytest.param({"algorithm": "dqn", "n_step": 3, "prioritized": True}, id="dqn"),
    pytest.param({"algorithm": "ppo", "frame_stack": 3}, id="stacked frames"),
    pytest.param({"algorithm": "dqn", "frame_stack": 3}, id="dqn with stacked frames"),
    pytest.param({"algorithm": "successor", "frame_stack": 2}, id="successor, stacked"),
    pytest.param({"algorithm": "r2d2", "memory": "gru", "frame_stack": 2}, id="r2d2, stacked"),
]


def config_of(**options):
    return make_config(environment_id("Catch"), **SEVERAL_UPDATES | {"workers": 0} | options)


def digests(trainer: Trainer) -> list[str]:
    """Of the weights after each of the iterations that are left."""
    return [trainer.learner.weights_digest() for _ in trainer]


def whole(**options) -> list[str]:
    with Trainer(config_of(**options)) as trainer:
        found = digests(trainer)
    assert len(set(found)) == SEVERAL_UPDATES["iterations"]
    return found


@pytest.mark.parametrize("options", RUNS)
def test_the_number_of_workers_changes_no_byte(options):
    assert whole(workers=2, **options) == whole(**options)


@pytest.mark.parametrize("options", RUNS)
def test_a_run_that_was_saved_goes_on(options, tmp_path):
    expected = whole(**options)
    with Trainer(config_of(**options)) as trainer:
        trainer.train()
        trainer.train()
        trainer.save(tmp_path / "half.ckpt")
    with Trainer.load(tmp_path / "half.ckpt") as trainer:
        assert digests(trainer) == expected[2:]
