"""PQN, compared with its formulas for one step after another."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import model
from flame_rl.learner.training.choose import compiled_network
from flame_rl.modules.layers import Activation, LayerNorm
from flame_rl.settings.config import TrainConfig
from tests.helpers import described, environment_id, spec_of
from tests.learner.test_off_policy import slow
from tests.learners import make_learner, random_episodes

GAMMA = 0.9
OPTIONS = {
    "algorithm": "pqn",
    "hidden_sizes": (8,),
    "memory_size": 6,
    "gamma": GAMMA,
    "max_grad_norm": 1e9,
    "minibatches": 1,
    "epochs": 1,
    "epsilon_start": 0.5,
    "epsilon_end": 0.1,
    "epsilon_steps": 34,
}


def learner_with(masked: bool, **options):
    spec = replace(spec_of(3, 4, False), action_mask="info" if masked else "none")
    return make_learner(spec, **OPTIONS | options)


def action_values(network: nn.Module, observations: np.ndarray) -> torch.Tensor:
    """Those of one episode, [T + 1, A], by torch's own layers."""
    x = torch.from_numpy(observations.astype(np.float64))
    for layer in network.network:
        x = nn.GRU.forward(layer, x)[0] if isinstance(layer, nn.GRU) else layer(x)
    return x


def returns_of(episode, q: np.ndarray, q_lambda: float, masked: bool) -> list[float]:
    """G_t of each step of an episode, from the last to the first."""

    def best(step: int) -> float:
        byte = int(episode.columns["action_masks"][step, 0]) if masked else 255
        return max(q[step, action] for action in range(4) if byte >> (7 - action) & 1)

    g, found = None, []
    for step in reversed(range(episode.length)):
        if step == episode.length - 1:
            following = 0.0 if episode.terminated else best(step + 1)
        else:
            following = q_lambda * g + (1 - q_lambda) * best(step + 1)
        g = episode.rewards[step] + GAMMA * following
        found.insert(0, g)
    return found


@pytest.mark.parametrize("q_lambda", [0.0, 0.65, 1.0])
@pytest.mark.parametrize(
    ("masked", "options"),
    [
        (False, {"layer_norm": False}),
        (False, {}),
        (True, {"hidden_sizes": (8, 5), "activation": "relu"}),
        (True, {"memory": "gru"}),
    ],
    ids=["plain", "normalized", "masked", "memory"],
)
def test_the_gradient_is_that_of_the_formula(masked, options, q_lambda):
    """The mean over all steps of (Q(s_t, a_t) - G_t)^2 / 2, with G_t a constant."""
    learner = learner_with(masked, q_lambda=q_lambda, **options)
    algorithm, episodes = learner.algorithm, random_episodes(False, masked)
    if "memory" not in options:
        assert compiled_network(learner.parts["policy"]) is not None
    network, losses, errors = slow(learner.parts["policy"]), [], []
    for episode in episodes:
        q = action_values(network, episode.observations)
        targets = returns_of(episode, q.detach().numpy(), q_lambda, masked)
        for step, target in enumerate(targets):
            errors.append(q[step, episode.actions[step]] - target)
            losses.append(errors[-1] ** 2 / 2)
    mean = torch.stack(losses).mean()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(mean, network.parameters())])

    numbers = algorithm.update(episodes, np.random.default_rng(0), 0.0)
    found = learner.parts["policy_adam"].gradient
    scale = expected.abs().max().item()
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5 * scale)
    assert numbers["loss"] == pytest.approx(mean.item(), rel=1e-4)
    assert numbers["td_error"] == pytest.approx(torch.stack(errors).abs().mean().item(), rel=1e-4)
    assert numbers["policy_steps"] == 1


def test_every_epoch_has_new_returns():
    """Two epochs are an epoch of each of two updates on the same episodes."""
    learners = [learner_with(False, epochs=epochs) for epochs in (1, 2)]
    for learner, updates in zip(learners, (2, 1), strict=True):
        for _ in range(updates):
            learner.update(random_episodes(False))
    one, two = (learner.weights_digest() for learner in learners)
    assert one == two


def test_epsilon_follows_the_env_steps_of_the_run():
    learner, epsilons = learner_with(False), []
    for _ in range(3):
        epsilons.append(learner.snapshot().head.arrays["epsilon"].item())
        other = learner_with(False)
        other.load_state_dict(learner.state_dict())
        assert other.snapshot().head.arrays["epsilon"] == np.float32(epsilons[-1])
        learner.update(random_episodes(False))  # 17 steps
    assert epsilons == pytest.approx([0.5, 0.3, 0.1])


@pytest.mark.parametrize("name", ["TwoInputs", "Catch", "Wandering"])
def test_every_activation_sees_normalized_numbers(name):
    spec = described(environment_id(name))
    for algorithm, normalizes in (("pqn", True), ("dqn", False)):
        config = TrainConfig(algorithm=algorithm, hidden_sizes=(6, 5))
        modules = list(model.action_values(spec, config).modules())
        places = [place for place, each in enumerate(modules) if isinstance(each, Activation)]
        assert len(places) == 2 + (name != "Wandering")
        assert all(isinstance(modules[at - 1], LayerNorm) == normalizes for at in places)
