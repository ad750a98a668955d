"""Networks as torch modules: preprocessing of observations, layers, and what a loss sees.

B is the number of samples; with a memory it is two dimensions, time steps and sequences. D is the
width of an observation, or with stacked frames [frames, D]; A that of an action, or of choices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from flame_rl.modules.layers import Dense, array_of, layers_of
from flame_rl.wire.masks import ACTION_MASKS, FORBIDDEN_LOGIT
from flame_rl.wire.messages import Layer, PolicySnapshot

# The modules that normalise each observation, and then stack them; both may be the identity.
Preprocessing = tuple[nn.Module, nn.Module]
Layers = Sequence[nn.Module]


class ObservationNetwork(nn.Module):
    """The preprocessing of observations, `normalizer` and `frames`, and the layers, `network`."""

    def __init__(self, preprocessing: Preprocessing, layers: Layers) -> None:
        super().__init__()
        self.normalizer, self.frames = preprocessing
        self.network = nn.Sequential(*layers)

    def forward(self, *inputs: Tensor) -> Tensor:
        """The output of the layers, float32 [B, width]; for `inputs` see `preprocess`."""
        return self.network(self.preprocess(*inputs))

    def preprocess(self, observations: Tensor, missing: Tensor | None = None) -> Tensor:
        """What enters the layers, float32 [B, inputs], of observations, float32 or uint8 [B, D];
        `missing`, bool [B, frames], says which stacked frames precede the episode, and become 0."""
        each = self.normalizer(observations)
        return self.frames(each if missing is None else each.masked_fill(missing[..., None], 0))

    def outputs(self, samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """What a loss sees; `samples` has "inputs", the observations, and may have "missing"."""
        return self.of_output(self(*inputs_of(samples)), samples)

    def of_output(self, output: Tensor, samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """What a loss sees, given the output of the layers: that output itself."""
        return (output,)


class PolicyNetwork(ObservationNetwork):
    """Layers whose output is all that the actors' head needs. A loss sees the output itself."""

    def __init__(self, preprocessing: Preprocessing, layers: Layers, head: Layer) -> None:
        super().__init__(preprocessing, layers)
        self._head = head

    def head(self) -> Layer:
        return self._head

    def snapshot(self) -> PolicySnapshot:
        """The layers and the head for actors."""
        return PolicySnapshot(0, self.export_layers(), self.head())

    def export_layers(self) -> tuple[Layer, ...]:
        """The layers for actors."""
        return layers_of(self.normalizer, self.frames, self.network)

    def for_actors(self, outputs: np.ndarray) -> np.ndarray:
        """What the exported layers give, of outputs of the network, float32 [B, width]."""
        return outputs


class CategoricalPolicy(PolicyNetwork):
    """A choice, or several independent ones: the network gives the logits of one factor after
    another. A loss sees log-probabilities of "actions" and entropies, both summed over the factors,
    float32 [B] each; where samples have masks, over what these allow. `choices`: the number of
    choices of each factor. `factored`: whether actions have a dimension for the factors."""

    def __init__(
        self, preprocessing: Preprocessing, layers: Layers, choices: Sequence[int], factored: bool
    ) -> None:
        head = Layer("categorical", {})
        if factored:
            head = Layer("factored", {"choices": np.array(choices, np.int32)})
        super().__init__(preprocessing, layers, head)
        self.choices, self.factored = tuple(choices), factored

    def of_output(self, output: Tensor, samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
        actions = samples["actions"] if self.factored else samples["actions"][..., None]
        if ACTION_MASKS in samples:
            allowed = _bits(samples[ACTION_MASKS])[..., : output.shape[-1]]
            output = output.masked_fill(~allowed, FORBIDDEN_LOGIT)
        logits = output.split(self.choices, dim=-1)
        factors = [Categorical(logits=each, validate_args=False) for each in logits]
        chosen = zip(factors, actions.unbind(-1), strict=True)
        log_probs = sum(factor.log_prob(action) for factor, action in chosen)
        return log_probs, sum(factor.entropy() for factor in factors)


class GaussianPolicy(PolicyNetwork):
    """A Gaussian: the network's output is its mean; its standard deviation is learned and does not
    depend on observations. Actors clip to -1 and 1, the environment's bounds. A loss sees
    log-probabilities of the unclipped "actions" and entropies, float32 [B] each."""

    def __init__(
        self, preprocessing: Preprocessing, layers: Layers, width: int, log_std: float
    ) -> None:
        """`width` is A, and `log_std` the logarithm of the first standard deviation."""
        super().__init__(preprocessing, layers, Layer("gaussian", {}))
        self.log_std = nn.Parameter(torch.full((width,), log_std))

    def of_output(self, output: Tensor, samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
        actions = samples["actions"]
        # torch's Normal computes the same in three times as many operations.
        squares = ((actions - output) * torch.exp(-self.log_std)).square().sum(-1)
        normalization = self.log_std.sum() + 0.5 * math.log(2 * math.pi) * actions.shape[-1]
        entropy = normalization + 0.5 * actions.shape[-1]
        return -0.5 * squares - normalization, entropy.expand(squares.shape)

    def head(self) -> Layer:
        return Layer("gaussian", {"log_std": array_of(self.log_std)})


@dataclass(frozen=True)
class Returns:
    """What an action-value network predicts of each action's return: Z numbers."""

    dueling: bool = False  # whether the output is as the function `dueling` takes it
    quantiles: int = 1  # Z, the quantiles of the return; 1: its mean
    support: np.ndarray | None = None  # float [Z], the atoms of C51, whose logits are the output
    # float32 [Z]: the numbers are returns of parts of the reward, whose sum with these weights is
    # the value; None: of the whole reward.
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.support is not None and self.quantiles != 1:
            raise ValueError(f"quantiles: {self.quantiles} beside a support; give one of them")

    @property
    def numbers(self) -> int:
        """Z."""
        given = self.support if self.weights is None else self.weights
        return self.quantiles if given is None else len(given)

    def width(self, actions: int) -> int:
        """The width of the network's output: A * Z, with `dueling` (1 + A) * Z."""
        return (actions + self.dueling) * self.numbers


def dueling(outputs: np.ndarray, atoms: int = 1) -> np.ndarray:
    """Q(s, a) = V(s) + A(s, a) - mean_a A(s, a), for each atom apart (Wang et al. 2016, "Dueling
    Network Architectures for Deep Reinforcement Learning", eq. 9). With Z `atoms`: [B, (1 + A) *
    Z], value before advantages, -> [B, A * Z]."""
    rows = len(outputs)
    by_action = outputs.reshape(rows, -1, atoms)
    value, advantages = by_action[:, :1], by_action[:, 1:]
    return (value + (advantages - advantages.mean(axis=1, keepdims=True))).reshape(rows, -1)


class ActionValueNetwork(PolicyNetwork):
    """The value of each action, [B, A * Z], action by action; in a duelling network [B, (1 + A) *
    Z]. Actors take the action of greatest value. `returns`: what the Z numbers are."""

    def __init__(self, preprocessing: Preprocessing, layers: Layers, returns: Returns) -> None:
        zero = np.zeros(1, np.float32)
        head = Layer("epsilon_greedy", {"epsilon": zero, "repeat": zero})
        if returns.support is not None:
            support = np.array(returns.support, np.float32)
            head = Layer("epsilon_greedy_distribution", head.arrays | {"support": support})
        super().__init__(preprocessing, layers, head)
        self.returns = returns

    def export_layers(self) -> tuple[Layer, ...]:
        """The layers for actors. Their output is Q, [B, A], or with C51 logits, [B, A * Z]:
        duelling, the mean of quantiles and a weighted sum are linear, in the last layer."""
        *layers, last = super().export_layers()
        arrays = {
            "weight": self.for_actors(last.arrays["weight"]),
            "bias": self.for_actors(last.arrays["bias"][None])[0],
        }
        return (*layers, Layer(last.kind, arrays))

    def for_actors(self, outputs: np.ndarray) -> np.ndarray:
        """float32 [rows, width] -> [rows, A] or, with C51, [rows, A * Z]."""
        returns = self.returns
        if returns.weights is not None:
            return outputs.reshape(len(outputs), -1, returns.numbers) @ returns.weights
        outputs = outputs.astype(np.float64)
        if returns.dueling:
            outputs = dueling(outputs, returns.numbers)
        if returns.support is None:
            outputs = outputs.reshape(len(outputs), -1, returns.numbers).mean(axis=2)
        return outputs.astype(np.float32)


class ValueNetwork(ObservationNetwork):
    """The return that follows an observation. A loss sees it in units of reward, float32 [B].
    `scale`: the size of returns, set by the learner: the layers work near 1, in any unit of reward;
    see `rescale`. It is 0 before the first update, and so is every value."""

    def __init__(self, preprocessing: Preprocessing, layers: Layers) -> None:
        super().__init__(preprocessing, layers)
        self.register_buffer("scale", torch.zeros(()))

    def forward(self, *inputs: Tensor) -> Tensor:
        """The values, float32 [B]; for `inputs` see `preprocess`."""
        return super().forward(*inputs).squeeze(-1) * self.scale

    @property
    def last(self) -> nn.Module:
        return self.network[-1]


class SharedNetwork(nn.Module):
    """A policy and values that share all layers but the last, whose output is the features.
    `policy`: as without sharing; actors get it alone. `value`: the output layer of the values.
    `auxiliary`: a module for each auxiliary loss, by its name in metrics.csv, which predicts from
    the features; the learner makes them. `scale`: as in `ValueNetwork`."""

    def __init__(self, policy: PolicyNetwork, value: Dense) -> None:
        super().__init__()
        self.policy, self.value = policy, value
        self.auxiliary = nn.ModuleDict()
        self.register_buffer("scale", torch.zeros(()))

    def features(self, inputs: Tensor) -> Tensor:
        """The features, float32 [B, F], given what enters the layers."""
        for layer in list(self.policy.network)[:-1]:
            inputs = layer(inputs)
        return inputs

    def outputs(self, samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """What a loss sees: the policy's outputs, then the values."""
        inputs = self.policy.preprocess(*inputs_of(samples))
        return self.of_features(self.features(inputs), samples)

    def of_features(self, features: Tensor, samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """What a loss sees, given the features."""
        of_policy = self.policy.of_output(self.policy.network[-1](features), samples)
        return (*of_policy, self._values(features))

    def values(self, samples: dict[str, Tensor]) -> tuple[Tensor]:
        """What a loss sees of the values alone."""
        return (self._values(self.features(self.policy.preprocess(*inputs_of(samples)))),)

    def snapshot(self) -> PolicySnapshot:
        return self.policy.snapshot()

    @property
    def last(self) -> nn.Module:
        """The last layer of the values."""
        return self.value

    def _values(self, features: Tensor) -> Tensor:
        return self.value(features).squeeze(-1) * self.scale


def inputs_of(samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """What `ObservationNetwork.preprocess` takes."""
    return tuple(samples[name] for name in ("inputs", "missing") if name in samples)


def _bits(masks: Tensor) -> Tensor:
    """Masks as actors record them, uint8 [..., M], bit by bit, bool [..., 8 * M]."""
    places = torch.arange(7, -1, -1, dtype=torch.uint8, device=masks.device)
    return (masks[..., None].bitwise_right_shift(places) % 2).flatten(-2).bool()


@torch.no_grad()
def rescale(values: ValueNetwork | SharedNetwork, scale: float) -> None:
    """PopArt: set the scale of values that are trained, and preserve the values by the last layer,
    if it is linear (van Hasselt et al. 2016, "Learning Values across Many Orders of Magnitude",
    proposition 1). The first scale leaves the layers as they are."""
    if values.scale > 0 and isinstance(values.last, nn.Linear):
        for parameter in values.last.parameters():
            parameter *= values.scale.item() / scale
    # Beyond float32 it becomes infinite, and the update is refused; `fill_` would raise.
    values.scale.copy_(torch.tensor(scale))


class CriticNetwork(nn.Module):
    """The return that follows an observation and a continuous action, [B, 1], or the logits of its
    Z atoms, [B, Z]. For a loss, "inputs" are both side by side, [B, D + A], with D
    `observation_dim`. `features`: the layers of the normalised observation alone. `network`: those
    of the features and the action."""

    def __init__(
        self, observation_dim: int, normalizer: nn.Module, features: Layers, layers: Layers
    ) -> None:
        super().__init__()
        self.observation_dim, self.normalizer = observation_dim, normalizer
        self.features = nn.Sequential(*features)
        self.network = nn.Sequential(*layers)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """float32 [B, D] and [B, A] -> [B], or [B, Z]."""
        features = self.features(self.normalizer(observations))
        return self.network(torch.cat([features, actions], dim=-1)).squeeze(-1)

    def outputs(self, samples: dict[str, Tensor]) -> tuple[Tensor]:
        """What a loss sees: the values, or the logits."""
        inputs, end = samples["inputs"], self.observation_dim
        return (self(inputs[:, :end], inputs[:, end:]).reshape(len(inputs), -1),)
