"""docs/algorithms.md and docs/replay.md: what they say of actions and memory is so."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gymnasium import spaces

from flame_rl.learner.learner import Learner, make_learner
from flame_rl.learner.off_policy import OffPolicy
from flame_rl.learner.on_policy import OnPolicy
from flame_rl.settings.algorithms import ALGORITHMS, settings_class
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec
from tests.helpers import ROOT, described

PAGE = (ROOT / "docs" / "algorithms.md").read_text()
REPLAY = (ROOT / "docs" / "replay.md").read_text()
# Name, actions, on- or off-policy, and memory.
ROWS = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \| .+ \|$", PAGE, re.MULTILINE)
TABLE = {name: row for name, *row in ROWS}
SPACES = {
    "Discrete": spaces.Discrete(3),
    "Box": spaces.Box(-1, 1, (2,), np.float32),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(2),
}
NEED = r"([\d,]+) steps of (\S+) need ([\d.]+) (MB|GB)"


def learner(algorithm: str, action_space: spaces.Space) -> Learner:
    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    spec = EnvironmentSpec("Mine-v0", observation_space, action_space)
    return make_learner(TrainConfig(env="Mine-v0", algorithm=algorithm), spec)


def test_every_algorithm_has_one_row():
    assert [name for name, *_ in ROWS] == list(ALGORITHMS)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_actions_are_taken_or_refused_as_the_table_says(algorithm):
    taken = re.findall(r"`(\w+)`", TABLE[algorithm][0])
    assert taken and set(taken) <= SPACES.keys()
    for name, space in SPACES.items():
        if name in taken:
            learner(algorithm, space)
            continue
        with pytest.raises(UsageError, match=r"--algorithm: it needs .*; choose ") as refused:
            learner(algorithm, space)
        # Whoever follows the advice for these actions is not refused again.
        advised = [other for other in ALGORITHMS if name in TABLE[other][0]]
        assert any(other in str(refused.value).partition("choose ")[2] for other in advised)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_learns_from_what_the_table_says(algorithm):
    kind = {"on-policy": OnPolicy, "off-policy": OffPolicy}[TABLE[algorithm][1]]
    (name, *_) = re.findall(r"`(\w+)`", TABLE[algorithm][0])
    assert type(learner(algorithm, SPACES[name]).algorithm) is kind


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_takes_the_memory_that_the_table_says(algorithm):
    settings = settings_class(algorithm)
    if not hasattr(settings, "capacity"):
        assert TABLE[algorithm][2] == "one iteration"
        return
    ((capacity, *_),) = re.findall(NEED, TABLE[algorithm][2])
    assert int(capacity.replace(",", "")) == settings.capacity


@pytest.mark.parametrize("need", sorted(set(re.findall(NEED, PAGE + REPLAY))))
def test_a_store_has_the_size_that_a_page_says(need):
    capacity, env_id, number, unit = need
    spec = described(env_id)
    # By hand, apart from the code: float32 numbers, choices as int32, and a step's place.
    width = spec.observation_dim + 2 + (spec.action_dim if spec.continuous else 1)
    size = int(capacity.replace(",", "")) * (4 * width + 16)
    assert float(number) == pytest.approx(size / {"MB": 1e6, "GB": 1e9}[unit], abs=0.05)
    algorithm = "sac" if spec.continuous else "dqn"
    settings = {"env": env_id, "algorithm": algorithm, "capacity": int(capacity.replace(",", ""))}
    files = make_learner(TrainConfig(**settings), spec).algorithm.files
    assert files.needs == f"{capacity} steps of {env_id} need {number} {unit}"
