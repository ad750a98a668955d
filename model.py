"""The part to edit: the networks.

A policy is a torch module with two methods that the learner uses: `log_prob_and_entropy`, and
`snapshot`, which exports the layers for the actors; those run in NumPy and never import torch. A
module that actors run exports itself: `layer` gives its kind, a name in
flame_rl/nets/kinds.py, and its arrays.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from flame_rl.learner.on_policy.auxiliary import loss_of_steps, make_auxiliary
from flame_rl.learner.training import gru
from flame_rl.nets.discrete import dueling
from flame_rl.nets.layers import OBSERVATION_CLIP
from flame_rl.settings.config import TrainConfig
from flame_rl.settings.losses import loss_name
from flame_rl.wire.messages import EnvironmentSpec, Layer, PolicySnapshot
from flame_rl.wire.steps import observation_dtype


class Dense(nn.Linear):
    """A fully connected layer."""

    def layer(self) -> Layer:
        # torch keeps [outputs, inputs]; the actors multiply from the left.
        arrays = {"weight": array_of(self.weight.T), "bias": array_of(self.bias)}
        return Layer("dense", arrays)


class Convolution(nn.Conv2d):
    """Filters over pictures with channels last, as Gymnasium gives them, without padding. Pictures
    are flat before and after: float32 [..., rows * columns * channels] -> [..., places down *
    places across * filters].

    Attributes:
        size: rows, columns and channels of a picture.
        output_size: the same of what comes out: places down and across, and filters.
    """

    def __init__(self, size: tuple[int, int, int], filters: int, width: int, stride: int) -> None:
        """`filters` square filters of that width."""
        super().__init__(size[2], filters, width, stride)
        self.size = size
        down, across = ((side - width) // stride + 1 for side in size[:2])
        self.output_size = (down, across, filters)

    def forward(self, x: Tensor) -> Tensor:
        # torch counts channels before rows and columns, but takes them in any order in memory.
        pictures = x.reshape(-1, *self.size).permute(0, 3, 1, 2)
        y = super().forward(pictures).permute(0, 2, 3, 1)
        return y.reshape(*x.shape[:-1], math.prod(self.output_size))

    def layer(self) -> Layer:
        arrays = {
            "weight": array_of(self.weight.permute(2, 3, 1, 0)),
            "bias": array_of(self.bias),
            "size": np.array(self.size[:2], np.int32),
            "stride": np.array(self.stride[:1], np.int32),
        }
        return Layer("convolution", arrays)


class FrameStack(nn.Module):
    """The last observations, interleaved: [..., count, D] -> [..., D * count], where the `count`
    values of each number follow each other. Of pictures, they become further channels. The actors'
    layer gets one observation at a time, and keeps those before it."""

    def __init__(self, observation_dim: int, count: int) -> None:
        super().__init__()
        self.size = observation_dim, count

    def forward(self, observations: Tensor) -> Tensor:
        return observations.transpose(-1, -2).flatten(-2)

    def layer(self) -> Layer:
        return Layer("frames", {"size": np.array(self.size, np.int32)})


class Activation(nn.Module):
    """An activation by its name, which is the same in torch.nn.functional and for the actors."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return getattr(nn.functional, self.name)(x)

    def layer(self) -> Layer:
        return Layer(self.name, {})


class GRU(nn.GRU):
    """A gated recurrent unit, unrolled from an episode's first step: float32 [T, inputs] or, of E
    episodes side by side, [T, E, inputs] -> [T, outputs] or [T, E, outputs]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        _initialize_recurrent(self, remembering=1)

    def forward(self, x: Tensor) -> Tensor:
        # gru.py computes in NumPy.
        if not torch.is_grad_enabled() or x.device.type != "cpu":
            return super().forward(x)[0]
        given = nn.functional.linear(x, self.weight_ih_l0, self.bias_ih_l0)
        sequences = given if x.ndim == 3 else given[:, None]
        outputs = gru.unrolled(sequences, self.weight_hh_l0, self.bias_hh_l0)
        return outputs if x.ndim == 3 else outputs[:, 0]

    def layer(self) -> Layer:
        arrays = {
            "input_weight": _by_gate(self.weight_ih_l0.T, self.hidden_size),
            "input_bias": _by_gate(self.bias_ih_l0, self.hidden_size),
            "state_weight": _by_gate(self.weight_hh_l0.T, self.hidden_size),
            "state_bias": _by_gate(self.bias_hh_l0, self.hidden_size),
        }
        return Layer("gru", arrays)


class LSTM(nn.LSTM):
    """Long short-term memory; inputs and outputs as those of `GRU`."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        _initialize_recurrent(self, remembering=1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]

    def layer(self) -> Layer:
        arrays = {
            "input_weight": _by_gate(self.weight_ih_l0.T, self.hidden_size),
            "state_weight": _by_gate(self.weight_hh_l0.T, self.hidden_size),
            "bias": _by_gate(self.bias_ih_l0 + self.bias_hh_l0, self.hidden_size),
        }
        return Layer("lstm", arrays)


def _initialize_recurrent(module: nn.RNNBase, remembering: int) -> None:
    """Orthogonal weights, and no bias but that of the gate, by its place, that decides how much is
    remembered: without one, half of the state would be lost at each step at first (Jozefowicz et
    al. 2015, "An Empirical Exploration of Recurrent Network Architectures")."""
    for name, parameter in module.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
        else:
            for gate in parameter.split(module.hidden_size):
                nn.init.orthogonal_(gate)
    with torch.no_grad():
        module.bias_ih_l0.split(module.hidden_size)[remembering].fill_(1.0)


def _by_gate(array: Tensor, width: int) -> np.ndarray:
    """Weights whose last dimension lists the gates one after another, as the actors take them:
    [..., gates * width] -> [..., gates, width]."""
    return array_of(array.unflatten(-1, (-1, width)))


# By --memory.
MEMORIES = {"gru": GRU, "lstm": LSTM}


# Filters of the convolutions, their width and stride: for small pictures those of Young and Tian
# 2019, "MinAtar", and for all others those of Mnih et al. 2015, "Human-Level Control through Deep
# Reinforcement Learning", which need 36 rows and columns.
SMALL_PICTURES = ((16, 3, 1),)
LARGE_PICTURES = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
_LEAST_OF_SMALL, _LEAST_OF_LARGE = 3, 36


def picture_size(spec: EnvironmentSpec) -> tuple[int, int, int] | None:
    """Rows, columns and channels of an observation that is a picture: a Box of one byte, [rows,
    columns, channels] or [rows, columns]. None: it is a vector."""
    space = spec.observation_space
    if observation_dtype(space) != "uint8" or len(space.shape) not in (2, 3):
        return None
    rows, columns, *channels = space.shape
    if min(rows, columns) < _LEAST_OF_SMALL:
        return None
    return rows, columns, math.prod(channels)


def is_small(size: tuple[int, int, int]) -> bool:
    """Whether pictures of that size are, as those of games on a small board."""
    return min(size[:2]) < _LEAST_OF_LARGE


def picture_layers(
    spec: EnvironmentSpec, activation: str, frames: int = 1
) -> tuple[list[nn.Module], int]:
    """The layers that a network begins with, and the width of their output: convolutions where
    observations are pictures, otherwise none. `frames` is as in `make_frames`."""
    size = picture_size(spec)
    if size is None:
        return [], spec.observation_dim * frames
    size = (*size[:2], size[2] * frames)
    layers: list[nn.Module] = []
    for filters, width, stride in SMALL_PICTURES if is_small(size) else LARGE_PICTURES:
        layers += [Convolution(size, filters, width, stride), Activation(activation)]
        size = layers[-2].output_size
    return layers, math.prod(size)


def make_network(
    spec: EnvironmentSpec, outputs: int, config: TrainConfig, output_gain: float
) -> nn.Sequential:
    """The layers of a network as `--hidden-sizes`, `--activation` and `--memory` say, after
    convolutions where observations are pictures.

    The memory is the last layer before the output (as in Hausknecht and Stone 2015, "Deep Recurrent
    Q-Learning for Partially Observable MDPs"): the layers before it say what there is to remember
    of an observation, and one linear layer reads what is remembered.

    Args:
        spec: of the environment.
        outputs: width of the output.
        config: its `experiment` has the settings.
        output_gain: as in `mlp`.
    """
    experiment = config.experiment
    layers, inputs = picture_layers(spec, experiment.activation, experiment.frame_stack)
    for layer in layers[::2]:
        initialize(layer, math.sqrt(2))
    if experiment.memory == "none":
        sizes = (inputs, *experiment.hidden_sizes, outputs)
        return nn.Sequential(*layers, *mlp(sizes, experiment.activation, output_gain))
    for before, width in pairwise((inputs, *experiment.hidden_sizes)):
        layers += [orthogonal(before, width, math.sqrt(2)), Activation(experiment.activation)]
    *_, features = (inputs, *experiment.hidden_sizes)
    memory = MEMORIES[experiment.memory](features, experiment.memory_size)
    return nn.Sequential(*layers, memory, orthogonal(experiment.memory_size, outputs, output_gain))


def orthogonal(inputs: int, outputs: int, gain: float) -> Dense:
    """A layer whose weights are orthogonal, scaled by `gain`, and whose biases are 0."""
    layer = Dense(inputs, outputs)
    initialize(layer, gain)
    return layer


def initialize(layer: Dense | Convolution, gain: float) -> None:
    """Make the weights orthogonal, scaled by `gain`, and the biases 0."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)


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
        layers += [orthogonal(inputs, outputs, math.sqrt(2)), Activation(activation)]
    layers.pop()
    nn.init.orthogonal_(layers[-1].weight, output_gain)
    return nn.Sequential(*layers)


def uniform_mlp(sizes: tuple[int, ...], activation: str, layer_norm: bool = False) -> nn.Sequential:
    """A fully connected network with torch's own first weights, uniform within
    ±1 / sqrt(inputs): those of the usual implementations of DQN, TD3 and SAC.

    Args:
        sizes, activation: as in `mlp`.
        layer_norm: normalise the numbers of each hidden layer, before its activation.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes[:-1]):
        norms = [nn.LayerNorm(outputs)] if layer_norm else []
        layers += [Dense(inputs, outputs), *norms, Activation(activation)]
    return nn.Sequential(*layers, Dense(*sizes[-2:]))


def uniform_network(
    spec: EnvironmentSpec,
    outputs: int,
    hidden_sizes: tuple[int, ...],
    activation: str,
    frames: int = 1,
) -> nn.Sequential:
    """As `uniform_mlp`, after convolutions where observations are pictures."""
    layers, inputs = picture_layers(spec, activation, frames)
    return nn.Sequential(*layers, *uniform_mlp((inputs, *hidden_sizes, outputs), activation))


class ObservationNormalizer(nn.Module):
    """Brings observations to mean 0 and standard deviation 1, clipped at ±10.

    It is part of the network, so that a policy is always used with the statistics it was trained
    with. The learner sets these from all observations that it has seen.

    Attributes:
        observation_dim: D.
    """

    limit = OBSERVATION_CLIP

    def __init__(self, observation_dim: int, frames: int = 1) -> None:
        """`frames` is k, as in `make_frames`."""
        super().__init__()
        self.observation_dim, self._frames = observation_dim, frames
        self.register_buffer("mean", torch.zeros(observation_dim * frames))
        self.register_buffer("std", torch.ones(observation_dim * frames))

    def set(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Set the statistics of observations, both float64 [D]."""
        self.mean.copy_(torch.from_numpy(mean.repeat(self._frames)))
        self.std.copy_(torch.from_numpy(std.repeat(self._frames)))

    def forward(self, observation: Tensor) -> Tensor:
        """float32 [B, D * k] -> [B, D * k]."""
        return ((observation - self.mean) / self.std).clamp(-self.limit, self.limit)

    def layer(self) -> Layer:
        return Layer("normalize", {"mean": array_of(self.mean), "std": array_of(self.std)})


def greatest_of(space: spaces.Box) -> int:
    """The greatest of the numbers that observations of one byte may have; 1 if that is 0."""
    return max(1, int(space.high.max()))


class Scaling(nn.Module):
    """Multiplies observations of one byte, such as pictures, by 1 / the greatest of their numbers:
    uint8 [B, D] -> float32 [B, D], from 0 to 1."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.register_buffer("factor", torch.full((1,), 1 / greatest_of(space)), persistent=False)

    def forward(self, observation: Tensor) -> Tensor:
        return observation * self.factor

    def layer(self) -> Layer:
        return Layer("scale", {"factor": array_of(self.factor)})


class Centering(nn.Module):
    """Subtracts the mean picture, and divides all numbers by the same standard deviation: most of a
    picture is a background that would drown what moves. The learner sets both from all pictures
    that it has seen.

    Attributes:
        observation_dim: D.
    """

    def __init__(self, space: spaces.Box, frames: int = 1) -> None:
        """`frames` is k, as in `make_frames`."""
        super().__init__()
        self.observation_dim, self._frames = math.prod(space.shape), frames
        # So that numbers are 100 at most, however little changes from picture to picture.
        self._least_std = greatest_of(space) / 100
        self.register_buffer("mean", torch.zeros(self.observation_dim * frames))
        self.register_buffer("factor", torch.full((1,), 1 / greatest_of(space)))

    def set(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Set the statistics of each number of the pictures, both float64 [D]."""
        self.mean.copy_(torch.from_numpy(mean.repeat(self._frames)))
        self.factor.fill_(1 / max(self._least_std, np.sqrt(np.mean(std * std))))

    def forward(self, observation: Tensor) -> Tensor:
        """uint8 [B, D * k] -> float32 [B, D * k]."""
        return (observation - self.mean) * self.factor

    def layer(self) -> Layer:
        return Layer("center", {"mean": array_of(self.mean), "factor": array_of(self.factor)})


class DiscretePolicy(nn.Module):
    """A categorical policy: one logit per action."""

    def __init__(self, spec: EnvironmentSpec, config: TrainConfig) -> None:
        super().__init__()
        count = config.experiment.frame_stack
        self.frames = make_frames(spec, count)
        self.normalizer = make_normalizer(spec, config.algorithm.normalize_observations, count)
        self.network = make_network(spec, spec.action_dim, config, output_gain=0.01)

    def forward(self, observation: Tensor) -> Categorical:
        """The distribution over actions: observation float32 [B, D] -> logits [B, actions]. Here
        and in what follows B may be two dimensions, time steps and episodes."""
        return Categorical(
            logits=self.network(self.normalizer(self.frames(observation))), validate_args=False
        )

    def log_prob_and_entropy(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the actions, and entropies: float32 [B, D] and int64 [B] -> two of
        float32 [B]."""
        return self.of_output(self.network(self.normalizer(self.frames(observation))), action)

    def of_output(self, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """As `log_prob_and_entropy`, of what the network gives, [B, actions]."""
        distribution = Categorical(logits=logits, validate_args=False)
        return distribution.log_prob(action), distribution.entropy()

    def snapshot(self) -> PolicySnapshot:
        """The layers for the actors."""
        layers = layers_of(self.frames, self.normalizer, self.network)
        return PolicySnapshot(0, layers, Layer("categorical", {}))


class FactoredPolicy(nn.Module):
    """A categorical policy with several independent factors: the network gives the logits of one
    factor after another."""

    def __init__(self, spec: EnvironmentSpec, config: TrainConfig) -> None:
        super().__init__()
        self.choices = spec.choices
        count = config.experiment.frame_stack
        self.frames = make_frames(spec, count)
        self.normalizer = make_normalizer(spec, config.algorithm.normalize_observations, count)
        self.network = make_network(spec, spec.action_dim, config, output_gain=0.01)

    def forward(self, observation: Tensor) -> list[Categorical]:
        """The distribution of each factor: observation float32 [B, D] -> logits [B, choices]."""
        return self._factors(self.network(self.normalizer(self.frames(observation))))

    def log_prob_and_entropy(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the actions, and entropies, both summed over the factors: float32
        [B, D] and int64 [B, F] -> two of float32 [B]."""
        return self.of_output(self.network(self.normalizer(self.frames(observation))), action)

    def of_output(self, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """As `log_prob_and_entropy`, of what the network gives, [B, logits of all factors]."""
        parts = self._factors(logits)
        chosen = zip(parts, action.unbind(-1), strict=True)
        log_prob = sum(part.log_prob(choice) for part, choice in chosen)
        return log_prob, sum(part.entropy() for part in parts)

    def _factors(self, logits: Tensor) -> list[Categorical]:
        return [
            Categorical(logits=part, validate_args=False)
            for part in logits.split(self.choices, dim=-1)
        ]

    def snapshot(self) -> PolicySnapshot:
        """The layers for the actors."""
        layers = layers_of(self.frames, self.normalizer, self.network)
        head = Layer("factored", {"choices": np.array(self.choices, np.int32)})
        return PolicySnapshot(0, layers, head)


class ContinuousPolicy(nn.Module):
    """A Gaussian policy whose mean depends on the observation and whose standard deviation is
    learned and does not. -1 and 1 are the environment's bounds, to which the actors clip;
    probabilities are those of the unclipped actions."""

    def __init__(self, spec: EnvironmentSpec, config: TrainConfig) -> None:
        super().__init__()
        count = config.experiment.frame_stack
        self.frames = make_frames(spec, count)
        self.normalizer = make_normalizer(spec, config.algorithm.normalize_observations, count)
        self.network = make_network(spec, spec.action_dim, config, output_gain=0.01)
        start = torch.full((spec.action_dim,), config.algorithm.initial_log_std)
        self.log_std = nn.Parameter(start)

    def forward(self, observation: Tensor) -> Normal:
        """The distribution over actions: observation float32 [B, D] -> mean [B, A]."""
        mean = self.network(self.normalizer(self.frames(observation)))
        return Normal(mean, self.log_std.exp(), validate_args=False)

    def log_prob_and_entropy(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the actions, and entropies: float32 [B, D] and [B, A] -> two of
        float32 [B]."""
        return self.of_output(self.network(self.normalizer(self.frames(observation))), action)

    def of_output(self, mean: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """As `log_prob_and_entropy`, of what the network gives, [B, A]."""
        # Normal's own methods compute the same in three times as many operations.
        squares = ((action - mean) * torch.exp(-self.log_std)).square().sum(-1)
        normalization = self.log_std.sum() + 0.5 * math.log(2 * math.pi) * action.shape[-1]
        entropy = normalization + 0.5 * action.shape[-1]
        return -0.5 * squares - normalization, entropy.expand(squares.shape)

    def snapshot(self) -> PolicySnapshot:
        """The layers for the actors."""
        layers = layers_of(self.frames, self.normalizer, self.network)
        return PolicySnapshot(0, layers, Layer("gaussian", {"log_std": array_of(self.log_std)}))


class ValueNetwork(nn.Module):
    """Predicts the return that follows an observation; shares no layers with the policy, other than
    a `SharedNetwork`."""

    def __init__(self, spec: EnvironmentSpec, config: TrainConfig) -> None:
        super().__init__()
        count = config.experiment.frame_stack
        self.frames = make_frames(spec, count)
        self.normalizer = make_normalizer(spec, config.algorithm.normalize_observations, count)
        self.network = make_network(spec, 1, config, output_gain=1.0)
        # The size of returns, set by the learner: the layers work near 1, in any unit of reward.
        # Before the first update nothing is known, and every value is 0.
        self.register_buffer("scale", torch.zeros(()))

    def forward(self, observation: Tensor) -> Tensor:
        """float32 [B, D] -> [B], in units of reward."""
        return self.network(self.normalizer(self.frames(observation))).squeeze(-1) * self.scale


class SharedNetwork(nn.Module):
    """A policy, a value network and what auxiliary losses predict, which share all layers but the
    output of each.

    Attributes:
        policy: as without sharing, and all that actors get. Its layers but the last are the shared
            ones; what they give are the features.
        value: the output layer of the values.
        auxiliary: a module for each auxiliary loss, by the loss's name in metrics.csv.
    """

    def __init__(self, spec: EnvironmentSpec, config: TrainConfig) -> None:
        super().__init__()
        self.policy = policy_class(spec)(spec, config)
        features = self.policy.network[-1].in_features
        self.value = orthogonal(features, 1, gain=1.0)
        self.auxiliary = nn.ModuleDict(
            {
                f"{loss_name(name)}_loss": make_auxiliary(name, features, spec)
                for name in config.algorithm.auxiliary
            }
        )
        # As in `ValueNetwork`.
        self.register_buffer("scale", torch.zeros(()))

    @property
    def normalizer(self) -> nn.Module:
        """The policy's normaliser of observations."""
        return self.policy.normalizer

    def forward(self, observation: Tensor) -> Tensor:
        """The values: float32 [B, D] -> [B], in units of reward."""
        return self._values(self._features(self._observed(observation)))

    def every_output(self, samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Log-probabilities of the actions, entropies, values, and the losses of each auxiliary
        module: float32 [B] each.

        Args:
            samples: "inputs" are observations; "actions", and what
                `columns_of` (learner/on_policy/auxiliary.py) gives where there are
                auxiliary losses.
        """
        observed = self._observed(samples["inputs"])
        features = self._features(observed)
        outputs = self.policy.of_output(self.policy.network[-1](features), samples["actions"])
        outputs += (self._values(features),)
        if not self.auxiliary:
            return outputs
        following = self._observed_alone(samples["next_observations"])
        seen = samples | {"observations": observed, "next_observations": following}
        losses = (loss_of_steps(*item, features, seen) for item in self.auxiliary.items())
        return (*outputs, *losses)

    def snapshot(self) -> PolicySnapshot:
        """The policy's layers for the actors."""
        return self.policy.snapshot()

    def _observed(self, observation: Tensor) -> Tensor:
        return self.normalizer(self.policy.frames(observation))

    def _observed_alone(self, observation: Tensor) -> Tensor:
        """One observation, without those before it, normalised as one of them: [B, D] -> [B, D]."""
        if isinstance(self.policy.frames, nn.Identity):
            return self._observed(observation)
        count = self.policy.frames.size[1]
        # The normaliser takes stacks: one of equal observations, of which one is kept.
        stack = observation.unsqueeze(-2).expand(*observation.shape[:-1], count, -1)
        return self._observed(stack)[..., ::count]

    def _features(self, observed: Tensor) -> Tensor:
        for layer in list(self.policy.network)[:-1]:
            observed = layer(observed)
        return observed

    def _values(self, features: Tensor) -> Tensor:
        return self.value(features).squeeze(-1) * self.scale


class ActionValueNetwork(nn.Module):
    """Predicts for each of A actions the return that follows it, or the return's distribution.

    With a duelling network, what it predicts for each action is divided into the state's part and
    the actions' advantages; see `flame_rl.learner.off_policy.values.dueling`.

    Attributes:
        atoms: Z, how many numbers describe one return: atoms of C51, quantiles, or 1.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        hidden_sizes: tuple[int, ...],
        activation: str = "relu",
        dueling: bool = False,
        quantiles: int = 1,
        support: np.ndarray | None = None,
        frames: int = 1,
    ) -> None:
        """
        Args:
            spec: its actions are a Discrete.
            hidden_sizes, activation: of the layers between observation and output.
            dueling: whether the network is a duelling one.
            quantiles: Z, the quantiles of each return; 1: the network predicts its mean.
            support: float [Z], the atoms of C51, whose logits the network gives; None: it gives
                quantiles.
            frames: as in `make_frames`.

        Raises:
            ValueError: both quantiles and a support.
        """
        super().__init__()
        if support is not None and quantiles != 1:
            raise ValueError(f"quantiles: {quantiles} beside a support; a network has only one")
        self.dueling = dueling
        self.support = support
        self.atoms = quantiles if support is None else len(support)
        self.normalizer = make_normalizer(spec)
        outputs = (spec.action_dim + dueling) * self.atoms
        self.frames = make_frames(spec, frames)
        self.network = uniform_network(spec, outputs, hidden_sizes, activation, frames)

    def forward(self, observation: Tensor) -> Tensor:
        """float32 [B, D] -> [B, A * Z], action by action; of a duelling network
        [B, (1 + A) * Z], the state's part first."""
        return self.network(self.normalizer(self.frames(observation)))

    def snapshot(self) -> PolicySnapshot:
        """The layers for the actors. Their output is Q, [B, A], or with C51 logits, [B, A * Z]:
        duelling and the mean of quantiles are linear, so the last layer contains them."""
        *layers, last = layers_of(self.frames, self.normalizer, self.network)
        arrays = {
            "weight": self._of_actions(last.arrays["weight"]),
            "bias": self._of_actions(last.arrays["bias"][None])[0],
        }
        head = epsilon_greedy()
        if self.support is not None:
            support = np.array(self.support, np.float32)
            head = Layer("epsilon_greedy_distribution", head.arrays | {"support": support})
        return PolicySnapshot(0, (*layers, Layer(last.kind, arrays)), head)

    def _of_actions(self, outputs: np.ndarray) -> np.ndarray:
        """From what the network gives to what the actors need: float32 [rows, outputs] -> [rows, A]
        or, with C51, [rows, A * Z]."""
        outputs = outputs.astype(np.float64)
        if self.dueling:
            outputs = dueling(outputs, self.atoms)
        if self.support is None:
            outputs = outputs.reshape(len(outputs), -1, self.atoms).mean(axis=2)
        return outputs.astype(np.float32)


class RecurrentValueNetwork(nn.Module):
    """Predicts for each of A actions the return that follows it, from all observations of the
    episode so far."""

    def __init__(self, spec: EnvironmentSpec, config: TrainConfig) -> None:
        super().__init__()
        self.frames = make_frames(spec, config.experiment.frame_stack)
        self.normalizer = make_normalizer(spec)
        self.network = make_network(spec, spec.action_dim, config, output_gain=0.1)

    def forward(self, observation: Tensor) -> Tensor:
        """float32 [T, D] or, of S sequences side by side, [T, S, D] -> [T, A] or [T, S, A]."""
        return self.network(self.normalizer(self.frames(observation)))

    def snapshot(self) -> PolicySnapshot:
        """The layers for the actors."""
        layers = layers_of(self.frames, self.normalizer, self.network)
        return PolicySnapshot(0, layers, epsilon_greedy())


class SuccessorNetwork(nn.Module):
    """Predicts for each of A actions the returns of the P parts of the reward that follow it; see
    flame_rl/learner/algorithms/successor.py."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        hidden_sizes: tuple[int, ...],
        activation: str,
        weights: np.ndarray,
        frames: int = 1,
    ) -> None:
        """
        Args:
            spec: its actions are a Discrete.
            hidden_sizes, activation: of the layers between observation and output.
            weights: of the parts, [P].
            frames: as in `make_frames`.
        """
        super().__init__()
        self.frames = make_frames(spec, frames)
        self.normalizer = make_normalizer(spec)
        outputs = spec.action_dim * len(weights)
        self.weights = weights
        self.network = uniform_network(spec, outputs, hidden_sizes, activation, frames)

    def forward(self, observation: Tensor) -> Tensor:
        """float32 [B, D] -> [B, A * P], action by action."""
        return self.network(self.normalizer(self.frames(observation)))

    def snapshot(self) -> PolicySnapshot:
        """The layers for the actors. Their output is Q, [B, A]: a weighted sum is linear, so the
        last layer contains it."""
        *layers, last = layers_of(self.frames, self.normalizer, self.network)
        arrays = {
            name: array.reshape(*array.shape[:-1], -1, len(self.weights)) @ self.weights
            for name, array in last.arrays.items()
        }
        layers = (*layers, Layer(last.kind, arrays))
        return PolicySnapshot(0, layers, epsilon_greedy())


class DeterministicPolicy(nn.Module):
    """One action for each observation, within the bounds -1 and 1; noise is added where it acts."""

    def __init__(
        self, spec: EnvironmentSpec, hidden_sizes: tuple[int, ...], activation: str = "relu"
    ) -> None:
        super().__init__()
        self.normalizer = make_normalizer(spec)
        layers = uniform_network(spec, spec.action_dim, hidden_sizes, activation)
        self.network = layers.append(Activation("tanh"))

    def forward(self, observation: Tensor) -> Tensor:
        """The actions: float32 [B, D] -> [B, A]."""
        return self.network(self.normalizer(observation))

    def snapshot(self) -> PolicySnapshot:
        """The layers for the actors, without noise."""
        layers = layers_of(self.normalizer, self.network)
        actions = self.network[-2].out_features
        noise = {"std": np.zeros(actions, np.float32), "theta": np.ones(1, np.float32)}
        return PolicySnapshot(0, layers, Layer("noisy", noise))


class SquashedGaussianPolicy(nn.Module):
    """A Gaussian policy whose mean and standard deviation depend on the observation, and whose
    actions tanh brings within the bounds -1 and 1; see flame_rl/learner/off_policy/squashed.py."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        hidden_sizes: tuple[int, ...],
        activation: str = "relu",
        initial_std: float = 1.0,
    ) -> None:
        """`initial_std` is about what the standard deviations of a new policy are, before tanh."""
        super().__init__()
        self.normalizer = make_normalizer(spec)
        self.network = uniform_network(spec, 2 * spec.action_dim, hidden_sizes, activation)
        with torch.no_grad():
            self.network[-1].bias[spec.action_dim :] += math.log(initial_std)

    def forward(self, observation: Tensor) -> Tensor:
        """The means, and after them the logarithms of the standard deviations: float32 [B, D] ->
        [B, 2A]."""
        return self.network(self.normalizer(observation))

    def snapshot(self) -> PolicySnapshot:
        """The layers for the actors."""
        layers = layers_of(self.normalizer, self.network)
        return PolicySnapshot(0, layers, Layer("squashed_gaussian", {}))


class ActionCritic(nn.Module):
    """Predicts the return that follows an observation and a continuous action."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        hidden_sizes: tuple[int, ...],
        activation: str = "relu",
        layer_norm: bool = False,
    ) -> None:
        """`layer_norm` bounds what the critic predicts for actions that were never taken (Ball et
        al. 2023, "Efficient Online Reinforcement Learning with Offline Data", section 4.2)."""
        super().__init__()
        self.normalizer = make_normalizer(spec)
        layers, features = picture_layers(spec, activation)
        self.features = nn.Sequential(*layers)
        sizes = (features + spec.action_dim, *hidden_sizes, 1)
        self.network = uniform_mlp(sizes, activation, layer_norm)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """float32 [B, D] and [B, A] -> [B]."""
        inputs = torch.cat([self.features(self.normalizer(observation)), action], dim=-1)
        return self.network(inputs).squeeze(-1)


def epsilon_greedy() -> Layer:
    """The head that takes the action of greatest value."""
    zero = np.zeros(1, np.float32)
    return Layer("epsilon_greedy", {"epsilon": zero, "repeat": zero})


def make_frames(spec: EnvironmentSpec, frames: int) -> nn.Module:
    """A `FrameStack` of `frames` observations, as `--frame-stack` says; of one the identity. With
    it, observations of a network are [..., frames, D] and not [..., D]."""
    return nn.Identity() if frames == 1 else FrameStack(spec.observation_dim, frames)


def make_normalizer(spec: EnvironmentSpec, normalizes: bool = False, frames: int = 1) -> nn.Module:
    """What networks begin with: for observations of one byte a `Scaling`, or a `Centering` of large
    pictures if `--normalize-observations` is set; for others an `ObservationNormalizer` if it is
    set, else the identity."""
    if observation_dtype(spec.observation_space) == "uint8":
        size = picture_size(spec)
        if normalizes and size is not None and not is_small(size):
            return Centering(spec.observation_space, frames)
        return Scaling(spec.observation_space)
    return ObservationNormalizer(spec.observation_dim, frames) if normalizes else nn.Identity()


Policy = DiscretePolicy | FactoredPolicy | ContinuousPolicy


def make_networks(
    spec: EnvironmentSpec, config: TrainConfig
) -> tuple[Policy, ValueNetwork] | tuple[SharedNetwork]:
    """Networks that fit the environment's spaces: a policy and a value network, or with
    `--shared-torso` one that is both. Raises UsageError as `make_auxiliary` does."""
    if getattr(config.algorithm, "shared_torso", False):
        return (SharedNetwork(spec, config),)
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
                "flame_rl/nets/kinds.py has the kinds of layers that they know"
            )
    return tuple(layers)


def array_of(tensor: Tensor) -> np.ndarray:
    """A copy of the tensor as a float32 array."""
    return np.array(tensor.detach().numpy(), np.float32, order="C")
