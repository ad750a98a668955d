"""The settings of each algorithm, the groups that several share, and the table of all.

Groups that an algorithm may combine have no base in common: a dataclass takes its defaults from the
group that is named first, even where another one changes them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from flame_rl.settings import checks
from flame_rl.settings.checks import Count, CountOrZero, Fraction, NonNegative, Number, Positive
from flame_rl.system.errors import UsageError

SHARED_LOSSES = ("policy", "value")  # the losses that every network with shared layers has

LogStd = Annotated[float, checks.within(-20, 5)]
SquashedStd = Annotated[float, checks.within(1e-6, 7)]  # a squashed policy clips the logarithm at 2
UpdatesPerStep = Annotated[float, checks.within(0.001, 1000)]

# The settings of each algorithm, by its name.
ALGORITHMS: dict[str, type[AlgorithmSettings]] = {}


@dataclass(frozen=True)
class AlgorithmSettings:
    """What every algorithm's settings have. Each field is a flag; a subclass with a `name` is an
    algorithm, and `flame_rl.learner.make` says what it does.

    Attributes:
        name: the algorithm's name on the command line.
        may_change: fields of `Experiment` that a trained policy may be given anew.
        overlap: whether the next iteration's episodes are collected during an update.
        shared_torso: whether policy and values share layers.
        layer_norm: whether the layers of action values or critics are normalised.
        has_log_probs: whether losses see the policy's log-probabilities and entropies.
        title: the name as people write it, by default in capitals: most are abbreviations.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    may_change: ClassVar[tuple[str, ...]] = ()
    overlap: ClassVar[bool] = False
    shared_torso: ClassVar[bool] = False
    layer_norm: ClassVar[bool] = False
    has_log_probs: ClassVar[bool] = False

    learning_rate: Positive = 1e-3
    """Step size of Adam; of the policy's, where values learn with a step size of their own."""

    learning_rate_decay: bool = False
    """Let step sizes fall linearly to 0 at the end of the run: the last of N iterations has 1/N."""

    def __init_subclass__(cls, name: str = "", title: str = "") -> None:
        if name:
            ALGORITHMS[name] = cls
            cls.name, cls.title = name, title or name.upper()

    __post_init__ = checks.check_fields


@dataclass(frozen=True)
class Cloning:
    """Behaviour cloning: supervised learning of demonstrations."""

    clone_epochs: Count = 50
    """Epochs over the demonstrations: in every update (bc), or before the first one (others)."""

    clone_batch_size: Count = 128
    """About so many demonstrated steps make a minibatch; at least 64 do."""


@dataclass(frozen=True)
class PolicyGradient:
    """A stochastic policy that follows the policy gradient, and a network of state values."""

    has_log_probs: ClassVar[bool] = True

    learning_rate: Positive = 7e-4

    value_learning_rate: Positive = 1e-3
    """Step size of the Adam of the value network, or of the critics."""

    entropy_coefficient: NonNegative = 0.0
    """Weight of the policy's entropy in the objective; above 0 the policy explores for longer."""

    max_grad_norm: Positive = 0.5
    """Greatest norm of a gradient; longer ones are scaled down to it."""

    normalize_observations: bool = True
    """Normalise observations to mean 0 and standard deviation 1, over all observations so far."""

    initial_log_std: LogStd = -0.5
    """Logarithm of the initial standard deviation of continuous actions."""


@dataclass(frozen=True)
class OnPolicySettings(Cloning, PolicyGradient, AlgorithmSettings):
    """Updates from an iteration's own episodes; with `trains_values` there is a value network."""

    trains_values: ClassVar[bool] = True

    learning_rate_decay: bool = True

    minibatches: Count = 32
    """Minibatches in each epoch, fewer where they would have fewer than 64 steps; 1: no others."""

    max_kl: Positive = 0.05
    """Greatest KL divergence in nats between policies before and after an update; it ends there."""

    shared_torso: bool = False
    """Let policy and values share all layers but the outputs, and learn at --learning-rate."""

    value_weight: Positive = 2.0
    """With --shared-torso, weight of the loss of the values; the policy's loss has weight 1."""

    policy_loss: checks.Function | None = None
    """Loss of the policy in place of the algorithm's own, a function module:function of torch."""

    auxiliary: tuple[checks.Class, ...] = ()
    """With --shared-torso, further losses of the shared layers, module:class each."""

    auxiliary_weights: tuple[NonNegative, ...] = ()
    """A weight for each of --auxiliary."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [*SHARED_LOSSES, *map(loss_name, self.auxiliary)]
        if len(set(names)) < len(names):
            raise UsageError(f"--auxiliary: two losses have the name {names[-1]}; rename a class")
        if self.auxiliary and not self.shared_torso:
            raise UsageError("--auxiliary: losses of the shared layers; add --shared-torso True")
        if len(self.auxiliary_weights) != len(self.auxiliary):
            checks.refuse("auxiliary_weights", "as many as --auxiliary", self.auxiliary_weights)


def loss_name(function: str) -> str:
    """The name in metrics.csv of a loss: of prediction:NextObservation next_observation."""
    name = function.rpartition(":")[2]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@dataclass(frozen=True)
class GeneralizedAdvantages(OnPolicySettings):
    """Generalised advantages (Schulman et al. 2016), by V-trace where another policy has played."""

    gae_lambda: Fraction = 0.95
    """Lambda of generalised advantages, from 0 (one step and a value) to 1 (the whole episode)."""

    overlap: bool = False
    """Collect the next iteration's episodes during the update, and weight them by V-trace."""


@dataclass(frozen=True)
class ReplaySettings(AlgorithmSettings):
    """Gradient steps on samples of replayed experience."""

    capacity: Count = 100_000
    """Steps of replayed experience; the oldest episodes make way for new ones."""

    with_replay: bool = False
    """With --from, take its replayed experience along; it counts for warm-up and epsilon."""

    warm_up_steps: CountOrZero = 1_000
    """Env steps before the first gradient step."""

    batch_size: Count = 128
    """Steps, or sequences of steps, drawn for each gradient step."""

    updates_per_step: UpdatesPerStep = 0.5
    """Gradient steps for each env step after the warm-up."""

    demonstration_share: Fraction = 0.5
    """With --demonstrations, their share of each minibatch (Ball et al. 2023)."""


@dataclass(frozen=True)
class Sequences(ReplaySettings):
    """Replay of sequences of steps."""

    batch_size: Count = 32

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
    """First exponent of the importance weights; it rises linearly to 1 at the end of the run."""


@dataclass(frozen=True)
class Hindsight:
    """Replayed steps with goals that were reached later (Andrychowicz et al. 2017)."""

    hindsight: Literal["none", "future", "final"] = "none"
    """Learn as if a goal that the episode reached later, or last, had been the desired one."""

    hindsight_share: Fraction = 0.8
    """With --hindsight, the share of replayed steps that get such a goal."""


@dataclass(frozen=True)
class Exploration:
    """Values of discrete actions: the best is taken, or with probability epsilon a random one."""

    epsilon_start: Fraction = 1.0
    """Probability of a random action at the beginning of the run."""

    epsilon_end: Fraction = 0.05
    """Probability of a random action after --epsilon-steps."""

    epsilon_steps: CountOrZero = 10_000
    """Env steps in which epsilon falls linearly from its start to its end."""

    max_grad_norm: Positive = 10.0

    def epsilon(self, env_steps: int) -> float:
        """Epsilon after `env_steps` env steps of the run."""
        start, end = self.epsilon_start, self.epsilon_end
        if env_steps >= self.epsilon_steps:
            return end
        return start + (end - start) * env_steps / self.epsilon_steps


@dataclass(frozen=True)
class EpsilonGreedy(Exploration):
    """The same with a target network."""

    tau: Fraction = 0.005
    """Share by which a target network moves towards the trained one each time; 1 copies it."""


@dataclass(frozen=True)
class Critics(Hindsight, ReplaySettings):
    """Critics of continuous actions, with target networks, and the policy that they teach."""

    learning_rate: Positive = 3e-4
    value_learning_rate: Positive = 3e-4
    capacity: Count = 1_000_000
    warm_up_steps: CountOrZero = 5_000
    batch_size: Count = 256
    updates_per_step: UpdatesPerStep = 1.0

    tau: Fraction = 0.005
    n_step: Count = 1
    """Rewards in a target before the bootstrapped value (n-step returns)."""

    atoms: Count = 1
    """Atoms of the return's distribution that the critics learn; 1: its mean (Lee et al. 2025)."""

    reward_scale: Positive = 1.0
    """With --atoms 1, factor of the critics' rewards; printed returns are not scaled."""

    normalize_observations: bool = False

    layer_norm: bool = False
    """Normalise the layers of the critics (Ball et al. 2023): steps take a third longer."""


@dataclass(frozen=True)
class ActionNoise(Critics):
    """A deterministic policy, which explores by noise."""

    noise: NonNegative = 0.1
    """Standard deviation of the noise added to actions (bounds -1 and 1); 1 during the warm-up."""


@dataclass(frozen=True)
class ReinforceSettings(OnPolicySettings, name="reinforce"):
    """Settings of REINFORCE (Williams 1992), with a baseline."""

    max_kl: Positive = 0.1  # without PPO's ratio, a policy that moves far in one epoch collapses

    baseline: Literal["none", "leave-one-out", "value"] = "value"
    """Baseline of returns: none, the other episodes' mean at the same step, or a value network."""

    value_epochs: Count = 5
    """Epochs of the value network over each batch; the policy makes one."""

    @property
    def trains_values(self) -> bool:
        """Whether the baseline is a value network."""
        return self.baseline == "value"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared_torso and not self.trains_values:
            raise UsageError("--shared-torso: there is no value network; add --baseline value")


@dataclass(frozen=True)
class A2CSettings(GeneralizedAdvantages, name="a2c"):
    """Settings of advantage actor-critic (Mnih et al. 2016), synchronous."""

    value_epochs: Count = 5


@dataclass(frozen=True)
class PPOSettings(GeneralizedAdvantages, name="ppo"):
    """Settings of proximal policy optimisation (Schulman et al. 2017)."""

    learning_rate_decay: bool = False  # in an unknown environment runs are short

    minibatches: Count = 16
    max_kl: Positive = 0.1

    epochs: Count = 10
    """Epochs over each batch."""

    clip_range: Positive = 0.2
    """Epsilon of the clipped objective: how far from 1 the probability ratio may go."""

    recompute_advantages: bool = True
    """Recompute the advantages before every epoch."""


@dataclass(frozen=True)
class PQNSettings(Exploration, AlgorithmSettings, name="pqn"):
    """Settings of Q-learning without replay and target network (Gallici et al. 2025)."""

    minibatches: Count = 32

    epochs: Count = 2

    q_lambda: Fraction = 0.65
    """Lambda of the returns, from 0 (one step and a value) to 1 (the whole episode)."""

    layer_norm: bool = True
    """Normalise each layer before its activation; without, values may diverge."""


@dataclass(frozen=True)
class DQNSettings(EpsilonGreedy, Prioritized, Hindsight, ReplaySettings, name="dqn"):
    """Settings of deep Q-learning (Mnih et al. 2015), for discrete actions."""

    target_period: Count = 1
    """The target network moves after every N gradient steps."""

    epsilon_repeat: Fraction = 0.0
    """Probability that a step explores, or not, as the step before did (Dabney et al. 2021)."""

    n_step: Count = 1

    double: bool = True
    """The target network values the online network's action (van Hasselt et al. 2016)."""

    dueling: bool = False
    """Learn the state's value and the actions' advantages apart (Wang et al. 2016)."""

    distribution: Literal["none", "c51", "quantiles"] = "none"
    """Learn the distribution of returns, by atoms (C51) or quantiles (QR-DQN), or their mean."""

    atoms: Count = 51
    """Atoms or quantiles of a distribution."""

    lowest_return: Number = -100.0
    """The lowest atom of C51; returns below it count as it."""

    highest_return: Number = 100.0
    """The highest atom of C51."""

    rainbow: bool = False
    """Rainbow without noisy layers (Hessel et al. 2018): double, dueling, prioritized, and where
    not chosen otherwise n_step 3 and distribution c51."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rainbow:
            vars(self).update(double=True, dueling=True, prioritized=True)  # it is frozen
            chosen = {"none": "c51"}.get(self.distribution, self.distribution)
            vars(self).update(n_step=3 if self.n_step == 1 else self.n_step, distribution=chosen)
        if self.distribution == "c51" and self.atoms < 2:
            checks.refuse("atoms", "at least 2 with C51", self.atoms)
        if self.lowest_return >= self.highest_return:
            checks.refuse("lowest_return", f"less than {self.highest_return}", self.lowest_return)


@dataclass(frozen=True)
class SarsaSettings(EpsilonGreedy, ReplaySettings, name="sarsa"):
    """Settings of SARSA (Sutton and Barto 2018, sections 6.4 and 6.6), for discrete actions."""

    capacity: Count = 10_000  # targets of the actions that were taken need recent policies
    epsilon_end: Fraction = 0.02

    expected: bool = True
    """Bootstrap the expectation over the policy's next action, not the action that was taken."""


@dataclass(frozen=True)
class SuccessorSettings(
    EpsilonGreedy, ReplaySettings, name="successor", title="Successor features"
):
    """Settings of successor features (Barreto et al. 2017), for rewards of several parts."""

    may_change = ("reward_weights",)


@dataclass(frozen=True)
class R2D2Settings(EpsilonGreedy, Sequences, name="r2d2"):
    """Settings of deep Q-learning with a memory (Kapturowski et al. 2019), for discrete actions."""

    updates_per_step: UpdatesPerStep = 0.1
    tau: Fraction = 0.02

    burn_in: CountOrZero = 20
    """Steps before a sequence that only bring the memory up to date, from an empty one."""


@dataclass(frozen=True)
class ImpalaSettings(PolicyGradient, Sequences, name="impala"):
    """Settings of an actor-critic with V-trace (Espeholt et al. 2018), for any actions."""

    learning_rate: Positive = 2e-4
    entropy_coefficient: NonNegative = 0.003
    updates_per_step: UpdatesPerStep = 0.05
    capacity: Count = 20_000  # V-trace gives little weight to what the policy would no longer do

    trace_lambda: Fraction = 0.95
    """Lambda of V-trace, from 0 (one step and a value) to 1 (the whole sequence)."""


@dataclass(frozen=True)
class DDPGSettings(ActionNoise, name="ddpg"):
    """Settings of DDPG (Lillicrap et al. 2016), for continuous actions."""

    noise_process: Literal["gaussian", "ornstein-uhlenbeck"] = "gaussian"
    """Independent noise in each step, or noise that keeps most of the step before."""

    noise_theta: Fraction = 0.15
    """How far each step draws Ornstein-Uhlenbeck noise back to 0."""


@dataclass(frozen=True)
class TD3Settings(ActionNoise, name="td3"):
    """Settings of twin delayed DDPG (Fujimoto et al. 2018), for continuous actions."""

    policy_delay: Count = 2
    """Gradient steps of the critics for each one of the policy and the target networks."""

    target_noise: NonNegative = 0.2
    """Standard deviation of the noise that smooths the target policy."""

    target_noise_clip: NonNegative = 0.5
    """Greatest noise of the target policy."""


@dataclass(frozen=True)
class SACSettings(Critics, name="sac"):
    """Settings of soft actor-critic (Haarnoja et al. 2018), for continuous actions."""

    average_critics: bool = False
    """Let the mean of the two critics count, not the smaller value (Moskovitz et al. 2021)."""

    target_entropy: Number = -1.0
    """Entropy in nats, for each action dimension, at which the temperature keeps the policy."""

    initial_temperature: Positive = 1.0
    """The first weight of the entropy."""

    initial_std: SquashedStd = 1.0
    """About the standard deviation of a new policy's actions, before tanh."""


@dataclass(frozen=True)
class BCSettings(Cloning, AlgorithmSettings, name="bc"):
    """Settings of behaviour cloning (Pomerleau 1991), from --demonstrations alone."""

    learning_rate_decay: bool = True
    clone_epochs: Count = 10
    max_grad_norm: Positive = 1.0
    normalize_observations: bool = True

    policy: Literal["gaussian", "squashed", "deterministic"] = "gaussian"
    """Policy of real-valued actions: Gaussian, squashed by tanh as sac's, or deterministic."""

    initial_log_std: LogStd = -0.5
    initial_std: SquashedStd = 1.0

    @property
    def has_log_probs(self) -> bool:
        """Whether the policy is the one of reinforce, a2c and ppo."""
        return self.policy == "gaussian"


def settings_class(algorithm: str) -> type[AlgorithmSettings]:
    """The class of an algorithm's settings. Raises UsageError for an unknown name."""
    if algorithm not in tuple(ALGORITHMS):  # a list has no hash
        checks.refuse("algorithm", " or ".join(ALGORITHMS), algorithm)
    return ALGORITHMS[algorithm]
