"""Ten bits, flipped one by one (Andrychowicz et al. 2017, section 3.1): a wish that random play
fulfils once in a hundred episodes is learned with hindsight, and not without."""

from __future__ import annotations

import pytest

from flame_rl import Trainer
from tests.learners import make_config

OPTIONS = {
    "algorithm": "dqn",
    "iterations": 30,
    "steps_per_iter": 200,
    "hidden_sizes": (64,),
    "learning_rate": 0.002,
    "warm_up_steps": 400,
    "updates_per_step": 0.2,
    "epsilon_steps": 2000,
    "epsilon_end": 0.1,
    "gamma": 0.95,
    "tau": 0.02,
    "outcomes": ("is_success",),
    "workers": 0,
    "local": True,
}


@pytest.mark.parametrize(
    ("hindsight", "least", "most"),
    [("future", 0.9, 1), pytest.param("none", 0, 0.1, marks=pytest.mark.slow)],
)
def test_wishes_are_fulfilled_with_hindsight(hindsight, least, most):
    with Trainer(make_config("tests.goals:Bits-v0", hindsight=hindsight, **OPTIONS)) as trainer:
        for _ in trainer:
            pass
        assert least <= trainer.evaluate(100).outcomes["is_success"] <= most
