"""Action values: targets and losses, from SARSA and DQN to Rainbow, and Q in training.

B is the number of samples, A the number of actions, Z the number of atoms or quantiles that
describe a return's distribution. A network's outputs [B, A * Z] are [B, A, Z], flattened. All
arrays are float32 or float64, and so are the results. "Discounts" are gamma^k after k steps, and 0
after an end, as in flame_rl/learner/off_policy/replay/views.py.

Each loss is a `flame_rl.learner.training.network.Loss`. Samples have "actions", integers [B],
"targets", and, where they were not drawn uniformly, importance "weights", [B] (Schaul et al. 2016,
"Prioritized Experience Replay", section 3.4), which scale "loss" and its gradient. Besides "loss",
a loss returns "value", that of the action that was taken, and "td_error", never negative, the
sample's priority. Shapes that do not fit raise ValueError.

Sutton and Barto is "Reinforcement Learning: An Introduction", 2nd edition, 2018.
"""

from collections.abc import Iterator

import numpy as np

from flame_rl.learner.compiled.library import Target, address
from flame_rl.learner.compiled.network import CompiledNetwork
from flame_rl.learner.off_policy.gradient_step import GradientStep
from flame_rl.learner.own_model import model_of
from flame_rl.learner.training.choose import in_training
from flame_rl.learner.training.epoch import StepConfig
from flame_rl.learner.training.network import Gradient, Loss, LossResult, Numbers, Pass, Samples
from flame_rl.learner.training.trained import TargetNetwork
from flame_rl.modules.networks import Returns, dueling
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.masks import masked
from flame_rl.wire.messages import EnvironmentSpec

# Pairs of quantiles that are computed at once: the C library keeps the memory of arrays of this
# size, and larger ones take several times as long.
_PAIRS = 60_000


class ActionValues(GradientStep):
    """What algorithms with values Q of discrete actions share; see `GradientStep`.

    Attributes:
        settings, gamma: of the run.
        online: Q, in training. Its output is [B, A], or more numbers for each action.
        target: the target network Q' (Mnih et al. 2015, "Human-Level Control through Deep
            Reinforcement Learning").
        target_period: gradient steps for each move of the target network.
    """

    actions = "discrete"
    metrics = ("loss", "value", "td_error")
    target_period = 1

    def __init__(
        self, config: TrainConfig, spec: EnvironmentSpec, returns: Returns | None = None
    ) -> None:
        """Make new networks. The algorithm has `EpsilonGreedy` settings; `returns` says what Q
        predicts of the return, None: its mean."""
        self.settings, self.gamma = config.algorithm, config.experiment.gamma
        make = model_of(config).action_values
        self.policy = make(spec, config) if returns is None else make(spec, config, returns)
        self.online = in_training(self.policy)
        self.target = TargetNetwork(self.online)
        self.parts = {
            "policy": self.policy,
            "policy_adam": self.online.adam,
            "target": self.target.module,
        }

    def exploration(self, env_steps: int) -> dict[str, float]:
        """Epsilon."""
        return {"epsilon": self.settings.epsilon(env_steps)}

    def learn(self, samples: Samples, targets: np.ndarray, loss: Loss, decay: float) -> Numbers:
        """One gradient step, Q(s, a) -> target, by a loss of Q's output for the "observations",
        [B, ...], which gets the targets, [B] or [B, ...], as "targets"; then the target network
        follows. `decay`: factor of the learning rate. Returns the loss's numbers, [B] each."""
        forward = self.online.network.forward({"inputs": samples["observations"]})
        numbers, gradients = loss(samples | {"targets": targets}, *forward.outputs)
        self.descend(forward, gradients, decay)
        return numbers

    @property
    def compiled(self) -> bool:
        """Whether compiled code knows the networks, so that `q_steps` can be called."""
        return isinstance(self.online.network, CompiledNetwork)

    def q_steps(self, samples: Samples, double: bool, decay: float) -> Iterator[Numbers]:
        """Gradient steps of DQN on K minibatches, [K, B, ...], by compiled code: `q_loss`, and
        targets of the best next action, or with `double` of the one that Q chooses."""
        settings = self.settings
        where, taken = address(self.target.parameters), self.online.adam.steps
        target = Target(where, self.target_period, taken, double, settings.tau)
        config = StepConfig(settings.learning_rate * decay, settings.max_grad_norm)
        columns = self.online.network.q_steps(samples, self.online.adam, target, config)
        names, rows = columns.keys(), zip(*columns.values(), strict=True)
        return (dict(zip(names, row, strict=True)) for row in rows)

    def descend(self, forward: Pass, gradients: tuple[Gradient, ...], decay: float) -> None:
        """As `learn`, given a forward pass of Q and the loss's gradients; see
        `TrainedNetwork.descend`."""
        settings = self.settings
        rate = settings.learning_rate * decay
        self.online.descend(forward, gradients, rate, settings.max_grad_norm)
        if self.online.adam.steps % self.target_period == 0:
            self.target.follow(settings.tau)


# Targets


def of_actions(values: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Select each sample's action: float [B, A, ...] and integers [B] -> [B, ...]."""
    check_shape("actions", actions, len(values))
    return values[np.arange(len(values)), actions]


def td_targets(rewards: np.ndarray, discounts: np.ndarray, next_values: np.ndarray) -> np.ndarray:
    """R + discount * V(S'), the target of TD(0) (Sutton and Barto, eq. 6.2); if rewards and
    discounts, [B] each, cover n steps, the n-step return (eq. 7.1). The next values and the targets
    are [B], or [B, Z]: the quantiles of the return that follows."""
    rows = len(next_values)
    check_shape("rewards", rewards, rows)
    check_shape("discounts", discounts, rows)
    column = (rows,) + (1,) * (next_values.ndim - 1)
    return rewards.reshape(column) + discounts.reshape(column) * next_values


def best_actions(next_values: np.ndarray, samples: Samples) -> np.ndarray:
    """The action of the greatest value at the next observation, integers [B], of those that the
    masks of the samples' next observations allow, where there are masks; values are [B, A]. Of
    sequences [B, L] and [B, L, A]."""
    return masked(next_values, samples, -np.inf, prefix="next_").argmax(axis=-1)


def project(
    support: np.ndarray, rewards: np.ndarray, discounts: np.ndarray, probabilities: np.ndarray
) -> np.ndarray:
    """The distribution of R + discount * G', on the atoms again (Bellemare et al. 2017, "A
    Distributional Perspective on Reinforcement Learning", algorithm 1): the probability of a value
    between two atoms is divided among them, and values beyond the support count as its ends.

    `support` are the atoms, [Z], as np.linspace makes them; rewards and discounts are [B];
    `probabilities` those of the atoms as values of G', the return that follows, [B, Z], and the
    result is of their shape and dtype."""
    rows, atoms = probabilities.shape
    values = td_targets(rewards, discounts, np.broadcast_to(support, (rows, atoms)))
    distance = float(support[-1] - support[0]) / (atoms - 1)
    places = np.clip((values - support[0]) / distance, 0, atoms - 1)
    # Where a value is NaN, the integer is arbitrary, and the share is NaN.
    lower = np.clip(places.astype(np.int64), 0, atoms - 1)
    share = places - lower
    # Where a value is an atom, the paper's floor and ceiling are the same, and its shares are 0.
    upper = np.minimum(lower + 1, atoms - 1)
    first = np.arange(rows)[:, None] * atoms
    bins = np.concatenate([(first + lower).ravel(), (first + upper).ravel()])
    shares = [((1 - share) * probabilities).ravel(), (share * probabilities).ravel()]
    projected = np.bincount(bins, np.concatenate(shares), rows * atoms)
    return projected.reshape(rows, atoms).astype(probabilities.dtype)


# Losses


def huber(errors: np.ndarray) -> np.ndarray:
    """Half the square up to 1, and linear from there on (Huber 1964); its gradient is the error
    clipped to ±1 (Mnih et al. 2015)."""
    size = np.abs(errors)
    clipped = np.minimum(size, 1)
    return clipped * (size - 0.5 * clipped)


def q_loss(samples: Samples, values: np.ndarray) -> LossResult:
    """The Huber loss of the TD errors (Mnih et al. 2015). A `Loss` of the values of all actions,
    [B, A]; "targets" are [B], and "td_error" is absolute."""
    check_shape("targets", samples["targets"], len(values))
    value = of_actions(values, samples["actions"])
    errors = value - samples["targets"]
    numbers = {"loss": huber(errors), "td_error": np.abs(errors), "value": value}
    return apply_weights(samples, numbers, np.clip(errors, -1, 1), values)


def softmax(logits: np.ndarray, atoms: int) -> np.ndarray:
    """Probabilities of each action's atoms: [B, A * Z] -> [B, A, Z]."""
    return np.exp(_log_softmax(logits.reshape(len(logits), -1, atoms)))


def c51_loss(support: np.ndarray) -> Loss:
    """The cross-entropy of target and predicted distribution (Bellemare et al. 2017, alg. 1).

    "targets" are probabilities, [B, Z], as `project` returns them; the output is the logits,
    [B, A * Z]. In place of the TD error, "td_error" is the Kullback-Leibler divergence, the part of
    the cross-entropy that learning can reduce (Hessel et al. 2018, "Rainbow", section "The
    Integrated Agent"). `support`, [Z], are the atoms, as in `project`; ValueError if they are not.
    """
    atoms, gaps = len(support), np.diff(support)
    # float32 rounds the distances of a wide support by less.
    if not (len(gaps) and gaps.min() > 0.98 * gaps.max()):
        raise ValueError("support: not equidistant and ascending; np.linspace makes one")

    def loss(samples: Samples, logits: np.ndarray) -> LossResult:
        targets, chosen = distributions(samples, logits, atoms)
        log_p = _log_softmax(chosen)
        p = np.exp(log_p)
        # 0 log 0 is 0.
        log_targets = np.log(np.where(targets > 0, targets, 1))
        numbers = {
            "loss": -np.einsum("bz,bz->b", targets, log_p),
            # Rounding can make the divergence of equal distributions negative.
            "td_error": np.maximum(np.einsum("bz,bz->b", targets, log_targets - log_p), 0),
            "value": p @ support.astype(p.dtype),
        }
        total = targets.sum(axis=1, keepdims=True)
        return apply_weights(samples, numbers, total * p - targets, logits)

    return loss


def quantile_loss(quantiles: int) -> Loss:
    """The quantile Huber loss (Dabney et al. 2018, "Distributional Reinforcement Learning with
    Quantile Regression", eq. 10 with kappa 1, and algorithm 1): summed over the Z predicted
    quantiles, mean over those of the target.

    "targets" are quantiles, [B, Z], as `td_targets` returns them; the output is the quantiles of
    each action, [B, A * Z]. "value" is their mean, "td_error" the absolute difference of means.
    """

    def loss(samples: Samples, outputs: np.ndarray) -> LossResult:
        targets, chosen = distributions(samples, outputs, quantiles)
        rows = max(1, _PAIRS // quantiles**2)
        starts = range(0, len(chosen), rows)
        slices = [_quantile_huber(targets[n : n + rows], chosen[n : n + rows]) for n in starts]
        losses, gradients = (np.concatenate(column) for column in zip(*slices, strict=True))
        value = chosen.mean(axis=1)
        numbers = {"loss": losses, "td_error": np.abs(targets.mean(axis=1) - value), "value": value}
        return apply_weights(samples, numbers, gradients, outputs)

    return loss


def _quantile_huber(targets: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The loss of each sample, [B], and its gradient for the chosen action's quantiles, [B, Z];
    both arguments are [B, Z]."""
    quantiles = chosen.shape[1]
    errors = targets[:, None, :] - chosen[:, :, None]
    # The middles of Z equal intervals of [0, 1], where quantiles represent a distribution best
    # (Dabney et al. 2018, lemma 2).
    tau = ((np.arange(quantiles) + 0.5) / quantiles).astype(chosen.dtype)[:, None]
    # The Huber loss is clipped * (errors - clipped / 2), and clipped is its gradient.
    clipped = np.minimum(np.maximum(errors, -1), 1)
    weighted = np.where(errors < 0, 1 - tau, tau) * clipped
    gradient = -weighted.sum(axis=2) / quantiles
    clipped *= 0.5
    errors -= clipped
    return np.einsum("bij,bij->b", weighted, errors) / quantiles, gradient


def dueling_loss(loss: Loss, atoms: int = 1) -> Loss:
    """The loss of a duelling network, whose output is [B, (1 + A) * Z]: `loss` after `dueling`."""

    def whole(samples: Samples, outputs: np.ndarray) -> LossResult:
        numbers, (gradient,) = loss(samples, dueling(outputs, atoms))
        by_action = gradient.reshape(len(outputs), -1, atoms)
        value = by_action.sum(axis=1, keepdims=True)
        advantages = by_action - value / by_action.shape[1]
        gradient = np.concatenate([value, advantages], axis=1)
        return numbers, (gradient.reshape(outputs.shape),)

    return whole


def distributions(
    samples: Samples, outputs: np.ndarray, atoms: int
) -> tuple[np.ndarray, np.ndarray]:
    """The targets, and the outputs, [B, A * Z], for the samples' actions, both [B, Z]."""
    targets, rows = samples["targets"], len(outputs)
    check_shape("targets", targets, rows, atoms)
    return targets, of_actions(outputs.reshape(rows, -1, atoms), samples["actions"])


def apply_weights(
    samples: Samples, numbers: Numbers, gradient: np.ndarray, outputs: np.ndarray
) -> LossResult:
    """The numbers, and the gradient for all outputs, [B, A] or [B, A * Z], given that for the
    outputs of the samples' actions, [B] or [B, Z]; both with the importance weights, if any."""
    rows = len(outputs)
    if "weights" in samples:
        weights = samples["weights"]
        check_shape("weights", weights, rows)
        numbers["loss"] = weights * numbers["loss"]
        gradient = (weights * gradient.T).T
    whole = np.zeros_like(outputs)
    atoms = gradient.shape[1] if gradient.ndim == 2 else 1
    by_action = whole.reshape(rows, -1, atoms)
    by_action[np.arange(rows), samples["actions"]] = gradient.reshape(rows, atoms)
    return numbers, (whole,)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def check_shape(name: str, array: np.ndarray, *shape: int) -> None:
    """Raise ValueError unless the array has that shape: NumPy would broadcast [B, 1] and [B] to
    [B, B]."""
    if array.shape != shape:
        raise ValueError(f"{name}: shape {array.shape}, not {shape}")
