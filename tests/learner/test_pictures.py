"""Networks that see pictures: which one is chosen, what it gives, and how it is differentiated."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from gymnasium import spaces

import model
from flame_rl.learner.on_policy.losses import policy_gradient_loss
from flame_rl.learner.training import slices
from flame_rl.learner.training.autograd import AutogradNetwork
from flame_rl.learner.training.choose import network_of
from flame_rl.learner.training.device import reproducible
from flame_rl.learner.training.slices import mean_gradient
from flame_rl.modules.layers import Convolution
from flame_rl.modules.observations import Centering
from flame_rl.nets.acting import ActingPolicy, check_snapshot
from flame_rl.settings.algorithms import ALGORITHMS
from flame_rl.wire.messages import EnvironmentSpec
from tests.helpers import episode_of, together
from tests.learners import (
    OF_CONTINUOUS_ACTIONS,
    make_config,
    make_learner,
    policy_and_value,
)

pytestmark = pytest.mark.usefixtures("one_thread")
ACTIONS = {
    "categorical": spaces.Discrete(5),
    "factored": spaces.MultiDiscrete([2, 4]),
    "gaussian": spaces.Box(-1, 1, (3,)),
}


def spec_of(shape: tuple[int, ...], actions: str = "categorical", dtype=np.uint8):
    high = 1 if dtype is bool else 255
    return EnvironmentSpec("X-v0", spaces.Box(0, high, shape, dtype), ACTIONS[actions])


def networks(spec: EnvironmentSpec, **options):
    """Policy and value network, away from the policy's small first outputs."""
    settings = {"hidden_sizes": (12,), "algorithm": "ppo", "activation": "relu"} | options
    torch.manual_seed(0)
    made = policy_and_value(spec, make_config("X-v0", **settings))
    with torch.no_grad():
        for module in made:
            for parameter in module.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        made[1].scale.fill_(3.0)
    return made


def samples_of(spec: EnvironmentSpec, rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    space = spec.observation_space
    pictures = rng.integers(0, int(space.high.max()) + 1, (rows, spec.observation_dim))
    taken = {
        "categorical": rng.integers(0, 5, rows).astype(np.int32),
        "factored": rng.integers(0, [2, 4], (rows, 2)).astype(np.int32),
        "gaussian": rng.standard_normal((rows, 3)).astype(np.float32),
    }
    (kind,) = [name for name, actions in ACTIONS.items() if actions is spec.action_space]
    return {
        "inputs": pictures.astype(np.uint8),
        "actions": taken[kind],
        "log_probs": rng.normal(-3, 1, rows).astype(np.float32),
        "advantages": rng.standard_normal(rows).astype(np.float32),
    }


@pytest.mark.parametrize(
    ("shape", "filters"),
    [
        ((10, 10, 4), [(3, 3, 4, 16)]),
        ((10, 5), [(3, 3, 1, 16)]),
        ((35, 80, 3), [(3, 3, 3, 16)]),
        ((36, 36), [(8, 8, 1, 32), (4, 4, 32, 64), (3, 3, 64, 64)]),
        ((84, 84), [(8, 8, 1, 32), (4, 4, 32, 64), (3, 3, 64, 64)]),
        ((210, 160, 3), [(8, 8, 3, 32), (4, 4, 32, 64), (3, 3, 64, 64)]),
        ((3, 40, 60), [(8, 8, 3, 32), (4, 4, 32, 64), (3, 3, 64, 64)]),  # channels first
        ((4, 10, 8), [(3, 3, 4, 16)]),
        ((5, 8, 8), [(3, 3, 8, 16)]),  # a low board of eight channels
        ((2, 9, 3), []),  # too few rows
        ((128,), []),
        ((3, 4, 5, 6), []),
    ],
)
def test_the_network_follows_from_the_picture(shape, filters):
    for dtype in (np.uint8, bool):
        spec = spec_of(shape, dtype=dtype)
        layers = networks(spec)[0].snapshot().layers
        found = [layer.arrays["weight"].shape for layer in layers if layer.kind == "convolution"]
        assert found == filters
        large = len(filters) == len(model.LARGE_PICTURES)
        assert layers[0].kind == ("center" if large else "scale")
        plain = networks(spec, normalize_observations=False)[0].snapshot().layers[0]
        assert plain.kind == "scale"
        assert plain.arrays["factor"] == pytest.approx(1 if dtype is bool else 1 / 255)
        dense = [layer.arrays["weight"].shape for layer in layers if layer.kind == "dense"]
        assert [outputs for _, outputs in dense] == [12, 5]


@pytest.mark.parametrize("frames", [1, 3])
def test_large_pictures_lose_their_mean(frames):
    """NumPy's mean and variances over all pictures of two updates."""
    spec = spec_of((36, 40))
    learner = make_learner(
        spec, algorithm="ppo", hidden_sizes=(8,), frame_stack=frames, minibatches=1, epochs=1
    )
    batches = [random_episodes(spec, seed) for seed in range(2)]
    for batch in batches:
        learner.update(batch)
    seen = np.concatenate([batch.observations for batch in batches]).astype(np.float64)
    layer = next(x for x in learner.snapshot().layers if x.kind == "center")
    std = np.sqrt(seen.var(axis=0).mean())
    np.testing.assert_allclose(layer.arrays["mean"], seen.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(layer.arrays["factor"], [1 / std], rtol=1e-6)


def test_numbers_of_other_types_are_no_pictures():
    space = spaces.Box(0, 1, (10, 10, 4), np.float32)
    spec = EnvironmentSpec("X-v0", space, ACTIONS["categorical"])
    kinds = {layer.kind for layer in networks(spec)[0].snapshot().layers}
    assert kinds == {"normalize", "dense", "relu"}


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("shape", [(10, 10, 4), (84, 84)])
def test_what_acts_is_what_learns(shape, memory):
    """Outputs of the actors' policy, step by step, against the torch module's over all steps."""
    policy, _ = networks(spec_of(shape), memory=memory, memory_size=6)
    if isinstance(policy.normalizer, Centering):
        rng = np.random.default_rng(2)
        policy.normalizer.set(*rng.uniform(20, 150, (2, policy.normalizer.observation_dim)))
    acting = ActingPolicy(policy.snapshot())
    observations = np.random.default_rng(0).integers(0, 256, (4, 8, int(np.prod(shape))))
    observations = observations.astype(np.uint8)
    with torch.no_grad():
        expected = policy(torch.from_numpy(observations)).log_softmax(-1).numpy()
    states = acting.states(8)
    for observation, logits in zip(observations, expected, strict=True):
        got = acting.forward(observation, states)
        got -= np.log(np.exp(got).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(got, logits, rtol=1e-4, atol=1e-5)
    assert logits.std(axis=0).min() > 2e-3


@pytest.mark.parametrize("actions", ACTIONS)
def test_slices_are_the_whole_and_the_same_on_any_number_of_cores(actions, monkeypatch):
    spec = spec_of((10, 10, 4), actions)
    policy, _ = networks(spec)
    network, samples = network_of(policy), samples_of(spec, 160)
    assert type(network) is AutogradNetwork
    gradients = {}
    monkeypatch.setattr(slices, "_LEAST_SLICES", 2)
    # Threads keep torch's number from when they began.
    slices._threads.cache_clear()
    for rows, cores in ((10_000, 1), (9, 1), (9, 3)):
        monkeypatch.setattr(network, "slice_rows", rows)
        monkeypatch.setattr(slices, "available_cores", lambda cores=cores: cores)
        gradient = np.zeros(sum(p.numel() for p in policy.parameters()), np.float32)
        with reproducible("cpu"):
            (log_prob, _) = slices.outputs(network, samples)
            numbers = mean_gradient(network, samples, policy_gradient_loss(0.3), gradient)
        gradients[rows, cores] = gradient, log_prob, numbers["loss"]
    assert gradients[9, 1][0].tobytes() == gradients[9, 3][0].tobytes()
    assert gradients[9, 1][1].tobytes() == gradients[9, 3][1].tobytes()
    for ours, theirs in zip(gradients[10_000, 1], gradients[9, 1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-6)
    assert (gradient != 0).mean() > 0.3


def test_the_gradient_is_that_of_finite_differences():
    spec = spec_of((5, 4, 2))
    policy, _ = networks(spec, activation="tanh")
    policy.double()
    network, samples = network_of(policy), samples_of(spec, 6)
    parameters = list(policy.parameters())
    gradient = np.zeros(sum(p.numel() for p in parameters))
    loss = policy_gradient_loss(0.3)

    def total() -> float:
        return float(loss(samples, *network.outputs(samples))[0]["loss"].sum())

    forward = network.forward(samples)
    forward.backward(loss(samples, *forward.outputs)[1], gradient)
    flat = [(p, place) for p in parameters for place in range(p.numel())]
    for place in np.random.default_rng(0).permutation(len(flat))[:40]:
        parameter, inner = flat[place]
        numbers, values = parameter.data.view(-1), []
        before = numbers[inner].item()
        for change in (1e-5, -1e-5):
            numbers[inner] = before + change
            values.append(total())
        numbers[inner] = before
        expected = (values[0] - values[1]) / 2e-5
        assert expected == pytest.approx(gradient[place], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_learns_from_pictures(algorithm):
    """The first convolution of every network changes, and the actors get what was learned."""
    spec = spec_of((7, 6, 2), "gaussian" if algorithm in OF_CONTINUOUS_ACTIONS else "categorical")
    options = {
        "hidden_sizes": (8,),
        "warm_up_steps": 0,
        "batch_size": 8,
        "updates_per_step": 0.2,
        "sequence_length": 4,
        "capacity": 100,
        "max_kl": 1e9,
    }
    learner = make_learner(spec, algorithm=algorithm, **options)
    before = copy.deepcopy(learner.weights())
    for seed in range(2):
        metrics = learner.update(random_episodes(spec, seed))
        assert np.isfinite(list(metrics.values())).all()
    changed = [
        not np.array_equal(before[name], array)
        for name, array in learner.weights().items()
        if array.ndim == 4
    ]
    assert len(changed) >= (1 if algorithm == "bc" else 2) and all(changed)
    snapshot = learner.snapshot()
    assert [layer.kind for layer in snapshot.layers[:2]] == ["scale", "convolution"]
    check_snapshot(snapshot)


def random_episodes(spec: EnvironmentSpec, seed: int):
    rng, episodes = np.random.default_rng(seed), []
    for index, length in enumerate([9, 4, 12]):
        actions = rng.integers(0, 5, length).astype(np.int32)
        if spec.continuous:
            actions = rng.standard_normal((length, 3)).astype(np.float32)
        pictures = rng.integers(0, 256, (length + 1, spec.observation_dim)).astype(np.uint8)
        rewards = rng.standard_normal(length)
        episodes.append(episode_of(index, pictures, actions, rewards, index != 1, index == 1))
    return together(episodes)


def test_a_critic_sees_the_picture_and_the_action():
    """The gradient for the actions is that of finite differences."""
    spec = spec_of((6, 5, 2), "gaussian")
    torch.manual_seed(0)
    config = make_config("X-v0", algorithm="td3", hidden_sizes=(12,), activation="tanh")
    network = network_of(model.critic(spec, config).double())
    rng = np.random.default_rng(0)
    pictures, actions = rng.integers(0, 256, (4, 60)), rng.standard_normal((4, 3))

    def values(actions: np.ndarray) -> np.ndarray:
        return network.outputs({"inputs": np.concatenate([pictures, actions], axis=1)})[0][:, 0]

    forward = network.forward({"inputs": np.concatenate([pictures, actions], axis=1)})
    gradient = forward.backward_inputs((np.ones((4, 1)),))[:, 60:]
    for place in range(3):
        change = 1e-5 * np.eye(3)[place]
        expected = (values(actions + change) - values(actions - change)) / 2e-5
        np.testing.assert_allclose(gradient[:, place], expected, rtol=1e-5, atol=1e-8)
    assert values(actions).std() > 1e-3
    assert np.ptp(values(actions * 0)) > 1e-3  # of the pictures alone


def test_memory_is_bounded_by_the_size_of_pictures():
    rows = {}
    for side in (10, 84, 210):
        for made in networks(spec_of((side, side, 3))):
            network = network_of(made)
            numbers = sum(
                int(np.prod(layer.size)) + int(np.prod(layer.output_size))
                for layer in made.modules()
                if isinstance(layer, Convolution)
            )
            assert 4 * numbers * network.slice_rows <= 1 << 25
            rows[side] = network.slice_rows
    assert all(left > 4 * right > 0 for left, right in pairwise(rows.values()))
