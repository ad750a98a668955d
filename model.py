"""The part to edit: the networks.

A policy is a torch module with two methods that the learner uses: `log_prob_and_entropy`, and
`snapshot`, which exports the layers for the actors; those run in NumPy and never import torch. A
module that actors run exports itself: `layer` gives its kind, a name in
flame_rl/actor/policy/layers.py, and its arrays.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from flame_rl.actor.policy.layers import OBSERVATION_CLIP
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import EnvironmentSpec, Layer, PolicySnapshot


class Dense(nn.Linear):
    """A fully connected layer."""

    def layer(self) -> Layer:
        # torch keeps [outputs, inputs]; the actors multiply from the left.
        arrays = {"weight": array_of(self.weight.T), "bias": array_of(self.bias)}
        return Layer("dense", arrays)


class Activation(nn.Module):
    """An activation by its name, which is the same in torch.nn.functional and for the actors."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return getattr(nn.functional, self.name)(x)

    def layer(self) -> Layer:
        return Layer(self.name, {})


def mlp(sizes: tuple[int, ...], activation: str, output_gain: float) -> nn.Sequential:
    """A fully connected network.

    Hidden layers are orthogonal with gain sqrt(2); `output_gain` scales the last one: with a small
    value the first policy hardly depends on observations (Andrychowicz et al. 2021, "What Matters
    in On-Policy Reinforcement Learning?", section 3.2).

    Args:
        sizes: widths from the observation to the output.
        activation: the name of an `Activation`, used between layers.
        output_gain: gain of the last layer.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layer = Dense(inputs, outputs)
        nn.init.orthogonal_(layer.weight, math.sqrt(2))
        nn.init.zeros_(layer.bias)
        layers += [layer, Activation(activation)]
    layers.pop()
    nn.init.orthogonal_(layers[-1].weight, output_gain)
    return nn.Sequential(*layers)


class ObservationNormalizer(nn.Module):
    """Brings observations to mean 0 and standard deviation 1, clipped at ±10.

    It is part of the network, so that a policy is always used with the statistics it was trained
    with. The learner sets these from all observations that it has seen.
    """

    limit = OBSERVATION_CLIP

    def __init__(self, observation_dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(observation_dim))
        self.register_buffer("std", torch.ones(observation_dim))

    def set(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Set the statistics of observations, both float64 [D]."""
        self.mean.copy_(torch.from_numpy(mean))
        self.std.copy_(torch.from_numpy(std))

    def forward(self, observation: Tensor) -> Tensor:
        """float32 [B, D] -> [B, D]."""
        return ((observation - self.mean) / self.std).clamp(-self.limit, self.limit)

    def layer(self) -> Layer:
        return Layer("normalize", {"mean": array_of(self.mean), "std": array_of(self.std)})


class DiscretePolicy(nn.Module):
    """A categorical policy: one logit per action."""

    def __init__(self, spec: EnvironmentSpec, config: TrainConfig) -> None:
        super().__init__()
        self.normalizer = make_normalizer(spec, config)
        sizes = (spec.observation_dim, *config.experiment.hidden_sizes, spec.action_dim)
        self.network = mlp(sizes, config.experiment.activation, output_gain=0.01)

    def forward(self, observation: Tensor) -> Categorical:
        """The distribution over actions: observation float32 [B, D] -> logits [B, actions]."""
        return Categorical(logits=self.network(self.normalizer(observation)), validate_args=False)

    def log_prob_and_entropy(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the actions, and entropies: float32 [B, D] and int64 [B] -> two of
        float32 [B]."""
        distribution = self(observation)
        return distribution.log_prob(action), distribution.entropy()

    def snapshot(self, version: int) -> PolicySnapshot:
        """The layers for the actors."""
        layers = layers_of(self.normalizer, self.network)
        return PolicySnapshot(version, layers, Layer("categorical", {}))


class FactoredPolicy(nn.Module):
    """A categorical policy with several independent factors: the network gives the logits of one
    factor after another."""

    def __init__(self, spec: EnvironmentSpec, config: TrainConfig) -> None:
        super().__init__()
        self.choices = spec.choices
        self.normalizer = make_normalizer(spec, config)
        sizes = (spec.observation_dim, *config.experiment.hidden_sizes, spec.action_dim)
        self.network = mlp(sizes, config.experiment.activation, output_gain=0.01)

    def forward(self, observation: Tensor) -> list[Categorical]:
        """The distribution of each factor: observation float32 [B, D] -> logits [B, choices]."""
        logits = self.network(self.normalizer(observation))
        return [
            Categorical(logits=part, validate_args=False)
            for part in logits.split(self.choices, dim=-1)
        ]

    def log_prob_and_entropy(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the actions, and entropies, both summed over the factors: float32
        [B, D] and int64 [B, F] -> two of float32 [B]."""
        parts = self(observation)
        chosen = zip(parts, action.unbind(-1), strict=True)
        log_prob = sum(part.log_prob(choice) for part, choice in chosen)
        return log_prob, sum(part.entropy() for part in parts)

    def snapshot(self, version: int) -> PolicySnapshot:
        """The layers for the actors."""
        layers = layers_of(self.normalizer, self.network)
        head = Layer("factored", {"choices": np.array(self.choices, np.int32)})
        return PolicySnapshot(version, layers, head)


class ContinuousPolicy(nn.Module):
    """A Gaussian policy whose mean depends on the observation and whose standard deviation is
    learned and does not. -1 and 1 are the environment's bounds, to which the actors clip;
    probabilities are those of the unclipped actions."""

    def __init__(self, spec: EnvironmentSpec, config: TrainConfig) -> None:
        super().__init__()
        self.normalizer = make_normalizer(spec, config)
        sizes = (spec.observation_dim, *config.experiment.hidden_sizes, spec.action_dim)
        self.network = mlp(sizes, config.experiment.activation, output_gain=0.01)
        start = torch.full((spec.action_dim,), config.algorithm.initial_log_std)
        self.log_std = nn.Parameter(start)

    def forward(self, observation: Tensor) -> Normal:
        """The distribution over actions: observation float32 [B, D] -> mean [B, A]."""
        mean = self.network(self.normalizer(observation))
        return Normal(mean, self.log_std.exp(), validate_args=False)

    def log_prob_and_entropy(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the actions, and entropies: float32 [B, D] and [B, A] -> two of
        float32 [B]."""
        # Normal's own methods compute the same in three times as many operations.
        mean = self.network(self.normalizer(observation))
        squares = ((action - mean) * torch.exp(-self.log_std)).square().sum(-1)
        normalization = self.log_std.sum() + 0.5 * math.log(2 * math.pi) * action.shape[-1]
        entropy = normalization + 0.5 * action.shape[-1]
        return -0.5 * squares - normalization, entropy.expand(len(action))

    def snapshot(self, version: int) -> PolicySnapshot:
        """The layers for the actors."""
        layers = layers_of(self.normalizer, self.network)
        return PolicySnapshot(
            version, layers, Layer("gaussian", {"log_std": array_of(self.log_std)})
        )


class ValueNetwork(nn.Module):
    """Predicts the return that follows an observation; shares no layers with the policy."""

    def __init__(self, spec: EnvironmentSpec, config: TrainConfig) -> None:
        super().__init__()
        self.normalizer = make_normalizer(spec, config)
        sizes = (spec.observation_dim, *config.experiment.hidden_sizes, 1)
        self.network = mlp(sizes, config.experiment.activation, output_gain=1.0)
        # The size of returns, set by the learner: the layers work near 1, in any unit of reward.
        # Before the first update nothing is known, and every value is 0.
        self.register_buffer("scale", torch.zeros(()))

    def forward(self, observation: Tensor) -> Tensor:
        """float32 [B, D] -> [B], in units of reward."""
        return self.network(self.normalizer(observation)).squeeze(-1) * self.scale


def make_normalizer(spec: EnvironmentSpec, config: TrainConfig) -> nn.Module:
    """An `ObservationNormalizer` if `--normalize-observations` is set, else the identity."""
    if config.algorithm.normalize_observations:
        return ObservationNormalizer(spec.observation_dim)
    return nn.Identity()


Policy = DiscretePolicy | FactoredPolicy | ContinuousPolicy


def make_networks(spec: EnvironmentSpec, config: TrainConfig) -> tuple[Policy, ValueNetwork]:
    """Networks that fit the environment's spaces; their first weights follow from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.experiment.seed)
        return policy_class(spec)(spec, config), ValueNetwork(spec, config)


def policy_class(spec: EnvironmentSpec) -> type[Policy]:
    """The policy for the environment's action space."""
    if spec.continuous:
        return ContinuousPolicy
    return DiscretePolicy if isinstance(spec.action_space, spaces.Discrete) else FactoredPolicy


def layers_of(*modules: nn.Module) -> tuple[Layer, ...]:
    """The layers of the modules, one after another, for the actors."""
    layers: list[Layer] = []
    for module in modules:
        if isinstance(module, nn.Sequential):
            layers += layers_of(*module)
        elif hasattr(module, "layer"):
            layers.append(module.layer())
        elif not isinstance(module, nn.Identity):
            raise TypeError(
                f"{type(module).__name__} has no method `layer`, which exports it for the actors; "
                "flame_rl/actor/policy/layers.py has the kinds of layers that they know"
            )
    return tuple(layers)


def array_of(tensor: Tensor) -> np.ndarray:
    """A copy of the tensor as a float32 array."""
    return np.array(tensor.detach().numpy(), np.float32, order="C")
