"""Learners for tests; apart from what else they need, because this imports torch."""

import atexit
import copy
import tempfile
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

import model
from flame_rl.learner.demonstrations.conversion import flattened
from flame_rl.learner.learner import Learner
from flame_rl.learner.make import make_learner as learner_of_config
from flame_rl.learner.training.autograd import AutogradNetwork
from flame_rl.learner.training.network import Samples
from flame_rl.learner.training.trained import TrainedNetwork
from flame_rl.settings.algorithms import ALGORITHMS, settings_class
from flame_rl.settings.config import TrainConfig, names_of
from flame_rl.wire.messages import EnvironmentSpec, Episodes
from tests.helpers import episode_of, spec_of, together

ON_POLICY = ("reinforce", "a2c", "ppo")
# Those that learn from replayed experience.
OF_DISCRETE_ACTIONS = ("dqn", "sarsa", "successor", "r2d2")
OF_CONTINUOUS_ACTIONS = ("ddpg", "td3", "sac")


def make_config(env: str, **options) -> TrainConfig:
    """The presets of that environment, but for the options; those of other algorithms are left
    out."""
    algorithm = options.get("algorithm", "reinforce")
    foreign = {name for other in ALGORITHMS for name in names_of(settings_class(other))}
    foreign -= set(names_of(settings_class(algorithm)))
    chosen = {name: value for name, value in options.items() if name not in foreign}
    return TrainConfig(env=env, **chosen)


def policy_and_value(spec: EnvironmentSpec, config: TrainConfig) -> tuple[nn.Module, nn.Module]:
    """New networks of an on-policy algorithm."""
    return model.policy(spec, config), model.value(spec, config)


def demonstrations_for(action_space: spaces.Space, observation_space: spaces.Space) -> str:
    """The name of a file of random episodes in these spaces, of 9, 4 and 12 steps."""
    action_space, observation_space = copy.deepcopy((action_space, observation_space))
    action_space.seed(5)
    observation_space.seed(5)
    flags = np.zeros((2, 25), bool)
    flags[0, [8, 24]] = flags[1, 12] = True
    arrays = flattened(observation_space, [observation_space.sample() for _ in range(28)])
    arrays |= {"actions": np.stack([action_space.sample() for _ in range(25)])}
    arrays |= {"rewards": np.linspace(0, 1, 25), "terminations": flags[0], "truncations": flags[1]}
    with tempfile.NamedTemporaryFile(suffix=".npz", delete=False) as file:
        np.savez(file, **arrays)
    atexit.register(Path(file.name).unlink)
    return file.name


def make_learner(spec: EnvironmentSpec, **options) -> Learner:
    """A learner of `make_config`; bc gets `demonstrations_for` the environment."""
    if options.get("algorithm") == "bc":
        name = demonstrations_for(spec.action_space, spec.observation_space)
        options = {"demonstrations": name} | options
    return learner_of_config(make_config(spec.env_id, **options), spec)


def learner_of(continuous: bool, **options) -> Learner:
    """One step of Adam over the whole batch, unless the options say otherwise."""
    plain = {
        "hidden_sizes": (8,),
        "max_grad_norm": 1e9,
        "max_kl": 1e9,
        "minibatches": 1,
        "learning_rate_decay": False,
        "normalize_observations": False,
        "value_learning_rate": 1e-3,
    }
    return make_learner(spec_of(3, 2, continuous), **(plain | options))


def shaken(network: nn.Module, size: float = 0.3) -> nn.Module:
    """The network, away from its first weights, of which some are small."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += size * torch.randn(parameter.shape)
    return network


def compiled_and_by_autograd(
    network: TrainedNetwork, columns: Samples, observations: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each output, and then the gradient, of a compiled network and of the same one by autograd,
    for random gradients of the outputs."""
    results = []
    for way in (network.network, AutogradNetwork(network.module)):
        forward = way.forward(columns | {"inputs": way.prepare(observations)})
        rng = np.random.default_rng(3)
        of_outputs = [rng.standard_normal(o.shape).astype(np.float32) for o in forward.outputs]
        gradient = np.full_like(network.adam.gradient, np.nan)
        forward.backward(tuple(of_outputs), gradient)
        results.append((*forward.outputs, gradient))
    return list(zip(*results, strict=True))


def random_episodes(continuous: bool, masked: bool = False) -> Episodes:
    """With masks of four actions, these allow those that are taken, and others at random."""
    rng, of_masks = np.random.default_rng(0), np.random.default_rng(1)
    episodes = []
    for index, length in enumerate([4, 1, 9, 3]):
        actions = rng.standard_normal((length, 2)).astype(np.float32)
        episodes.append(
            episode_of(
                index=index,
                observations=rng.standard_normal((length + 1, 3)).astype(np.float32),
                actions=actions if continuous else rng.integers(0, 2, length).astype(np.int32),
                rewards=rng.standard_normal(length),
                terminated=index != 2,
                truncated=index == 2,
            )
        )
        if masked:
            allowed = of_masks.random((length + 1, 4)) < 0.4
            allowed[np.arange(length), episodes[-1].actions] = True
            allowed[-1, of_masks.integers(4)] = True
            episodes[-1].columns["action_masks"] = np.packbits(allowed, axis=1)
    return together(episodes)
