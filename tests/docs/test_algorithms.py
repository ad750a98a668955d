"""docs/algorithms.md and docs/replay.md: what they say that an algorithm can do is so."""

import re

import numpy as np
import pytest
from gymnasium import spaces
from torch import nn

from flame_rl import Trainer
from flame_rl.learner.algorithms.bc import Imitation
from flame_rl.learner.algorithms.pqn import PQN
from flame_rl.learner.learner import Learner
from flame_rl.learner.off_policy.update import OffPolicyAlgorithm
from flame_rl.learner.on_policy.update import OnPolicyAlgorithm
from flame_rl.settings.algorithms import ALGORITHMS, ReplaySettings, settings_class
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec
from tests.environments import Sampled
from tests.helpers import ROOT, described
from tests.learners import OF_CONTINUOUS_ACTIONS, demonstrations_for, make_config, make_learner

PAGE = (ROOT / "docs" / "algorithms.md").read_text()
REPLAY = (ROOT / "docs" / "replay.md").read_text()
FIRST, SECOND = PAGE.split("## What each can do")
# Name, actions, on- or off-policy, and memory for experience.
ROWS = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \| .+ \|$", FIRST, re.MULTILINE)
TABLE = {name: row for name, *row in ROWS}
# Name and a word for each of COLUMNS.
ABILITIES = re.findall(r"^\| `(\w+)` \| (.+) \|$", SECOND, re.MULTILINE)
COLUMNS = ("memory", "frames", "losses", "masks", "critics", "goals", "demonstrations")
EVERYWHERE = ("inputs", "agents")
SPACES = {
    "Discrete": spaces.Discrete(3),
    "Box": spaces.Box(-1, 1, (2,), np.float32),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(2),
}
NUMBERS = spaces.Box(-1, 1, (3,), np.float32)
OBSERVED = {
    "critics": spaces.Dict({"place": NUMBERS, "goal": NUMBERS}),
    "inputs": spaces.Tuple([NUMBERS, spaces.Box(0, 255, (10, 5), np.uint8), spaces.Discrete(3)]),
}
FLAGS = {
    "memory": {"memory": "gru"},
    "frames": {"frame_stack": 2},
    "losses": {"shared_torso": True},
    "critics": {"policy_observations": ("place",)},
    "goals": {"hindsight": "future"},
}
NEED = r"([\d,]+) steps of (\S+) need ([\d.]+) (MB|GB)"


def learner(algorithm: str, action_space: spaces.Space) -> Learner:
    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    spec = EnvironmentSpec("Mine-v0", observation_space, action_space)
    return make_learner(spec, algorithm=algorithm)


def test_every_algorithm_has_one_row_of_each_table():
    for rows in (ROWS, ABILITIES):
        assert [name for name, *_ in rows] == list(ALGORITHMS)


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
    kinds = {"off-policy": OffPolicyAlgorithm, "demonstrations": Imitation}
    kinds["on-policy"] = PQN if algorithm == "pqn" else OnPolicyAlgorithm
    kind = kinds[TABLE[algorithm][1]]
    (name, *_) = re.findall(r"`(\w+)`", TABLE[algorithm][0])
    assert type(learner(algorithm, SPACES[name]).algorithm) is kind


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_takes_the_memory_that_the_table_says(algorithm):
    settings = settings_class(algorithm)
    if not issubclass(settings, ReplaySettings):
        demonstrated = TABLE[algorithm][1] == "demonstrations"
        assert TABLE[algorithm][2] == ("the demonstrations" if demonstrated else "one iteration")
        return
    ((capacity, *_),) = re.findall(NEED, TABLE[algorithm][2])
    assert int(capacity.replace(",", "")) == settings.capacity


def learns(algorithm: str, kind: str, **flags) -> bool:
    """Whether an iteration trains the policy, with a convolution if it sees pictures; False where
    the settings are refused."""
    continuous = algorithm in OF_CONTINUOUS_ACTIONS
    env = f"tests.agents.{'ragged' if continuous else 'relay'}_v0"
    if kind == "masks":  # it raises an exception at what is forbidden
        env = "tests.masked:MaskedChoice-v0"
    elif kind == "goals":
        env = f"tests.goals:{'Point' if continuous else 'Bits'}-v0"
    elif kind != "agents":
        seen = OBSERVED.get(kind, NUMBERS)
        taken = SPACES["Box" if continuous else "Discrete"]

        def env() -> Sampled:
            return Sampled(seen, taken)

    options = {
        "clone_epochs": 2,
        "iterations": 1,
        "steps_per_iter": None,
        "episodes_per_iter": 6,
        "hidden_sizes": (6,),
        "warm_up_steps": 10,
        "batch_size": 8,
        "capacity": 1_000,
        "workers": 0,
        "local": True,
    }
    if "demonstrations" in (kind, "" if algorithm != "bc" else "demonstrations"):
        with Trainer(make_config(env, **options)) as trainer:
            found = trainer.spec.action_space, trainer.spec.observation_space
        options["demonstrations"] = demonstrations_for(*found)
    try:
        # Not `make_config`, which leaves out what an algorithm lacks.
        TrainConfig(env=env, algorithm=algorithm, **flags)
        trainer = Trainer(make_config(env, algorithm=algorithm, **options | flags))
    except UsageError:
        return False
    with trainer:
        before = trainer.learner.weights_digest()
        list(trainer)
        parts = trainer.learner.algorithm.parts
        policy = parts["shared" if kind == "losses" else "policy"]
        assert any(isinstance(m, nn.Conv2d) for m in policy.modules()) == (kind == "inputs")
        return trainer.learner.weights_digest() != before


@pytest.mark.parametrize("kind", [*EVERYWHERE, *COLUMNS])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_can_do_what_the_table_says(algorithm, kind):
    if kind == "agents":
        pytest.importorskip("pettingzoo", reason="uv run --group agents pytest")
    words = dict(zip(COLUMNS, dict(ABILITIES)[algorithm].split(" | "), strict=True))
    word = words.get(kind, "yes")
    if word == "always":
        without = {"demonstrations": None} if kind == "demonstrations" else {"memory": "none"}
        assert not learns(algorithm, kind, **without)
    else:
        assert word in ("yes", "no")
    assert learns(algorithm, kind, **FLAGS.get(kind, {})) == (word != "no")


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
    files = make_learner(spec, **{n: v for n, v in settings.items() if n != "env"}).parts["replay"]
    assert files.needs == f"{capacity} steps of {env_id} need {number} {unit}"
