"""What the settings of all algorithms have, and groups of settings that several share: an algorithm
inherits those that it needs.

Groups that an algorithm may combine have no base in common, because a dataclass takes the defaults
of a common base from the group that is named first, even where another one changes them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from flame_rl.settings.checks import (
    RARE,
    BatchSize,
    Count,
    CountOrZero,
    EntropyCoefficient,
    EpsilonEnd,
    Fraction,
    Lambda,
    LearningRate,
    LogStd,
    MaxKL,
    Minibatches,
    Noise,
    NonNegative,
    NStep,
    Positive,
    Span,
    Tau,
    UpdatesPerStep,
    check_fields,
    refuse,
)
from flame_rl.system.errors import UsageError

# The losses that every network with shared layers has.
OWN = ("policy", "value")


@dataclass(frozen=True)
class AlgorithmSettings:
    """What every algorithm's settings have. Each field is a flag; the groups below add those that
    several algorithms share, and an algorithm its own, or another default.

    Attributes:
        name: the algorithm's name on the command line.
        may_change: fields of `Experiment` that a trained policy may be given anew.
        overlap: whether the next iteration's episodes are collected during an update.
        shared_torso: whether policy and values share layers.
    """

    name: ClassVar[str]
    may_change: ClassVar[tuple[str, ...]] = ()
    overlap: ClassVar[bool] = False
    shared_torso: ClassVar[bool] = False

    learning_rate: LearningRate = 1e-3
    """Step size of Adam."""

    learning_rate_decay: bool = False
    """Let step sizes fall linearly to 0 at the end of the run: the last of N iterations has 1/N."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def title(self) -> str:
        """The algorithm's name as people write it: most are abbreviations."""
        return self.name.upper()


@dataclass(frozen=True)
class Cloning:
    """Behaviour cloning: supervised learning of demonstrations."""

    clone_epochs: Count = 50
    """Epochs over the demonstrations: with bc in every update; with the others in the first update,
    which clones the demonstrations, before the policy learns from its own episodes."""

    clone_batch_size: Count = 128
    """About so many demonstrated steps make a minibatch; at least 64 do."""


@dataclass(frozen=True)
class PolicyGradient:
    """A stochastic policy that follows the policy gradient, and a network of state values."""

    learning_rate: LearningRate = 7e-4
    """Step size of the policy's Adam."""

    value_learning_rate: LearningRate = 1e-3
    """Step size of the value network's Adam."""

    entropy_coefficient: EntropyCoefficient = 0.0
    """Weight of the policy's entropy in the objective; above 0 the policy explores for longer."""

    max_grad_norm: Positive = 0.5
    """Greatest norm of a gradient; longer ones are scaled down to it."""

    normalize_observations: bool = True
    """Normalise observations to mean 0 and standard deviation 1, over all observations so far."""

    initial_log_std: Annotated[LogStd, Span(-2.0, 0.0)] = -0.5
    """Logarithm of the initial standard deviation of continuous actions."""


@dataclass(frozen=True)
class OnPolicy(Cloning, PolicyGradient, AlgorithmSettings):
    """Updates from the episodes of one iteration, which the policy itself has played."""

    value_learning_rate: LearningRate = 1e-3
    """Step size of the value network's Adam; not used with --shared-torso."""

    learning_rate_decay: bool = True

    minibatches: Minibatches = 32
    """Minibatches in each epoch; fewer where they would have fewer than 64 steps. 1: the whole
    batch at once."""

    max_kl: MaxKL = 0.05
    """Greatest KL divergence, in nats, between the policy before an update and after it. The epoch
    ends there, and a step beyond it is undone."""

    shared_torso: bool = False
    """Let policy and values share all layers but the last one of each, the output. The network then
    descends the sum of their losses at --learning-rate."""

    value_weight: Positive = 0.5
    """With --shared-torso, weight of the loss of the values; the policy's loss has weight 1."""

    auxiliary: tuple[str, ...] = ()
    """With --shared-torso, further losses of the shared layers, module:class each, such as
    prediction:NextObservation."""

    auxiliary_weights: tuple[NonNegative, ...] = ()
    """A weight for each of --auxiliary."""

    @property
    def trains_values(self) -> bool:
        """Whether there is a value network."""
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        for function in self.auxiliary:
            if not all(function.rpartition(":")[::2]):
                example = "a module and a class, as in prediction:NextObservation"
                refuse("auxiliary", example, function)
        names = [*OWN, *map(loss_name, self.auxiliary)]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"--auxiliary: two losses have the name {name}; rename a class")
        if self.auxiliary and not self.shared_torso:
            raise UsageError(
                "--auxiliary: these are losses of the shared layers; add --shared-torso True"
            )
        if len(self.auxiliary_weights) != len(self.auxiliary):
            raise UsageError(
                f"--auxiliary-weights: {len(self.auxiliary_weights)} weights for "
                f"{len(self.auxiliary)} losses; give one for each of --auxiliary"
            )


def loss_name(function: str) -> str:
    """The name of the loss module:function in metrics.csv: prediction:NextObservation is
    next_observation."""
    name = function.rpartition(":")[2]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@dataclass(frozen=True)
class GeneralizedAdvantages(OnPolicy):
    """Advantages by generalised advantage estimation (Schulman et al. 2016), which V-trace corrects
    where another policy has played."""

    gae_lambda: Lambda = 0.95
    """Lambda of generalised advantages, from 0 (one step and the value after it) to 1 (the whole
    episode)."""

    overlap: bool = False
    """Collect the next iteration's episodes during the update, with the policy from before it. What
    that policy did is weighted by V-trace (Espeholt et al. 2018)."""


@dataclass(frozen=True)
class Replay(AlgorithmSettings):
    """Gradient steps on samples of replayed experience."""

    capacity: Count = 100_000
    """Steps of replayed experience; the oldest episodes make way for new ones."""

    with_replay: Annotated[bool, RARE] = False
    """With --from, take its replayed experience along; its steps count as those of this run in the
    warm-up and in epsilon."""

    warm_up_steps: CountOrZero = 1_000
    """Env steps before the first gradient step."""

    batch_size: BatchSize = 128
    """Steps drawn for each gradient step."""

    updates_per_step: UpdatesPerStep = 0.5
    """Gradient steps for each env step after the warm-up, whose last step has as many, but at least
    one."""

    demonstration_share: Fraction = 0.5
    """With --demonstrations, their share of each minibatch (Ball et al. 2023); at least one step of
    it is the run's own."""


@dataclass(frozen=True)
class Sequences(Replay):
    """Replay of sequences of steps."""

    batch_size: BatchSize = 32
    """Sequences drawn for each gradient step."""

    sequence_length: Count = 20
    """Steps of a sequence that are learned from."""


@dataclass(frozen=True)
class Prioritized:
    """Priorities of replayed steps (Schaul et al. 2016)."""

    prioritized: bool = False
    """Draw steps by priority, their last TD error (Schaul et al. 2016)."""

    priority_alpha: Fraction = 0.6
    """Exponent of the priorities, from 0, which is uniform, to 1."""

    priority_beta: Fraction = 0.4
    """Exponent of the importance weights at the beginning; it rises linearly to 1 at the end of the
    run, which the last iteration has not reached."""


@dataclass(frozen=True)
class Hindsight:
    """Replayed steps with goals that were reached later (Andrychowicz et al. 2017, "Hindsight
    Experience Replay"), in environments with goals."""

    hindsight: Literal["none", "future", "final"] = "none"
    """Learn as if a goal that the episode reached later had been the desired one: any later one
    (future) or its last one (final). For environments with goals (GoalEnv)."""

    hindsight_share: Fraction = 0.8
    """With --hindsight, the share of replayed steps that get such a goal."""


@dataclass(frozen=True)
class EpsilonGreedy:
    """Values of discrete actions, with a target network: the best action is taken, or with
    probability epsilon a random one."""

    epsilon_start: Fraction = 1.0
    """Probability of a random action at the beginning of the run."""

    epsilon_end: EpsilonEnd = 0.05
    """Probability of a random action after `epsilon_steps`."""

    epsilon_steps: Annotated[CountOrZero, Span(1_000, 50_000, log=True)] = 10_000
    """Env steps in which epsilon falls linearly from its start to its end."""

    tau: Tau = 0.005
    """Share by which the target network moves towards the trained one in each gradient step."""

    max_grad_norm: Positive = 10.0
    """Greatest norm of a gradient; longer ones are scaled down to it."""


@dataclass(frozen=True)
class Critics(Hindsight, Replay):
    """Critics of continuous actions, with target networks, and the policy that they teach."""

    learning_rate: LearningRate = 3e-4
    """Step size of the policy's Adam."""

    value_learning_rate: LearningRate = 3e-4
    """Step size of the critics' Adam."""

    capacity: Count = 1_000_000
    warm_up_steps: CountOrZero = 5_000
    batch_size: BatchSize = 256
    updates_per_step: UpdatesPerStep = 1.0

    tau: Tau = 0.005
    """Share by which the target networks move towards the trained ones in each gradient step."""

    n_step: NStep = 1
    """The n of n-step returns: the number of rewards in a target before the bootstrapped value."""

    reward_scale: Positive = 1.0
    """Factor of the rewards that the critics learn from (Henderson et al. 2018): large values are
    slow to learn precisely. Printed returns are not scaled."""

    normalize_observations: bool = False
    """Normalise observations to mean 0 and standard deviation 1, over all observations so far."""

    layer_norm: bool = False
    """Normalise the layers of the critics (Ball et al. 2023): a gradient step takes about a third
    longer."""


@dataclass(frozen=True)
class ActionNoise(Critics):
    """A deterministic policy, which explores by noise."""

    warm_up_steps: CountOrZero = 5_000
    """Env steps before the first gradient step; until then the noise has standard deviation 1."""

    noise: Noise = 0.1
    """Standard deviation of the noise that is added to actions, whose bounds are -1 and 1."""
