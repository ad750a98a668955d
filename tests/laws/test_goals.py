"""Whole runs with hindsight: what its share changes, and demonstrations that it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from flame_rl import Trainer
from flame_rl.system.errors import UsageError
from tests.learners import make_config
from tests.runs import SMALL

OPTIONS = SMALL | {"episodes_per_iter": 6, "hindsight": "future", "workers": 0}


def config_of(algorithm: str, kind: str, **options):
    return make_config(f"tests.goals:{kind}-v0", algorithm=algorithm, **OPTIONS | options)


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Episodes in Bits, in a file that a run names as if it were there."""
    monkeypatch.chdir(tmp_path)
    with Trainer(config_of("ppo", "Bits")) as trainer:
        trainer.evaluate(6, explore=True, record="bits.npz")


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_a_share_of_none_is_no_hindsight_but_for_its_draws(algorithm):
    """The views of stored steps are the same; what is drawn after them is not."""
    kind = {"dqn": "Bits", "sac": "Point"}[algorithm]
    digests = []
    for options in ({"hindsight": "none"}, {"hindsight_share": 0.0}, {"hindsight_share": 1.0}):
        one = {"iterations": 1, "updates_per_step": 0.001, "warm_up_steps": 10} | options
        with Trainer(config_of(algorithm, kind, **one)) as trainer:
            result = trainer.train()
            assert result.losses["gradient_steps"] == 1
            digests.append(result.weights_digest)
    # Of one gradient step of dqn, which draws nothing itself.
    assert (digests[0] == digests[1]) == (algorithm == "dqn") and digests[1] != digests[2]


@pytest.mark.usefixtures("recorded")
def test_demonstrations_of_other_rewards_are_refused(tmp_path):
    with np.load("bits.npz") as file:
        arrays = dict(file)
    np.savez("others.npz", **arrays | {"rewards": arrays["rewards"] + 0.5})
    with (
        Trainer(config_of("dqn", "Bits", demonstrations="others.npz")) as trainer,
        pytest.raises(UsageError, match=r"compute_reward of .* gives -1.0 where a step gave -0.5"),
    ):
        for _ in trainer:
            pass
