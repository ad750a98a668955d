"""Networks that remember: unrolled over whole episodes, in the learner as where they acted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

import model
from flame_rl.learner.on_policy.actor_critic import policy_epoch
from flame_rl.learner.on_policy.batch import make_batch
from flame_rl.learner.on_policy.losses import policy_gradient_loss
from flame_rl.learner.training import slices
from flame_rl.learner.training.choose import network_of
from flame_rl.learner.training.frames import time_steps
from flame_rl.learner.training.slices import mean_gradient
from flame_rl.modules.layers import MEMORIES
from flame_rl.wire.messages import EnvironmentSpec
from tests.helpers import collect, described, environment_id
from tests.learners import ON_POLICY, make_config, make_learner, shaken

ACTIONS = {
    "gaussian": spaces.Box(-1, 1, (3,)),
    "categorical": spaces.Discrete(5),
    "factored": spaces.MultiDiscrete([2, 4, 3]),
}
LENGTHS = np.array([4, 1, 9, 3, 9, 2])


def policy_of(memory: str, actions: str = "gaussian", hidden: tuple[int, ...] = (6,)):
    """With weights of every size, and a normaliser that has seen much."""
    spec = EnvironmentSpec("X-v0", spaces.Box(-10, 10, (4,)), ACTIONS[actions])
    config = make_config("X-v0", memory=memory, memory_size=5, hidden_sizes=hidden)
    torch.manual_seed(0)
    policy = shaken(model.policy(spec, config))
    policy.normalizer.set(np.array([1.0, -2, 0, 3]), np.array([0.5, 2, 1, 0.1]))
    return policy


def samples_of(actions: str, lengths: np.ndarray = LENGTHS) -> dict[str, np.ndarray]:
    rng, rows = np.random.default_rng(1), int(lengths.sum())
    taken = {
        "gaussian": rng.standard_normal((rows, 3)).astype(np.float32),
        "categorical": rng.integers(0, 5, rows).astype(np.int32),
        "factored": rng.integers(0, [2, 4, 3], (rows, 3)).astype(np.int32),
    }
    floats = rng.standard_normal((3, rows)).astype(np.float32)
    names = ("advantages", "log_probs", "targets")
    return {
        "inputs": rng.standard_normal((rows, 4)).astype(np.float32),
        "actions": taken[actions],
        "time": time_steps(lengths),
        **dict(zip(names, floats, strict=True)),
    }


@pytest.mark.parametrize("hidden", [(6,), ()])
@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_policys_gradient_is_that_of_each_episode_by_itself(memory, actions, hidden):
    policy = policy_of(memory, actions, hidden)
    samples = samples_of(actions)
    network = network_of(policy)
    assert network.remembers

    starts = np.flatnonzero(samples["time"] == 0)[1:]
    inputs, taken = (np.split(samples[name], starts) for name in ("inputs", "actions"))
    parts = []
    for x, a in zip(map(torch.from_numpy, inputs), map(torch.from_numpy, taken), strict=True):
        a = a.long() if actions != "gaussian" else a
        parts.append(policy.outputs({"inputs": x, "actions": a}))
    log_prob, entropy = (torch.cat(column) for column in zip(*parts, strict=True))
    (got, got_entropy) = network.outputs(samples)
    np.testing.assert_allclose(got, log_prob.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got_entropy, entropy.detach(), rtol=1e-4, atol=1e-5)

    loss = (-log_prob * torch.from_numpy(samples["advantages"]) - 0.3 * entropy).mean()
    expected = torch.autograd.grad(loss, list(policy.parameters()), materialize_grads=True)
    expected = torch.cat([part.reshape(-1) for part in expected])
    gradient = np.zeros(len(expected), np.float32)
    numbers = mean_gradient(network, policy_gradient_loss(0.3), gradient, samples)
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5)
    assert numbers["loss"] == pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.parametrize("memory", MEMORIES)
def test_slices_have_whole_episodes_and_the_same_bytes_on_any_number_of_cores(memory, monkeypatch):
    policy = policy_of(memory)
    lengths = np.random.default_rng(3).integers(1, 9, 60)
    samples, network = samples_of("gaussian", lengths), network_of(policy)
    gradients = {}
    for rows, cores in ((10_000, 1), (12, 1), (12, 3)):
        monkeypatch.setattr(network, "slice_rows", rows)
        monkeypatch.setattr(slices, "available_cores", lambda cores=cores: cores)
        gradient = np.zeros(sum(p.numel() for p in policy.parameters()), np.float32)
        (log_prob, _) = slices.outputs(network, samples)
        numbers = mean_gradient(network, policy_gradient_loss(0.3), gradient, samples)
        gradients[rows, cores] = gradient, log_prob, numbers["loss"]
    assert gradients[12, 1][0].tobytes() == gradients[12, 3][0].tobytes()
    assert gradients[12, 1][1].tobytes() == gradients[12, 3][1].tobytes()
    for ours, theirs in zip(gradients[10_000, 1], gradients[12, 1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("wanted", [1, 3, 100])
def test_minibatches_are_of_whole_episodes_in_random_order(wanted):
    learner = make_learner(described(environment_id("Wandering")), memory="gru")
    episodes = collect(environment_id("Wandering"), range(60), learner.snapshot())
    batch = make_batch(episodes, remembers=True)
    columns = {"number": np.arange(batch.steps)}
    inputs = episodes.observations
    batch = replace(batch, policy_inputs=inputs, log_probs=np.zeros(batch.steps))
    parts = policy_epoch(batch, columns, wanted, np.random.default_rng(0)).minibatches()
    assert (len(parts) == 1) if wanted == 1 else (1 < len(parts) <= wanted)
    assert min(len(part["number"]) for part in parts) > 30
    assert sorted(np.concatenate([p["number"] for p in parts])) == list(range(batch.steps))
    order = []
    for part in parts:
        assert part["time"][0] == 0
        np.testing.assert_array_equal(part["inputs"], inputs[batch.rows[part["number"]]])
        np.testing.assert_array_equal(part["time"], batch.time[part["number"]])
        # A step that is no episode's first follows the one before it.
        later = np.flatnonzero(part["time"])
        np.testing.assert_array_equal(part["number"][later], part["number"][later - 1] + 1)
        order += part["number"][part["time"] == 0].tolist()
    assert (order == sorted(order)) == (wanted == 1)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_an_update_from_the_policys_own_episodes_begins_without_divergence(algorithm, overlap):
    """If a KL limit below rounding is kept, the update is undone: before it, the divergence of the
    policy from itself is 0, over sequences as over steps."""
    options = {"overlap": overlap} if algorithm != "reinforce" else {}
    learner = make_learner(
        described(environment_id("Wandering")),
        algorithm=algorithm,
        memory="gru",
        memory_size=7,
        max_kl=1e-12,
        normalize_observations=False,
        **options,
    )
    before = learner.weights()["policy.network.0.weight"].copy()
    snapshot = learner.collector_snapshot()
    metrics = learner.update(collect(environment_id("Wandering"), range(20), snapshot))
    assert metrics["kl"] <= 1e-12 and metrics["policy_steps"] <= 1
    after = learner.weights()["policy.network.0.weight"]
    np.testing.assert_allclose(after, before, atol=1e-5)
