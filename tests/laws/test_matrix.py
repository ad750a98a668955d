"""The laws for every ability: the same bytes on any number of workers, whoever dies, and after a
stop."""

import pytest

from flame_rl import Trainer
from flame_rl.settings.algorithms import ALGORITHMS, Hindsight, settings_class
from tests.helpers import environment_id
from tests.learners import OF_CONTINUOUS_ACTIONS, make_config
from tests.runs import SMALL

LOSSES = {
    "shared_torso": True,
    "auxiliary": ("tests.learner.test_losses:NextObservation",),
    "auxiliary_weights": (0.1,),
}
OVERLAP, GRU, LSTM = {"overlap": True}, {"memory": "gru"}, {"memory": "lstm"}
BITS = {"hindsight": "future", "outcomes": ("is_success",), "episodes_per_iter": 6}
CHEETAH = {
    "max_episode_steps": 20,
    "episodes_per_iter": 6,
    "reward_parts": ("reward_forward", "reward_ctrl"),
}
STEPS = {"steps_per_iter": 50}
DEMONSTRATED = {"demonstrations": "recorded", "clone_epochs": 2}
RELAY, RAGGED = "tests.agents.relay_v0", "tests.agents.ragged_v0"
WANDERING, PICTURE = environment_id("Wandering"), environment_id("Catch")
INPUTS, NUMBERS = environment_id("TwoInputs"), environment_id("TwoInputsAndNumbers")

# By ability: an environment, an algorithm, and what else is set.
ABILITIES: dict[str, list[tuple[str, str, dict]]] = {
    "memory": [(WANDERING, "a2c", LSTM | OVERLAP)],
    "pictures": [
        (PICTURE, "ppo", GRU | OVERLAP),
        (PICTURE, "dqn", {"n_step": 3, "prioritized": True}),
        (PICTURE, "r2d2", GRU | {"frame_stack": 2}),
        (PICTURE, "pqn", {"frame_stack": 3, "epochs": 2}),
    ],
    "inputs": [
        (INPUTS, "ppo", GRU | OVERLAP),
        (INPUTS, "dqn", {"n_step": 3, "prioritized": True}),
        (INPUTS, "ppo", OVERLAP | {"policy_observations": ("camera",)}),
        (NUMBERS, "sac", {"normalize_observations": True, "policy_observations": ("arm", "lamp")}),
    ],
    "losses": [(WANDERING, "reinforce", LOSSES), (WANDERING, "ppo", LOSSES | GRU)],
    "masks": [
        ("tests.masked:MaskedChoices-v0", "reinforce", {}),
        ("tests.masked:MaskedChoices-v0", "a2c", GRU),
        ("tests.masked:MaskedBits-v0", "ppo", {"shared_torso": True}),
        ("tests.masked:MaskedChoice-v0", "impala", {"frame_stack": 2}),
        (
            "tests.masked:MaskedBeside-v0",
            "dqn",
            {"distribution": "c51", "dueling": True, "n_step": 3, "prioritized": True},
        ),
        ("tests.masked:MaskedChoice-v0", "dqn", {"epsilon_repeat": 0.5, "frame_stack": 3}),
        ("tests.masked:MaskedChoice-v0", "pqn", GRU),
        ("tests.masked:MaskedChoice-v0", "sarsa", {"expected": False}),
        ("tests.masked:MaskedChoice-v0", "successor", {}),
        ("tests.masked:MaskedChoice-v0", "r2d2", GRU | {"frame_stack": 2}),
        ("tests.masked:MaskedChoices-v0", "bc", DEMONSTRATED),
    ],
    "goals": [
        (
            "tests.goals:Bits-v0",
            "dqn",
            BITS | {"prioritized": True, "n_step": 3, "distribution": "quantiles", "atoms": 5},
        ),
        (
            "tests.goals:Bits-v0",
            "dqn",
            BITS | DEMONSTRATED | {"hindsight": "final", "frame_stack": 3},
        ),
        ("tests.goals:MaskedGoals-v0", "dqn", BITS | {"n_step": 2, "dueling": True}),
        ("tests.goals:Point-v0", "ddpg", BITS | {"n_step": 2}),
        (
            "tests.goals:Maze-v0",
            "td3",
            BITS
            | {"normalize_observations": True, "n_step": 3, "reward_scale": 0.1}
            | {"policy_observations": ("observation", "desired_goal")},
        ),
        ("tests.goals:Panda-v0", "sac", BITS | {"n_step": 3}),
    ],
    "agents": [
        (RAGGED, "ppo", {"reward_parts": ("left",)}),
        (RAGGED, "sac", {"agent_number": True}),
        (RELAY, "dqn", {"evaluate_every": 2}),
        (RAGGED, "a2c", GRU),
    ],
    "rewards": [
        ("halfcheetah", "ppo", CHEETAH | {"reward_weights": (2, -0.5)}),
        ("halfcheetah", "sac", CHEETAH | {"reward": "tests.laws.test_rewards:shaped", "atoms": 5}),
    ],
    "steps": [
        (WANDERING, "ppo", STEPS | OVERLAP),
        (RAGGED, "a2c", STEPS),
    ],
    "demonstrations": [
        (environment_id("Target"), "bc", DEMONSTRATED | {"policy": "squashed"}),
        (environment_id("Target"), "sac", DEMONSTRATED | {"normalize_observations": True}),
        (WANDERING, "ppo", DEMONSTRATED),
        ("CartPole-v1", "dqn", DEMONSTRATED | {"max_episode_steps": 20, "prioritized": True}),
    ],
}
RUNS = [
    pytest.param(*run, id=f"{ability}: {run[1]} {' '.join(map(str, run[2]))}".strip())
    for ability, runs in ABILITIES.items()
    for run in runs
]
# In these, an environment ends its process once where the variable names a file to leave.
DYING = {"tests.masked": "MASKED_DIES", "tests.goals": "GOALS_DIES", RELAY: "RELAY_DIES"}


@pytest.mark.parametrize(("env", "algorithm", "options"), RUNS)
def test_workers_a_death_and_a_stop_change_no_byte(env, algorithm, options, tmp_path, monkeypatch):
    if env in (RELAY, RAGGED):
        pytest.importorskip("pettingzoo", reason="uv run --group agents pytest")
    options = SMALL | {"iterations": 3} | options
    if options["steps_per_iter"]:
        del options["episodes_per_iter"]
    if options.get("demonstrations"):
        plain = {name: options[name] for name in ("max_episode_steps",) if name in options}
        options["demonstrations"] = str(tmp_path / "recorded.npz")
        with Trainer(make_config(env, workers=0, local=True, **plain)) as trainer:
            trainer.evaluate(6, explore=True, record=tmp_path / "recorded.npz")
    config = make_config(env, algorithm=algorithm, workers=0, **options)
    with Trainer(config) as trainer:
        whole = [result.weights_digest for result in trainer]
        final = trainer.evaluate(5)
    assert len(set(whole)) == 3
    variable, died = DYING.get(env.partition(":")[0]), tmp_path / "died"
    if variable:
        monkeypatch.setenv(variable, str(died))
    with Trainer(config.changed(workers=2)) as trainer:
        begun = trainer.train()
        trainer.save(tmp_path / "begun.ckpt")
    assert begun.timing.retries == bool(variable) == died.exists()
    with Trainer.load(tmp_path / "begun.ckpt", workers=0) as trainer:
        assert [result.weights_digest for result in (begun, *trainer)] == whole
        assert trainer.evaluate(5) == final


def test_every_algorithm_that_has_an_ability_is_here():
    named = {ability: {run[1] for run in runs} for ability, runs in ABILITIES.items()}
    assert named["masks"] == ALGORITHMS.keys() - {*OF_CONTINUOUS_ACTIONS}
    assert named["goals"] == {
        name for name in ALGORITHMS if issubclass(settings_class(name), Hindsight)
    }
