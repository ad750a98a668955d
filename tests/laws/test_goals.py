"""Demonstrations that a run with hindsight refuses."""

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
