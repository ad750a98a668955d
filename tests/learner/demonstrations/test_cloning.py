"""Losses of behaviour cloning, against torch's distributions in float64, and their slopes against
autograd."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Categorical, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from flame_rl.learner.algorithms.bc import LOSSES, make_policy, minus_squashed_log_probs
from flame_rl.learner.make import make_learner as learner_of_config
from flame_rl.learner.training.choose import network_of
from flame_rl.learner.training.slices import mean_gradient
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec
from tests.learners import demonstrations_for, make_learner, random_episodes

B = 12
OBSERVED = spaces.Box(-np.inf, np.inf, (3,), np.float32)
KINDS = {
    "categorical": (spaces.Discrete(4), "gaussian"),
    "masked": (spaces.Discrete(4), "gaussian"),
    "factored": (spaces.MultiDiscrete([2, 3]), "gaussian"),
    "gaussian": (spaces.Box(-1, 1, (2,), np.float32), "gaussian"),
    "squashed": (spaces.Box(-1, 1, (2,), np.float32), "squashed"),
    "deterministic": (spaces.Box(-1, 1, (2,), np.float32), "deterministic"),
}


def samples_of(kind: str) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Random samples, and what is allowed."""
    rng, (space, _) = np.random.default_rng(1), KINDS[kind]
    space.seed(0)
    actions = np.stack([space.sample() for _ in range(B)])
    if actions.dtype.kind == "i":
        actions = actions.astype(np.int32)
    samples = {"inputs": rng.standard_normal((B, 3)).astype(np.float32), "actions": actions}
    if kind != "masked":
        return samples, None
    allowed = rng.random((B, 4)) < 0.5
    allowed[np.arange(B), actions] = True
    return samples | {"action_masks": np.packbits(allowed, axis=1)}, allowed


def loss_in_torch(kind: str, output: torch.Tensor, module, samples, allowed) -> torch.Tensor:
    """Mean loss by the definition, in float64; `output` is that of the last layer."""
    actions = torch.from_numpy(samples["actions"])
    if kind == "deterministic":
        return 0.5 * (output - actions.double()).square().sum(1).mean()
    if kind == "masked":
        output = output.masked_fill(~torch.from_numpy(allowed), -torch.inf)
    if kind in ("categorical", "masked"):
        return -Categorical(logits=output).log_prob(actions).mean()
    if kind == "factored":
        factors = output.split([2, 3], dim=1)
        each = [Categorical(logits=f).log_prob(actions[:, i]) for i, f in enumerate(factors)]
        return -sum(each).mean()
    if kind == "gaussian":
        return (
            -Independent(Normal(output, module.log_std.double().exp()), 1)
            .log_prob(actions.double())
            .mean()
        )
    mean, log_std = output.chunk(2, dim=1)
    normal = Normal(mean, log_std.clip(-20, 2).exp())
    squashed = Independent(TransformedDistribution(normal, TanhTransform()), 1)
    return -squashed.log_prob(actions.double().clip(1e-6 - 1, 1 - 1e-6)).mean()


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_likelihood_and_its_gradient_is_autograds(kind, one_thread):
    space, policy = KINDS[kind]
    spec = EnvironmentSpec("X-v0", OBSERVED, space)
    options = {"policy": policy, "hidden_sizes": (8,), "normalize_observations": False}
    module = make_policy(TrainConfig(env="X-v0", algorithm="bc", **options), spec)
    trained = TrainedNetwork(module, network_of)
    samples, allowed = samples_of(kind)
    loss = LOSSES[module.head().kind]
    numbers = mean_gradient(trained.network, loss, trained.adam.gradient, samples)

    parameters = list(module.parameters())
    wide = module.double()
    output = wide(torch.from_numpy(samples["inputs"]).double())
    expected = loss_in_torch(kind, output, wide, samples, allowed)
    slopes = torch.autograd.grad(expected, parameters)
    assert numbers["loss"] == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)
    flat = torch.cat([slope.reshape(-1) for slope in slopes]).numpy()
    assert np.abs(flat).max() > 1e-3
    np.testing.assert_allclose(trained.adam.gradient, flat, rtol=1e-4, atol=1e-6)


def test_actions_at_the_bounds_have_a_finite_likelihood():
    samples = {"actions": np.array([[1.0, -1.0], [0.0, 0.5]], np.float32)}
    numbers, (slope,) = minus_squashed_log_probs(samples, np.zeros((2, 4), np.float32))
    assert np.isfinite(numbers["loss"]).all() and np.isfinite(slope).all()
    assert slope.dtype == numbers["loss"].dtype == np.float32


def test_a_standard_deviation_that_is_clipped_has_no_slope():
    samples = {"actions": np.array([[0.3]])}
    for log_std in (-30.0, 5.0):
        _, (slope,) = minus_squashed_log_probs(samples, np.array([[0.1, log_std]]))
        assert slope[0, 1] == 0 and slope[0, 0] != 0


@pytest.mark.parametrize("policy", ["gaussian", "squashed", "deterministic"])
def test_observations_are_normalised_by_the_demonstrations_alone(policy):
    spec = EnvironmentSpec("X-v0", OBSERVED, spaces.Box(-1, 1, (2,), np.float32))
    learner = make_learner(spec, algorithm="bc", policy=policy, hidden_sizes=(8,), clone_epochs=1)
    learner.update(random_episodes(continuous=True))
    observations = learner.algorithm.demonstrations.episodes.observations.astype(np.float64)
    first = learner.snapshot().layers[0]
    assert first.kind == "normalize"
    np.testing.assert_allclose(first.arrays["mean"], observations.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(first.arrays["std"], observations.std(axis=0), rtol=1e-5)


def test_the_episodes_of_a_run_change_nothing():
    spec = EnvironmentSpec("X-v0", OBSERVED, spaces.Box(-1, 1, (2,), np.float32))
    digests = set()
    for scale in (1, 100):
        learner = make_learner(spec, algorithm="bc", hidden_sizes=(8,), clone_epochs=2)
        episodes = random_episodes(continuous=True)
        columns = episodes.columns | {"observations": episodes.observations * np.float32(scale)}
        learner.update(replace(episodes, columns=columns))
        digests.add(learner.weights_digest())
    assert len(digests) == 1


@pytest.mark.parametrize("options", [{}, {"shared_torso": True}, {"memory": "gru"}])
@pytest.mark.parametrize("algorithm", ["reinforce", "a2c", "ppo"])
def test_the_first_update_clones_and_the_others_are_the_algorithms(algorithm, options):
    spec = EnvironmentSpec("X-v0", OBSERVED, spaces.Box(-1, 1, (2,), np.float32))
    name = demonstrations_for(spec.action_space, spec.observation_space)
    options = {"hidden_sizes": (8,), "clone_epochs": 3, "demonstrations": name} | options
    learner = make_learner(spec, algorithm=algorithm, **options)
    episodes = random_episodes(continuous=True)
    first = learner.update(episodes)
    assert first["policy_steps"] == 3 and "kl" not in first
    assert "kl" in learner.update(episodes)
    again = make_learner(spec, algorithm=algorithm, **options)
    again.load_state_dict({n: a.copy() for n, a in learner.state_dict().items()})
    assert "kl" in again.update(episodes)
    learner.update(episodes)
    assert again.weights_digest() == learner.weights_digest()


def test_what_cannot_be_is_refused():
    space = spaces.Discrete(2)
    spec = EnvironmentSpec("X-v0", OBSERVED, space)
    name = demonstrations_for(space, OBSERVED)
    with pytest.raises(UsageError, match="--demonstrations: bc learns from nothing else; name an"):
        learner_of_config(TrainConfig(env="X-v0", algorithm="bc"), spec)
    with pytest.raises(UsageError, match="--policy: squashed is for real-valued actions, a Box"):
        make_learner(spec, algorithm="bc", policy="squashed")
    with pytest.raises(UsageError, match="--overlap: the second iteration would be played by"):
        make_learner(spec, algorithm="ppo", overlap=True, demonstrations=name)
    with pytest.raises(UsageError, match="--demonstrations: impala weights actions by the prob"):
        make_learner(spec, algorithm="impala", demonstrations=name)
    with pytest.raises(UsageError, match="--demonstrations-digest: with --demonstrations"):
        TrainConfig(demonstrations_digest="0" * 64)
