"""The part to edit: the networks.

A policy is a torch module with two methods that the learner uses: `log_prob_and_entropy`, and
`snapshot`, which exports the layers for the actors; those run in NumPy and never import torch.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import OBSERVATION_CLIP, EnvironmentSpec, PolicySnapshot

# Every name here has its NumPy twin in flame_rl/actor/policy/.
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}


def mlp(sizes: tuple[int, ...], activation: str, output_gain: float) -> nn.Sequential:
    """A fully connected network.

    Hidden layers are orthogonal with gain sqrt(2); `output_gain` scales the last one: a small
    value makes the first policy act alike everywhere (Andrychowicz et al. 2021, "What Matters in
    On-Policy Reinforcement Learning?", section 3.2).

    Args:
        sizes: widths from the observation to the output.
        activation: a name in `ACTIVATIONS`, used between layers.
        output_gain: gain of the last layer.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layer = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(layer.weight, math.sqrt(2))
        nn.init.zeros_(layer.bias)
        layers += [layer, ACTIVATIONS[activation]()]
    layers.pop()
    nn.init.orthogonal_(layers[-1].weight, output_gain)
    return nn.Sequential(*layers)


class ObservationNormalizer(nn.Module):
    """Brings observations to mean 0 and standard deviation 1, clipped at ±10.

    Part of the network, so that whoever has the policy normalises as it was trained. The learner
    sets both from all observations that it has seen.
    """

    def __init__(self, observation_dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(observation_dim))
        self.register_buffer("std", torch.ones(observation_dim))

    def set(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Both float64 [D]."""
        self.mean.copy_(torch.from_numpy(mean))
        self.std.copy_(torch.from_numpy(std))

    def forward(self, observation: Tensor) -> Tensor:
        """float32 [B, D] -> [B, D]."""
        return ((observation - self.mean) / self.std).clamp(-OBSERVATION_CLIP, OBSERVATION_CLIP)


class DiscretePolicy(nn.Module):
    """A categorical policy: one logit per action."""

    def __init__(self, spec: EnvironmentSpec, config: TrainConfig) -> None:
        super().__init__()
        self.activation = config.experiment.activation
        self.normalizer = make_normalizer(spec, config)
        sizes = (spec.observation_dim, *config.experiment.hidden_sizes, spec.action_dim)
        self.network = mlp(sizes, config.experiment.activation, output_gain=0.01)

    def forward(self, observation: Tensor) -> Categorical:
        """The distribution over actions: observation float32 [B, D] -> logits [B, actions]."""
        return Categorical(logits=self.network(self.normalizer(observation)), validate_args=False)

    def log_prob_and_entropy(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Of the actions taken: float32 [B, D] and int64 [B] -> two of float32 [B]."""
        distribution = self(observation)
        return distribution.log_prob(action), distribution.entropy()

    def snapshot(self, version: int) -> PolicySnapshot:
        """The layers for the actors."""
        return export_layers(self, version, log_std=None)


class ContinuousPolicy(nn.Module):
    """A Gaussian policy whose mean depends on the observation and whose standard deviation is
    learned, the same everywhere. Actions are clipped to the environment's bounds by the actors;
    probabilities are those of the unclipped actions."""

    def __init__(self, spec: EnvironmentSpec, config: TrainConfig) -> None:
        super().__init__()
        self.activation = config.experiment.activation
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
        """Of the actions taken: float32 [B, D] and [B, A] -> two of float32 [B]."""
        # Normal's own methods say the same in three times as many operations.
        mean = self.network(self.normalizer(observation))
        squares = ((action - mean) * torch.exp(-self.log_std)).square().sum(-1)
        normalization = self.log_std.sum() + 0.5 * math.log(2 * math.pi) * action.shape[-1]
        entropy = normalization + 0.5 * action.shape[-1]
        return -0.5 * squares - normalization, entropy.expand(len(action))

    def snapshot(self, version: int) -> PolicySnapshot:
        """The layers for the actors."""
        return export_layers(self, version, self.log_std)


class ValueNetwork(nn.Module):
    """Predicts the return from an observation on; a network of its own, shares nothing."""

    def __init__(self, spec: EnvironmentSpec, config: TrainConfig) -> None:
        super().__init__()
        self.normalizer = make_normalizer(spec, config)
        sizes = (spec.observation_dim, *config.experiment.hidden_sizes, 1)
        self.network = mlp(sizes, config.experiment.activation, output_gain=1.0)
        # The standard deviation of returns, set by the learner: the layers work near 1.
        self.register_buffer("scale", torch.ones(()))

    def forward(self, observation: Tensor) -> Tensor:
        """float32 [B, D] -> [B], in units of reward."""
        return self.network(self.normalizer(observation)).squeeze(-1) * self.scale


def make_normalizer(spec: EnvironmentSpec, config: TrainConfig) -> nn.Module:
    """As `--normalize-observations` says."""
    if config.algorithm.normalize_observations:
        return ObservationNormalizer(spec.observation_dim)
    return nn.Identity()


def make_networks(
    spec: EnvironmentSpec, config: TrainConfig
) -> tuple[DiscretePolicy | ContinuousPolicy, ValueNetwork]:
    """Networks that fit the environment's spaces; their first weights follow from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.experiment.seed)
        policy = (ContinuousPolicy if spec.continuous else DiscretePolicy)(spec, config)
        return policy, ValueNetwork(spec, config)


def export_layers(
    policy: DiscretePolicy | ContinuousPolicy, version: int, log_std: Tensor | None
) -> PolicySnapshot:
    """Copies of what acts, as NumPy arrays."""
    layers = [layer for layer in policy.network if isinstance(layer, nn.Linear)]
    normalizer = policy.normalizer
    normalizes = isinstance(normalizer, ObservationNormalizer)
    return PolicySnapshot(
        version=version,
        activation=policy.activation,
        # torch keeps [outputs, inputs]; the actors multiply from the left.
        weights=tuple(layer.weight.detach().numpy().T.copy() for layer in layers),
        biases=tuple(layer.bias.detach().numpy().copy() for layer in layers),
        log_std=None if log_std is None else log_std.detach().numpy().copy(),
        observation_mean=normalizer.mean.numpy().copy() if normalizes else None,
        observation_std=normalizer.std.numpy().copy() if normalizes else None,
    )
