"""The file to edit: a function for each network makes it of layers.

Layers are torch modules of flame_rl/modules/; those that actors run are `LayerModule`s, which
export themselves to NumPy. `Dense` layers, each perhaps followed by a `LayerNorm` and then perhaps
by an `Activation`, also after a `Select`, are trained by compiled code; torch trains every other
network (flame_rl/learner/training/choose.py). A policy of your own needs two methods: `outputs`,
what losses see, and `snapshot`, what actors get; see flame_rl/modules/networks.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from flame_rl.modules.layers import (
    MEMORIES,
    Activation,
    Convolution,
    Dense,
    Select,
    orthogonal,
    side_by_side,
    with_layer_norms,
)
from flame_rl.modules.networks import (
    ActionValueNetwork,
    CategoricalPolicy,
    CriticNetwork,
    GaussianPolicy,
    PolicyNetwork,
    Preprocessing,
    Returns,
    SharedNetwork,
    ValueNetwork,
)
from flame_rl.modules.observations import (
    Centering,
    FrameStack,
    ObservationNormalizer,
    Scaling,
    is_large,
)
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.inputs import keys_alone, observation_inputs
from flame_rl.wire.messages import EnvironmentSpec, Layer

# Filters of the convolutions, their width and stride: for small pictures those of Young and Tian
# 2019, "MinAtar", and for all others those of Mnih et al. 2015, "Human-Level Control through Deep
# Reinforcement Learning", which need 36 rows and columns.
SMALL_PICTURES = ((16, 3, 1),)
LARGE_PICTURES = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
# The gain of a policy's last layer. With a small value the first policy hardly depends on
# observations (Andrychowicz et al. 2021, "What Matters in On-Policy Reinforcement Learning?",
# section 3.2).
POLICY_GAIN = 0.01


def preprocessing(
    spec: EnvironmentSpec, config: TrainConfig, normalize: bool = False
) -> Preprocessing:
    """The modules that bring the numbers of observations near 1 and stack these (--frame-stack).

    Args:
        spec, config: the environment's description and the run's settings.
        normalize: whether to normalise by the statistics of all observations so far; bytes other
            than large pictures are only scaled.
    """
    count = config.experiment.frame_stack
    frames = nn.Identity() if count == 1 else FrameStack(spec.observation_dim, count)
    inputs = observation_inputs(spec.observation_space)
    normalizers: list[list[nn.Module]] = []
    for each in inputs:
        if each.space is None:
            made = ObservationNormalizer(each.width) if normalize else nn.Identity()
        else:
            centers = normalize and is_large(each.picture)
            made = Centering(each.space) if centers else Scaling(each.space)
        normalizers.append([made])
    (normalizer,) = side_by_side([each.width for each in inputs], normalizers)
    return normalizer, frames


def features(
    spec: EnvironmentSpec, config: TrainConfig, keys: Sequence[str] = ()
) -> tuple[list[nn.Module], int]:
    """The layers that a network begins with, and the width of their output: convolutions for each
    picture in an observation; all else goes on as it is, beside them. With keys of a Dict, of these
    alone."""
    count = config.experiment.frame_stack
    space, first = spec.observation_space, []
    if keys:
        space, places = keys_alone(space, keys)
        first = [Select(spec.observation_dim, places, count)]
    widths, branches, outputs = [], [], 0
    for each in observation_inputs(space):
        layers, width = [], each.width * count
        widths.append(width)
        if each.picture is not None:
            layers, width = picture_layers(each.picture, config)
        branches.append(layers)
        outputs += width
    return [*first, *side_by_side(widths, branches)], outputs


def picture_layers(size: tuple[int, int, int], config: TrainConfig) -> tuple[list[nn.Module], int]:
    """The layers for pictures of this many rows, columns and channels, and the width of their
    output."""
    filters_of_layers = LARGE_PICTURES if is_large(size) else SMALL_PICTURES
    size = (*size[:2], size[2] * config.experiment.frame_stack)
    layers: list[nn.Module] = []
    for filters, width, stride in filters_of_layers:
        layers += [
            Convolution(size, filters, width, stride),
            Activation(config.experiment.activation),
        ]
        size = layers[-2].output_size
    return layers, math.prod(size)


def dense_layers(
    inputs: int, outputs: int, config: TrainConfig, output_gain: float | None = None
) -> list[nn.Module]:
    """The layers that a network ends with, as --hidden-sizes, --activation and --memory say.

    The memory is the last layer before the output (as in Hausknecht and Stone 2015, "Deep Recurrent
    Q-Learning for Partially Observable MDPs"): the layers before it say what there is to remember
    of an observation, and one linear layer reads the memory.

    Args:
        inputs, outputs: the widths of the input and of the output.
        config: the run's settings.
        output_gain: makes first weights orthogonal, with this gain in the last layer and sqrt(2) in
            the others, and biases 0. None: both are torch's own, uniform within ±1 / sqrt(inputs),
            as in the usual implementations of DQN, TD3 and SAC.
    """
    experiment = config.experiment
    layers: list[nn.Module] = []
    for width in experiment.hidden_sizes:
        layers.append(Dense(inputs, width))
        if output_gain is not None:
            orthogonal(layers[-1])
        layers.append(Activation(experiment.activation))
        inputs = width
    remembers = experiment.memory != "none"
    if remembers:
        layers.append(MEMORIES[experiment.memory](inputs, experiment.memory_size))
        inputs = experiment.memory_size
    layers.append(Dense(inputs, outputs))
    if output_gain is not None:
        if not remembers:  # drawn twice only to keep the bytes that a seed gives in this version
            orthogonal(layers[-1])
        orthogonal(layers[-1], output_gain)
    return layers


def all_layers(
    spec: EnvironmentSpec,
    config: TrainConfig,
    outputs: int,
    output_gain: float | None = None,
    keys: Sequence[str] = (),
) -> list[nn.Module]:
    """The layers of a network from the observation, or from `keys` of it, to the output;
    `output_gain` is as in `dense_layers`."""
    layers, width = features(spec, config, keys)
    if output_gain is not None:
        for module in nn.ModuleList(layers).modules():
            if isinstance(module, Convolution):
                orthogonal(module)
    return [*layers, *dense_layers(width, outputs, config, output_gain)]


def policy(spec: EnvironmentSpec, config: TrainConfig) -> CategoricalPolicy | GaussianPolicy:
    """The policy of reinforce, a2c, ppo, impala and bc: one choice, several, or real numbers."""
    first = preprocessing(spec, config, config.algorithm.normalize_observations)
    keys = config.experiment.policy_observations
    layers = all_layers(spec, config, spec.action_dim, POLICY_GAIN, keys)
    if spec.continuous:
        log_std = config.algorithm.initial_log_std
        return GaussianPolicy(first, layers, spec.action_dim, log_std)
    factored = not isinstance(spec.action_space, spaces.Discrete)
    return CategoricalPolicy(first, layers, spec.choices, factored)


def value(spec: EnvironmentSpec, config: TrainConfig) -> ValueNetwork:
    """The value network beside that policy. It shares no layers with it."""
    first = preprocessing(spec, config, config.algorithm.normalize_observations)
    return ValueNetwork(first, all_layers(spec, config, 1, output_gain=1.0))


def shared(spec: EnvironmentSpec, config: TrainConfig) -> SharedNetwork:
    """With --shared-torso, one network in place of both: all layers but the last are shared, and
    policy and values have a last layer each. Auxiliary losses see what enters these."""
    both = policy(spec, config)
    values = Dense(both.network[-1].in_features, 1)
    orthogonal(values, 1.0)
    return SharedNetwork(both, values)


def action_values(
    spec: EnvironmentSpec, config: TrainConfig, returns: Returns | None = None
) -> ActionValueNetwork:
    """The action values of pqn, dqn, sarsa, successor and r2d2; `returns` says what the network
    predicts for each action, by default the mean of the return."""
    returns = returns or Returns()
    gain = None if config.experiment.memory == "none" else 0.1
    layers = all_layers(spec, config, returns.width(spec.action_dim), gain)
    layers = with_layer_norms(layers) if config.algorithm.layer_norm else layers
    return ActionValueNetwork(preprocessing(spec, config), layers, returns)


def deterministic_policy(spec: EnvironmentSpec, config: TrainConfig) -> PolicyNetwork:
    """The policy of ddpg and td3: one action for each observation, within the bounds -1 and 1.
    Noise is added where it acts."""
    keys = config.experiment.policy_observations
    layers = [*all_layers(spec, config, spec.action_dim, keys=keys), Activation("tanh")]
    noise = {"std": np.zeros(spec.action_dim, np.float32), "theta": np.ones(1, np.float32)}
    return PolicyNetwork(preprocessing(spec, config), layers, Layer("noisy", noise))


def squashed_policy(spec: EnvironmentSpec, config: TrainConfig) -> PolicyNetwork:
    """The policy of sac: the output is a Gaussian's means, then the logarithms of its standard
    deviations, at first about --initial-std; tanh brings actions within the bounds -1 and 1."""
    keys = config.experiment.policy_observations
    layers = all_layers(spec, config, 2 * spec.action_dim, keys=keys)
    with torch.no_grad():
        layers[-1].bias[spec.action_dim :] += math.log(config.algorithm.initial_std)
    return PolicyNetwork(preprocessing(spec, config), layers, Layer("squashed_gaussian", {}))


def critic(spec: EnvironmentSpec, config: TrainConfig) -> CriticNetwork:
    """A critic of ddpg, td3 and sac: an action's value, or the logits of its --atoms. --layer-norm
    bounds what it predicts for actions that were never taken (Ball et al. 2023, "Efficient Online
    Reinforcement Learning with Offline Data", section 4.2)."""
    normalizer, _ = preprocessing(spec, config)
    first, width = features(spec, config)
    layers = dense_layers(width + spec.action_dim, config.algorithm.atoms, config)
    layers = with_layer_norms(layers) if config.algorithm.layer_norm else layers
    return CriticNetwork(spec.observation_dim, normalizer, first, layers)
