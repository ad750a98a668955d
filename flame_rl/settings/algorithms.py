"""The settings of each algorithm, and their table; presets are in presets.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from flame_rl.settings.checks import (
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
    Number,
    Positive,
    Span,
    SquashedStd,
    Tau,
    UpdatesPerStep,
    refuse,
)
from flame_rl.settings.groups import (
    ActionNoise,
    AlgorithmSettings,
    Cloning,
    Critics,
    EpsilonGreedy,
    GeneralizedAdvantages,
    Hindsight,
    OnPolicy,
    PolicyGradient,
    Prioritized,
    Replay,
    Sequences,
)
from flame_rl.system.errors import UsageError


@dataclass(frozen=True)
class ReinforceSettings(OnPolicy):
    """Settings of REINFORCE (Williams 1992), with a baseline."""

    name = "reinforce"

    # Without PPO's ratio, a policy that moves far in one epoch collapses; this limit stops few
    # good updates.
    max_kl: MaxKL = 0.1

    baseline: Literal["none", "leave-one-out", "value"] = "value"
    """Baseline subtracted from the returns: nothing, the mean return of the other episodes at the
    same time step, or a value network."""

    value_epochs: Annotated[Count, Span(1, 10, log=True)] = 5
    """Epochs of the value network over each batch; the policy makes one, and so do both with
    --shared-torso."""

    @property
    def trains_values(self) -> bool:
        """Whether the baseline is a value network."""
        return self.baseline == "value"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared_torso and not self.trains_values:
            raise UsageError(
                f"--shared-torso: --baseline {self.baseline} has no value network to share layers "
                "with; add --baseline value"
            )


@dataclass(frozen=True)
class A2CSettings(GeneralizedAdvantages):
    """Settings of advantage actor-critic (Mnih et al. 2016), synchronous."""

    name = "a2c"

    value_epochs: Annotated[Count, Span(1, 10, log=True)] = 5
    """Epochs of the value network over each batch; the policy makes one, and so do both with
    --shared-torso."""


@dataclass(frozen=True)
class PPOSettings(GeneralizedAdvantages):
    """Settings of proximal policy optimisation (Schulman et al. 2017)."""

    name = "ppo"

    # In an unknown environment runs are short, and smaller steps cost more than they gain.
    learning_rate_decay: bool = False

    minibatches: Minibatches = 16
    max_kl: MaxKL = 0.1

    epochs: Annotated[Count, Span(1, 20, log=True)] = 10
    """Epochs over each batch."""

    clip_range: Annotated[Positive, Span(0.1, 0.4)] = 0.2
    """Epsilon of the clipped objective: how far from 1 the probability ratio may go."""

    recompute_advantages: bool = True
    """Recompute the advantages before every epoch."""


@dataclass(frozen=True)
class DQNSettings(EpsilonGreedy, Prioritized, Hindsight, Replay):
    """Settings of deep Q-learning (Mnih et al. 2015), for discrete actions."""

    name = "dqn"

    tau: Tau = 0.005
    """Share by which the target network moves towards the trained one each time; 1 copies it."""

    target_period: Count = 1
    """The target network moves after every N gradient steps."""

    epsilon_repeat: Fraction = 0.0
    """Probability that a step keeps the choice of the step before: its random action, or to act
    greedily. Where single actions undo each other, it leads further (Dabney et al. 2021)."""

    n_step: NStep = 1
    """The n of n-step returns: the number of rewards in a target before the bootstrapped value."""

    double: bool = True
    """The online network selects the action that the target network values (van Hasselt et al.
    2016)."""

    dueling: bool = False
    """The network has a part for the state's value and one for the actions' advantages (Wang et al.
    2016)."""

    distribution: Literal["none", "c51", "quantiles"] = "none"
    """Learn the distribution of returns: its probabilities on fixed atoms (C51, Bellemare et al.
    2017) or its quantiles (QR-DQN, Dabney et al. 2018); none: its mean."""

    atoms: Count = 51
    """Atoms or quantiles of a distribution."""

    lowest_return: Number = -100.0
    """The lowest atom of C51; returns below it count as it."""

    highest_return: Number = 100.0
    """The highest atom of C51."""

    rainbow: bool = False
    """Rainbow but for its noisy layers (Hessel et al. 2018): turns on double, dueling and
    prioritized; n_step becomes 3 where it is 1, and distribution c51 where it is none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rainbow:
            changes = {
                "double": True,
                "dueling": True,
                "prioritized": True,
                "n_step": 3 if self.n_step == 1 else self.n_step,
                "distribution": "c51" if self.distribution == "none" else self.distribution,
            }
            for name, value in changes.items():
                object.__setattr__(self, name, value)  # the dataclass is frozen
        if self.distribution == "c51" and self.atoms < 2:
            refuse("atoms", "at least 2 with C51", self.atoms)
        if self.lowest_return >= self.highest_return:
            refuse("lowest_return", f"less than {self.highest_return}", self.lowest_return)


@dataclass(frozen=True)
class SarsaSettings(EpsilonGreedy, Replay):
    """Settings of SARSA (Sutton and Barto 2018, sections 6.4 and 6.6), for discrete actions."""

    name = "sarsa"

    capacity: Count = 10_000
    """Steps of replayed experience; the oldest episodes make way for new ones. Without `expected`,
    targets take the next actions of the policies that played; few steps keep them recent."""

    epsilon_end: EpsilonEnd = 0.02

    expected: bool = True
    """Bootstrap the expectation over the next action of the latest policy; if False, the value of
    the action that was taken next."""


@dataclass(frozen=True)
class SuccessorSettings(EpsilonGreedy, Replay):
    """Settings of successor features (Barreto et al. 2017), for discrete actions and rewards of
    several parts."""

    title = "Successor features"
    name = "successor"
    may_change = ("reward_weights",)


@dataclass(frozen=True)
class R2D2Settings(EpsilonGreedy, Sequences):
    """Settings of deep Q-learning with a memory (Kapturowski et al. 2019), for discrete actions."""

    name = "r2d2"

    updates_per_step: UpdatesPerStep = 0.1
    tau: Tau = 0.02

    burn_in: CountOrZero = 20
    """Steps before these that only bring the memory up to date, from an empty one; a sequence from
    an episode's first step needs none, and is learned from whole."""


@dataclass(frozen=True)
class ImpalaSettings(PolicyGradient, Sequences):
    """Settings of an actor-critic with V-trace (Espeholt et al. 2018), for any actions."""

    name = "impala"

    learning_rate: LearningRate = 2e-4
    entropy_coefficient: EntropyCoefficient = 0.003
    updates_per_step: UpdatesPerStep = 0.05

    capacity: Count = 20_000
    """Steps of replayed experience; the oldest episodes make way for new ones. V-trace gives little
    weight to what the policy would no longer do, so that much more is of little use."""

    trace_lambda: Lambda = 0.95
    """Lambda of V-trace, from 0 (one step and the value after it) to 1 (the whole sequence)."""


@dataclass(frozen=True)
class DDPGSettings(ActionNoise):
    """Settings of DDPG (Lillicrap et al. 2016), for continuous actions."""

    name = "ddpg"

    noise: Noise = 0.1
    """Standard deviation of the noise that is added to actions, whose bounds are -1 and 1; of
    Ornstein-Uhlenbeck noise, of what each step adds to it."""

    noise_process: Literal["gaussian", "ornstein-uhlenbeck"] = "gaussian"
    """The noise of each step is independent, or each step keeps most of the one before."""

    noise_theta: Fraction = 0.15
    """How far each step draws Ornstein-Uhlenbeck noise back to 0."""


@dataclass(frozen=True)
class TD3Settings(ActionNoise):
    """Settings of twin delayed DDPG (Fujimoto et al. 2018), for continuous actions."""

    name = "td3"

    policy_delay: Count = 2
    """Gradient steps of the critics for each one of the policy and the target networks."""

    target_noise: Noise = 0.2
    """Standard deviation of the noise that smooths the target policy."""

    target_noise_clip: NonNegative = 0.5
    """Greatest noise of the target policy."""


@dataclass(frozen=True)
class SACSettings(Critics):
    """Settings of soft actor-critic (Haarnoja et al. 2018), for continuous actions."""

    name = "sac"

    n_step: NStep = 1
    """The n of n-step returns: the number of rewards in a target before the bootstrapped value. All
    but the first, and the value, come with an entropy."""

    average_critics: bool = False
    """Let the mean of the two critics count, not the smaller value (Moskovitz et al. 2021): less
    cautious, for tasks without a fall that ends an episode."""

    target_entropy: Number = -1.0
    """Entropy in nats, for each action dimension, at which the temperature keeps the policy."""

    initial_temperature: Annotated[Positive, Span(0.05, 1.0, log=True)] = 1.0
    """The first weight of the entropy."""

    initial_std: SquashedStd = 1.0
    """About the standard deviation of a new policy's actions, before tanh. With a small one, a
    robot that stands by itself is not thrown over at the beginning."""


@dataclass(frozen=True)
class BCSettings(Cloning, AlgorithmSettings):
    """Settings of behaviour cloning (Pomerleau 1991), from --demonstrations alone."""

    name = "bc"

    learning_rate_decay: bool = True

    clone_epochs: Count = 10

    max_grad_norm: Positive = 1.0
    """Greatest norm of a gradient; longer ones are scaled down to it."""

    normalize_observations: bool = True
    """Normalise observations to mean 0 and standard deviation 1, over the demonstrations."""

    policy: Literal["gaussian", "squashed", "deterministic"] = "gaussian"
    """Policy of real-valued actions: a Gaussian; one that tanh squashes, as sac has it; or one
    action for each observation, as ddpg and td3 have it, which learns by squared error."""

    initial_log_std: LogStd = -0.5
    """Logarithm of the initial standard deviation of a Gaussian's actions."""

    initial_std: SquashedStd = 1.0
    """About the initial standard deviation of a squashed Gaussian's actions, before tanh."""


# `flame_rl.learner.make` has a table of the same names, of what each algorithm does.
ALGORITHMS: dict[str, type[AlgorithmSettings]] = {
    kind.name: kind
    for kind in (
        ReinforceSettings,
        A2CSettings,
        PPOSettings,
        DQNSettings,
        SarsaSettings,
        SuccessorSettings,
        R2D2Settings,
        ImpalaSettings,
        DDPGSettings,
        TD3Settings,
        SACSettings,
        BCSettings,
    )
}


def settings_class(algorithm: str) -> type[AlgorithmSettings]:
    """The class of an algorithm's settings. Raises UsageError for an unknown name."""
    if algorithm not in ALGORITHMS:
        refuse("algorithm", " or ".join(ALGORITHMS), algorithm)
    return ALGORITHMS[algorithm]
