"""Updates do not depend on the units of observations and rewards, nor on where actions lie; the KL
limit holds for the policy that acts next."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from flame_rl.learner.learner import Learner
from flame_rl.learner.on_policy.batch import make_batch
from flame_rl.learner.training.normalize import RunningMoments
from flame_rl.nets.acting import ActingPolicy
from flame_rl.system.errors import RunError
from flame_rl.wire.messages import Episodes
from tests.helpers import spec_of
from tests.learners import (
    OF_CONTINUOUS_ACTIONS,
    ON_POLICY,
    learner_of,
    make_learner,
    random_episodes,
)

RATES = {"learning_rate": 0.01, "value_learning_rate": 0.01}


def changed(episodes: Episodes, **columns: np.ndarray) -> Episodes:
    return replace(episodes, columns=episodes.columns | columns)


def weights(learner) -> torch.Tensor:
    values = [learner.parts[f"{name}_adam"].parameters.copy() for name in ("policy", "value")]
    return torch.from_numpy(np.concatenate(values))


def sampled(learner) -> Episodes:
    """Episodes whose actions the learner's policy took."""
    episodes = random_episodes(True)
    acting = ActingPolicy(learner.snapshot())
    rows = np.concatenate([episode.observations[:-1] for episode in episodes])
    padded = np.zeros((8 * math.ceil(len(rows) / 8), 3), np.float32)
    padded[: len(rows)] = rows
    noise = acting.draw_noise(np.random.default_rng(0), len(padded))
    return changed(episodes, actions=acting.act(padded, noise)[: len(rows)])


def log_probs(learner, episodes: Episodes) -> np.ndarray:
    """Log-probabilities of the recorded continuous actions by the policy for the actors."""
    snapshot = learner.snapshot()
    std = np.exp(snapshot.head.arrays["log_std"].astype(float))
    sums = []
    for episode in episodes:
        rows = np.zeros((8 * math.ceil(episode.length / 8), 3), np.float32)
        rows[: episode.length] = episode.observations[:-1]
        mean = ActingPolicy(snapshot).forward(rows)[: episode.length]
        terms = -0.5 * ((episode.actions - mean) / std) ** 2 - np.log(std)
        sums.append(terms.sum(axis=1))
    return np.concatenate(sums)


@pytest.mark.parametrize("algorithm", ON_POLICY)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_the_reported_kl_is_that_of_the_policy_that_acts_next(algorithm, scale):
    """The normalisation of observations moves in the same update and counts."""
    options = {"algorithm": algorithm, "normalize_observations": True, "initial_log_std": -3.0}
    learner = learner_of(True, **RATES, **options, max_kl=0.05)
    for update in range(3):
        episodes = random_episodes(True)
        moved = (scale * (1 + update) * episodes.observations + update).astype(np.float32)
        episodes = changed(episodes, observations=moved)
        before = log_probs(learner, episodes)
        reported = learner.update(episodes)["kl"]
        ratio = log_probs(learner, episodes) - before
        assert reported == pytest.approx((np.expm1(ratio) - ratio).mean(), rel=0.02, abs=1e-5)
        assert reported <= 0.05


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_the_first_update_sees_observations_that_lie_far_out(algorithm):
    """Before, all of them are clipped to the same 10 standard deviations."""
    learned = []
    for shift in (0, 64):
        episodes = random_episodes(False)
        learner = learner_of(False, **RATES, algorithm=algorithm, normalize_observations=True)
        start = weights(learner)
        observations = np.round(16 * episodes.observations) / 16 + np.float32(shift)
        learner.update(changed(episodes, observations=observations.astype(np.float32)))
        learned.append(weights(learner) - start)
    assert learned[0].abs().max() > 0.005
    # PPO's ratio differs a little, because other policies collected.
    similarity = torch.nn.functional.cosine_similarity(*learned, dim=0)
    assert similarity > (0.99 if algorithm == "ppo" else 0.99999)


@pytest.mark.parametrize("log_std", [-3.0, -10.0, -20.0])
def test_the_kl_limit_holds_for_narrow_distributions_and_shows(log_std):
    learner = learner_of(True, learning_rate=0.5, initial_log_std=log_std, max_kl=0.05)
    metrics = learner.update(sampled(learner))
    # Of float32's 24 bits none is left for a standard deviation of 2e-9.
    assert (metrics["kl"] > 0) == (metrics["update_scale"] > 0) == (log_std > -20)
    assert metrics["kl"] <= 0.05
    assert metrics["update_scale"] < 1
    assert metrics["policy_steps"] == 1


@pytest.mark.parametrize("algorithm", ["reinforce", "a2c"])
@pytest.mark.parametrize("shared", [False, True])
def test_the_kl_limit_follows_the_trust_in_the_advantages(algorithm, shared, monkeypatch):
    options = {"algorithm": algorithm, "shared_torso": shared, "max_kl": 0.05}
    for trusted, limit in ((1.0, 0.05), (0.5, 0.05 / 16), (0.0, 0.05e-4)):
        module = f"flame_rl.learner.algorithms.{algorithm}.trust"
        monkeypatch.setattr(module, lambda *_, trusted=trusted: np.float32(trusted))
        learner = learner_of(True, learning_rate=0.1, value_learning_rate=0.1, **options)
        metrics = learner.update(sampled(learner))
        # Half of the divergence is tried next; two networks do not move with advantages of 0.
        moves = shared or trusted > 0
        assert 0.4 * limit * moves <= metrics["kl"] <= limit


def test_an_update_that_no_halving_brings_within_the_limit_is_undone():
    learner = learner_of(True, learning_rate=0.5, initial_log_std=-20.0, max_kl=1e-12)
    before = learner.parts["policy_adam"].parameters.copy()
    metrics = learner.update(sampled(learner))
    assert (metrics["kl"], metrics["update_scale"]) == (0, 0)
    np.testing.assert_array_equal(learner.parts["policy_adam"].parameters, before)


@pytest.mark.parametrize("options", [{}, {"shared_torso": True}, {"memory": "gru"}])
@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_values_stay_when_returns_grow(algorithm, options):
    """PopArt: without a gradient step, a new scale changes no value."""
    learner = learner_of(True, algorithm=algorithm, **RATES, **options)
    learner.update(random_episodes(True))
    networks = learner.algorithm.networks
    batch = networks.prepare(make_batch(random_episodes(True), networks.remembers))
    values = [networks.values(batch)]
    for growth in (30.0, 1000.0):
        networks.statistics.add_returns_and_rescale(growth * np.arange(1.0, 50))
        values.append(networks.values(batch))
    assert np.abs(values[0]).max() > 0.1
    atol = 1e-6 * np.abs(values[0]).max()
    for later in values[1:]:
        np.testing.assert_allclose(later, values[0], rtol=1e-5, atol=atol)
    (scale,) = (array for name, array in learner.weights().items() if name.endswith(".scale"))
    assert scale > 100


@pytest.mark.parametrize("algorithm", ON_POLICY)
@pytest.mark.parametrize("scale", [2.0**-60, 2.0**-20, 2.0**60])
def test_the_unit_of_rewards_changes_nothing(algorithm, scale):
    learned = []
    for factor in (1.0, scale):
        learner = learner_of(True, **RATES, algorithm=algorithm, value_epochs=3)
        for _ in range(3):
            episodes = random_episodes(True)
            learner.update(changed(episodes, rewards=episodes.columns["rewards"] * factor))
        learned.append(weights(learner))
    torch.testing.assert_close(*learned, rtol=1e-4, atol=1e-4)
    assert (learned[1] - weights(learner_of(True))).abs().max() > 0.01


@pytest.mark.parametrize("size", [1e38, 1e60, 1e307])
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("reinforce", {}), ("a2c", {"shared_torso": True}), ("ppo", {}), ("impala", {})],
)
def test_rewards_of_any_size_are_learned_from_or_refused_in_a_sentence(algorithm, options, size):
    learner = learner_of(True, algorithm=algorithm, **options)
    episodes = random_episodes(True)
    huge = changed(episodes, rewards=episodes.columns["rewards"] * size)
    try:
        for _ in range(2):
            learner.update(huge)
    except RunError as error:
        assert "the update was refused: " in str(error) and "cale" in str(error)
    else:
        assert size == 1e38


@pytest.mark.parametrize("scale", [2.0**-60, 2.0**-20, 2.0**40])
def test_the_unit_of_observations_changes_nothing(scale):
    learned = []
    for factor in (1.0, scale):
        learner = learner_of(True, **RATES, normalize_observations=True, baseline="none")
        for _ in range(3):
            episodes = random_episodes(True)
            learner.update(
                changed(episodes, observations=episodes.observations * np.float32(factor))
            )
        learned.append(learner.parts["policy_adam"].parameters.copy())
    np.testing.assert_allclose(*learned, rtol=1e-3, atol=1e-4)


def test_a_constant_observation_is_no_signal():
    """Its rounding is not blown up, whatever its magnitude."""
    episodes = random_episodes(True)
    for constant in (0.0, 1e-12, 0.1, 1e6):
        observations = episodes.observations.copy()
        observations[:, 1] = constant
        learner = learner_of(True, normalize_observations=True)
        for _ in range(3):
            learner.update(changed(episodes, observations=observations))
        arrays = learner.snapshot().layers[0].arrays
        assert abs((observations[0, 1] - arrays["mean"][1]) / arrays["std"][1]) < 0.1


SETTINGS = {
    "hidden_sizes": (16,),
    "normalize_observations": True,
    "warm_up_steps": 10,
    "capacity": 100,
    "batch_size": 8,
    "n_step": 3,
    "layer_norm": False,
}


def learned(algorithm: str, *parts: Episodes, **options) -> Learner:
    learner = make_learner(spec_of(3, 2, True), algorithm=algorithm, **(SETTINGS | options))
    for episodes in parts:
        learner.update(episodes)
    return learner


def moved(episodes: Episodes, factor: float) -> Episodes:
    return changed(episodes, observations=(episodes.observations * factor).astype(np.float32))


@pytest.mark.parametrize("algorithm", OF_CONTINUOUS_ACTIONS)
def test_the_unit_of_observations_does_not_matter(algorithm):
    """A power of 2 is exact in floating point, so that everything is the same to the bit."""
    episodes = random_episodes(continuous=True)
    plain, scaled = (learned(algorithm, *2 * [moved(episodes, f)]) for f in (1.0, 1024.0))
    for name, weights in plain.weights().items():
        same = np.array_equal(weights, scaled.weights()[name])
        assert same == (not name.startswith("normalizer")), name
    without = (
        learned(algorithm, *2 * [moved(episodes, f)], normalize_observations=False)
        for f in (1.0, 1024.0)
    )
    first, second = (learner.weights()["policy.network.0.weight"] for learner in without)
    assert not np.array_equal(first, second)


def test_outliers_of_a_sensor_do_not_hide_the_others():
    """Rare numbers that the others do not reach by far; but not rare events beside equal numbers,
    a change of scale, or tails that are only heavy."""
    rng = np.random.default_rng(0)
    usual = rng.standard_normal((5000, 6)) * (1, 1e-3, 10, 0, 1, 1) + (0, 5, 0, 0, 0, 0)
    usual[::400, 3] = 1  # events
    usual[4000:, 4] *= 1e4
    usual[:, 5] = rng.standard_cauchy(5000).clip(-50, 50)
    wild = usual.copy()
    wild[::500, :3] = 1e6
    wild[7, 0] = -1e30
    found = []
    for rows in (usual, wild):
        moments = RunningMoments(6)
        for start in range(0, 5000, 1000):
            moments.update(rows[start : start + 1000].astype(np.float32), outliers=False)
        found.append((moments.mean, moments.std))
    (mean, std), (near, spread) = found
    np.testing.assert_allclose(mean, usual.mean(axis=0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(std, usual.std(axis=0), rtol=1e-4)
    assert (np.abs(near - mean) <= 0.1 * std).all()
    np.testing.assert_allclose(spread, std, rtol=0.05)


def test_pictures_are_not_normalised():
    spec = replace(spec_of(3, 2, True), observation_space=spaces.Box(0, 255, (3,), np.uint8))
    learner = make_learner(spec, algorithm="sac", **SETTINGS)
    assert learner.algorithm.observations is None
    assert "normalizer" not in learner.parts
