"""Probe environments: tiny, with a known answer, each failing for one kind of mistake."""

import numpy as np
import pytest
import torch

from flame_rl import Trainer
from flame_rl.learner.learner import Learner
from flame_rl.nets.acting import ActingPolicy
from flame_rl.run.policy import Policy
from flame_rl.settings.algorithms import ALGORITHMS
from tests import runs
from tests.helpers import described, environment_id
from tests.learners import make_config

# What makes tiny problems quick, and nothing about what is computed.
QUICK = runs.QUICK | {
    "iterations": 40,
    "episodes_per_iter": 50,
    "value_learning_rate": 0.02,
    "minibatches": 2,
}


def solve(name: str, **options):
    env_id = environment_id(name)
    with Trainer(make_config(env_id, **QUICK | options)) as trainer:
        return list(trainer), trainer.learner


def value_of(learner: Learner, observation: list[float]) -> float:
    with torch.no_grad():
        return learner.parts["value"](torch.tensor([observation])).item()


VARIANTS = [
    pytest.param({"algorithm": "reinforce"}, id="reinforce"),
    pytest.param({"algorithm": "reinforce", "baseline": "value"}, id="reinforce with values"),
    pytest.param({"algorithm": "a2c"}, id="a2c"),
    pytest.param({"algorithm": "ppo", "epochs": 3, "learning_rate_decay": True}, id="ppo"),
]


# The same for learners with replay.
QUICK_REPLAY = {
    "iterations": 25,
    "episodes_per_iter": 20,
    "learning_rate": 0.01,
    "value_learning_rate": 0.01,
    "updates_per_step": 0.5,
    "epsilon_steps": 400,
    "tau": 0.1,
    "capacity": 5_000,
    "lowest_return": -15.0,
    "highest_return": 15.0,
}
# Without replay, an action is learned about only while it is explored.
PQN = {"algorithm": "pqn", "epochs": 8, "iterations": 60, "epsilon_steps": 1_500}
OF_DISCRETE_ACTIONS = [
    pytest.param({"algorithm": "dqn", "double": False}, id="dqn"),
    pytest.param(
        {"algorithm": "dqn", "tau": 1.0, "target_period": 10, "n_step": 3, "prioritized": True},
        id="hard updates, n steps, prioritised",
    ),
    pytest.param({"algorithm": "dqn", "distribution": "c51", "dueling": True}, id="c51, duelling"),
    pytest.param({"algorithm": "sarsa"}, id="sarsa"),
    pytest.param({"algorithm": "successor"}, id="successor"),
    pytest.param(PQN, id="pqn"),
]
# Its values are those of an observation after all others of its episode, and so not in the test of
# values.
R2D2 = {"algorithm": "r2d2", "memory": "gru", "memory_size": 8, "tau": 0.3}
OF_CONTINUOUS_ACTIONS = [
    pytest.param(
        {"algorithm": "ddpg", "noise": 0.3, "noise_process": "ornstein-uhlenbeck"}, id="ddpg"
    ),
    pytest.param({"algorithm": "td3", "noise": 0.3, "layer_norm": True}, id="td3"),
    pytest.param({"algorithm": "sac", "hidden_sizes": (32,)}, id="sac"),
]


CLONED = {"algorithm": "bc", "clone_epochs": 20, "iterations": 4}
V_TRACE = {"algorithm": "impala", "sequence_length": 8, "entropy_coefficient": 0.0}


def test_every_algorithm_is_probed():
    probed = [
        *VARIANTS,
        *OF_DISCRETE_ACTIONS,
        *OF_CONTINUOUS_ACTIONS,
        pytest.param(V_TRACE),
        pytest.param(R2D2),
        pytest.param(CLONED),
    ]
    assert {variant.values[0]["algorithm"] for variant in probed} == ALGORITHMS.keys()


def crossed(probes: list[tuple], variants: list) -> list:
    """The first variant with every probe, and every other one with the first probe, the hardest."""
    pairs = [(probe, variants[0]) for probe in probes]
    pairs += [(probes[0], variant) for variant in variants[1:]]
    return [
        pytest.param(*probe, *variant.values, id=f"{probe[0]}-{variant.id}", marks=variant.marks)
        for probe, variant in pairs
    ]


def action_values(learner: Learner, observation: float) -> np.ndarray:
    """Of both actions, as the actors compute them."""
    snapshot = learner.snapshot()
    output = ActingPolicy(snapshot).forward(np.full((8, 1), observation, np.float32))[0]
    if "support" not in snapshot.head.arrays:
        return output
    weights = np.exp(output.reshape(2, -1).astype(float))
    return weights @ snapshot.head.arrays["support"] / weights.sum(axis=1)


@pytest.mark.parametrize(
    ("name", "gamma", "values", "variant"),
    crossed(
        [
            # 1 a step without end, cut at 7 steps: taken for an end, it would be far below.
            ("Endless", 0.8, {1.0: 5.0}),
            ("ConstantReward", 0.9, {1.0: 3.0}),
            ("ObservationReward", 0.9, {1.0: 2.0, -1.0: -2.0}),
            ("TwoSteps", 0.5, {1.0: 1.0, 0.0: 0.5}),
        ],
        OF_DISCRETE_ACTIONS,
    ),
)
def test_action_values_are_the_known_ones(name, gamma, values, variant):
    _, learner = solve(name, **(QUICK_REPLAY | {"gamma": gamma} | variant))
    for observation, value in values.items():
        assert action_values(learner, observation) == pytest.approx([value] * 2, abs=0.1)


@pytest.mark.parametrize(
    ("name", "gamma", "values"),
    [("ConstantReward", 0.9, {1.0: 3.0}), ("TwoSteps", 0.5, {1.0: 1.0, 0.0: 0.5})],
)
def test_replayed_values_with_v_trace_are_the_known_ones(name, gamma, values):
    _, learner = solve(name, **(QUICK_REPLAY | {"gamma": gamma} | V_TRACE))
    for observation, value in values.items():
        assert value_of(learner, [observation]) == pytest.approx(value, abs=0.1)


@pytest.mark.parametrize(
    ("name", "best", "variant"),
    crossed(
        [("DelayedReward", 1), ("ActionReward", 1), ("ObservationAction", 4)],
        [
            *OF_DISCRETE_ACTIONS,
            pytest.param(V_TRACE, id="impala"),
            pytest.param(R2D2, id="r2d2", marks=pytest.mark.slow),
        ],
    ),
)
def test_replayed_experience_teaches_the_known_answer(name, best, variant):
    results, learner = solve(name, **(QUICK_REPLAY | variant))
    assert results[0].reward_mean < 0.75 * best
    # A stochastic policy goes on exploring.
    explores = variant["algorithm"] == "impala"
    assert results[-1].reward_mean > (0.9 if explores else 0.95) * best
    assert explores or learner.snapshot().head.arrays["epsilon"] == 0


@pytest.mark.parametrize("variant", OF_CONTINUOUS_ACTIONS)
def test_replayed_experience_finds_a_continuous_optimum_between_any_bounds(variant):
    # At a greater rate, deterministic policies stick where tanh has no slope.
    options = {"gamma": 0.0, "learning_rate": 0.003, "updates_per_step": 1.0}
    _, learner = solve("FarTarget", **(QUICK_REPLAY | options | variant))
    agent = Policy(learner.snapshot(), described(environment_id("FarTarget")))
    assert agent.act(np.ones(1, np.float32))[0] == pytest.approx(6, abs=0.25)


@pytest.mark.parametrize(
    ("name", "best", "variant"),
    crossed(
        [
            ("DelayedReward", 1),
            ("ActionReward", 1),
            ("ObservationAction", 4),
            ("LargeObservationAction", 4),
        ],
        VARIANTS,
    ),
)
def test_learns_the_known_answer(name, best, variant):
    if name == "LargeObservationAction":
        variant = variant | {"normalize_observations": True}
    results, _ = solve(name, **variant)
    assert results[0].reward_mean < 0.75 * best
    assert results[-1].reward_mean > 0.95 * best


@pytest.mark.parametrize("variant", [CLONED, {"algorithm": "ppo", "iterations": 2}], ids=str)
@pytest.mark.parametrize("name", ["ObservationAction", "LargeObservationAction"])
def test_what_is_demonstrated_is_done(name, variant, tmp_path):
    """By an update that has seen no reward: those of the demonstrations are all 0."""
    rng, middle, size = np.random.default_rng(0), *((0, 1) if name[0] == "O" else (500, 1000))
    signs = rng.choice([-1, 1], (20, 5))
    observations = (middle + size * signs).astype(np.float32).reshape(-1, 1)
    actions = (signs[:, :4] > 0).astype(int).ravel()
    ends = np.tile(np.arange(4) == 3, 20)
    arrays = {"observations": observations, "actions": actions, "rewards": np.zeros(80)}
    np.savez(tmp_path / "a.npz", **arrays, terminations=ends, truncations=np.zeros(80))
    results, _ = solve(name, demonstrations=str(tmp_path / "a.npz"), **variant)
    assert results[0].reward_mean < 3
    assert results[-1].reward_mean > 3.9


@pytest.mark.parametrize("variant", VARIANTS)
def test_finds_a_continuous_optimum_between_any_bounds(variant):
    _, learner = solve("FarTarget", iterations=60, **variant)
    agent = Policy(learner.snapshot(), described(environment_id("FarTarget")))
    assert agent.act(np.ones(1, np.float32))[0] == pytest.approx(6, abs=0.25)


@pytest.mark.parametrize(
    ("name", "options", "values", "variant"),
    crossed(
        [
            # 1 a step without end, cut at 7 steps: taken for an end, it would be far below.
            ("Endless", {"gamma": 0.9, "iterations": 60, "epochs": 5}, {1.0: 10.0}),
            ("ConstantReward", {}, {1.0: 3.0}),
            ("ObservationReward", {}, {1.0: 2.0, -1.0: -2.0}),
            ("TwoSteps", {"gamma": 0.5}, {1.0: 1.0, 0.0: 0.5}),
        ],
        VARIANTS[1:],
    ),
)
def test_state_values_are_the_known_ones(name, options, values, variant):
    _, learner = solve(name, value_epochs=10, **(variant | options))
    for observation, value in values.items():
        assert value_of(learner, [observation]) == pytest.approx(value, abs=0.05 * max(1, value))


def test_a_constant_reward_teaches_nothing():
    results, learner = solve("Endless", iterations=3, baseline="none")
    # Every episode is cut at 7 steps: with the value of going on added, all returns are equal.
    assert all(result.metrics["gradient_norm"] == 0 for result in results)
    assert learner.snapshot().version == 3


def mean_return(results, iterations: int) -> float:
    """Of the last iterations."""
    return float(np.mean([result.reward_mean for result in results[-iterations:]]))


@pytest.mark.parametrize("memory", ["gru", "lstm", "none"])
def test_five_steps_are_remembered_by_a_memory_alone(memory):
    """The last observation is always 0: without, whatever it does then is right half the time."""
    options = {"algorithm": "ppo", "epochs": 3, "memory_size": 16, "iterations": 25}
    rates = {"learning_rate": 0.005, "value_learning_rate": 0.005}
    results, _ = solve("Recall", memory=memory, **options, **rates)
    assert results[0].reward_mean < 0.75
    if memory == "none":
        assert mean_return(results, 15) == pytest.approx(0.5, abs=0.08)
    else:
        assert mean_return(results, 3) > 0.95


CATCH = {
    "ppo": {"iterations": 18, "episodes_per_iter": 60, "epochs": 6, "minibatches": 4}
    | {"learning_rate": 0.007, "value_learning_rate": 0.007},
    "dqn": QUICK_REPLAY
    | {"iterations": 22, "gamma": 0.95, "n_step": 3, "updates_per_step": 0.3, "tau": 0.05}
    | {"epsilon_steps": 2000, "learning_rate": 0.003, "lowest_return": -1.0},
}
SEEING = {"hidden_sizes": (32,), "activation": "relu"}


@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_the_ball_is_caught(algorithm):
    results, learner = solve("Catch", algorithm=algorithm, **CATCH[algorithm] | SEEING)
    assert results[0].reward_mean < 0
    assert mean_return(results, 4) > 0.8
    assert "convolution" in {layer.kind for layer in learner.snapshot().layers}


@pytest.mark.slow
def test_a_bright_background_does_not_drown_the_ball():
    bright = {"learning_rate": 0.002, "value_learning_rate": 0.002, "iterations": 14}
    results, learner = solve("BrightCatch", algorithm="ppo", **CATCH["ppo"] | SEEING | bright)
    assert mean_return(results, 4) > 0.3
    layer = learner.snapshot().layers[0]
    # The uppermost corner is ball in a fifth of the first pictures, and never later.
    assert layer.kind == "center" and 199 < layer.arrays["mean"][0] < 203


@pytest.mark.parametrize(
    ("hindsight", "least", "most"),
    [("future", 0.9, 1), pytest.param("none", 0, 0.1, marks=pytest.mark.slow)],
)
def test_wishes_are_fulfilled_with_hindsight(hindsight, least, most):
    """Ten bits, flipped one by one (Andrychowicz et al. 2017, section 3.1): random play fulfils a
    wish once in a hundred episodes."""
    options = {"iterations": 30, "steps_per_iter": 200, "hidden_sizes": (64,), "gamma": 0.95}
    options |= {"learning_rate": 0.002, "warm_up_steps": 400, "updates_per_step": 0.2, "tau": 0.02}
    options |= {"epsilon_steps": 2000, "epsilon_end": 0.1, "outcomes": ("is_success",)}
    options |= {"algorithm": "dqn", "hindsight": hindsight, "workers": 0, "local": True}
    with Trainer(make_config("tests.goals:Bits-v0", **options)) as trainer:
        list(trainer)
        assert least <= trainer.evaluate(100).outcomes["is_success"] <= most
