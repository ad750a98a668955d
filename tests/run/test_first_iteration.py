"""How many env steps an iteration asks for, and with how many episodes it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flame_rl import TrainConfig, Trainer
from flame_rl.run.iteration import training_request
from flame_rl.run.results import Totals
from tests.helpers import spec_of

SPEC = spec_of(1, 2, False)


BEGUN = Totals()


def episodes(settings: dict, limit: int | None, done: Totals = BEGUN, agents: int = 0) -> int:
    names = tuple(map(str, range(agents)))
    spec = replace(SPEC, time_limit=limit, agents=names)
    config = TrainConfig("my_env:Mine-v0", "ppo", **settings)
    return len(training_request(config, spec, done, 0).indices)


@pytest.mark.parametrize(
    ("limit", "agents", "expected"),
    [
        (4000, 0, 1),
        (1000, 0, 3),
        (200, 0, 11),
        (9, 0, 228),
        (1000, 2, 2),
        (4000, 3, 1),
        (None, 0, 1),
        (None, 2, 1),
    ],
)
def test_as_few_episodes_as_have_the_steps_if_each_lasts_to_its_limit(limit, agents, expected):
    assert episodes({}, limit, agents=agents) == expected


def test_later_the_last_iteration_says_how_long_they_are():
    assert episodes({}, 1000, Totals(1, 3, 90, 30.0)) == 69
    assert episodes({}, 1000, Totals(1, 3, 90_000, 30_000.0)) == 1


def test_the_last_iteration_has_what_is_left_of_the_steps():
    spec, begun = replace(SPEC, time_limit=1000), Totals(3, 9, 6_000, 100.0)
    config = TrainConfig("my_env:Mine-v0", "ppo", env_steps=7_000)
    request = training_request(config, spec, begun, 0)
    assert (request.steps, len(request.indices)) == (1_000, 10)
    assert training_request(config, spec, Totals(), 0).steps == 2048


def test_an_environment_without_a_limit_is_learned_from_at_once():
    options = {"hidden_sizes": (8,), "local": True, "workers": 0, "epochs": 1}
    with Trainer(TrainConfig("CliffWalking-v1", "ppo", **options)) as trainer:
        assert trainer.spec.time_limit == 1000
        assert trainer.train().env_steps <= 2048 + 1000
