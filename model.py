"""The part to edit: the environments by name, and the networks that learn them.

A policy is a torch module with two methods that the learner uses: `log_prob_and_entropy`, and
`snapshot`, which exports the layers for the actors; those run in NumPy and never import torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from flame_rl.config import TrainConfig
from flame_rl.messages import EnvironmentSpec, PolicySnapshot

# Names for --env. Dimensions and the kind of action are read from the environment itself.
ENVIRONMENTS = {
    "cartpole": "CartPole-v1",
    "halfcheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
    "ant": "Ant-v5",
}

# Every name here has its NumPy twin in flame_rl/actor/policy.py.
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


class DiscretePolicy(nn.Module):
    """A categorical policy: one logit per action."""

    def __init__(
        self, observation_dim: int, actions: int, hidden_sizes: tuple[int, ...], activation: str
    ) -> None:
        super().__init__()
        self.activation = activation
        self.network = mlp((observation_dim, *hidden_sizes, actions), activation, output_gain=0.01)

    def forward(self, observation: Tensor) -> Categorical:
        """The distribution over actions: observation float32 [B, D] -> logits [B, actions]."""
        return Categorical(logits=self.network(observation), validate_args=False)

    def log_prob_and_entropy(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Of the actions taken: float32 [B, D] and int64 [B] -> two of float32 [B]."""
        distribution = self(observation)
        return distribution.log_prob(action), distribution.entropy()

    def snapshot(self, version: int) -> PolicySnapshot:
        """The layers for the actors."""
        return export_layers(self.network, version, self.activation, log_std=None)


class ContinuousPolicy(nn.Module):
    """A Gaussian policy whose mean depends on the observation and whose standard deviation is
    learned, the same everywhere. Actions are clipped to the environment's bounds by the actors;
    probabilities are those of the unclipped actions."""

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden_sizes: tuple[int, ...],
        activation: str,
        initial_log_std: float,
    ) -> None:
        super().__init__()
        self.activation = activation
        sizes = (observation_dim, *hidden_sizes, action_dim)
        self.network = mlp(sizes, activation, output_gain=0.01)
        self.log_std = nn.Parameter(torch.full((action_dim,), initial_log_std))

    def forward(self, observation: Tensor) -> Normal:
        """The distribution over actions: observation float32 [B, D] -> mean [B, A]."""
        return Normal(self.network(observation), self.log_std.exp(), validate_args=False)

    def log_prob_and_entropy(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Of the actions taken: float32 [B, D] and [B, A] -> two of float32 [B]."""
        distribution = self(observation)
        return distribution.log_prob(action).sum(-1), distribution.entropy().sum(-1)

    def snapshot(self, version: int) -> PolicySnapshot:
        """The layers for the actors."""
        return export_layers(self.network, version, self.activation, self.log_std)


def make_policy(spec: EnvironmentSpec, config: TrainConfig) -> DiscretePolicy | ContinuousPolicy:
    """The policy that fits the environment's spaces; its first weights follow from the seed."""
    inputs, outputs = spec.observation_dim, spec.action_dim
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if spec.continuous:
            return ContinuousPolicy(
                inputs, outputs, config.hidden_sizes, config.activation, config.initial_log_std
            )
        return DiscretePolicy(inputs, outputs, config.hidden_sizes, config.activation)


def export_layers(
    network: nn.Sequential, version: int, activation: str, log_std: Tensor | None
) -> PolicySnapshot:
    """Copies of a network's linear layers as NumPy arrays."""

    def linear_layers() -> Iterator[nn.Linear]:
        return (layer for layer in network if isinstance(layer, nn.Linear))

    return PolicySnapshot(
        version=version,
        activation=activation,
        # torch keeps [outputs, inputs]; the actors multiply from the left.
        weights=tuple(layer.weight.detach().numpy().T.copy() for layer in linear_layers()),
        biases=tuple(layer.bias.detach().numpy().copy() for layer in linear_layers()),
        log_std=None if log_std is None else log_std.detach().numpy().copy(),
    )
