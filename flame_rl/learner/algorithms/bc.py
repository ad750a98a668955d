"""Behaviour cloning (Pomerleau 1991, "Efficient Training of Artificial Neural Networks for
Autonomous Navigation"): supervised learning of what was demonstrated.

    minimise  mean_t [ -log pi(a_t | s_t) ]              a policy with probabilities
    minimise  mean_t [ |a_t - mu(s_t)|^2 / 2 ]           a deterministic policy mu

An update makes several epochs over all demonstrations.
"""

import math

import numpy as np

from flame_rl.learner.on_policy.actor_critic import PolicyTraining, shuffle
from flame_rl.learner.on_policy.batch import Batch
from flame_rl.learner.training.epoch import StepConfig
from flame_rl.learner.training.network import Loss, LossResult, Samples
from flame_rl.nets.heads import LOG_STD_RANGE
from flame_rl.settings.algorithms import Cloning
from flame_rl.settings.config import TrainConfig

# Actions nearer to a bound than this count as so near: at the bound, tanh has no inverse.
_NEAREST = 1e-6


def bc(
    networks: PolicyTraining,
    batch: Batch,
    config: TrainConfig,
    decay: float,
    generator: np.random.Generator,
) -> dict[str, float]:
    """One update. Arguments and result: see `flame_rl.learner.on_policy.update.Update`; the batch
    is of demonstrations."""
    settings: Cloning = config.algorithm
    loss = LOSSES[networks.policy.module.snapshot().head.kind]
    targets = batch.estimated_returns(config.experiment.gamma)
    count = max(1, batch.steps // settings.clone_batch_size)
    step = StepConfig(settings.learning_rate * decay, settings.max_grad_norm)
    steps: list[dict[str, float]] = []
    for _ in range(settings.clone_epochs):
        columns = networks.columns(batch, targets)
        epoch = shuffle(batch, columns, count, generator)
        steps += networks.descend(epoch, loss, step)
    names = "loss", "gradient_norm"
    means = {name: float(np.mean([step[name] for step in steps])) for name in names}
    return means | {"policy_steps": float(len(steps))}


def minus_log_probs(samples: Samples, log_probs: np.ndarray, entropies: np.ndarray) -> LossResult:
    """-log pi(a | s), of a policy that gives it."""
    return {"loss": -log_probs}, (np.full_like(log_probs, -1.0), 0.0)


def minus_squashed_log_probs(samples: Samples, output: np.ndarray) -> LossResult:
    """-log pi(a | s) of a = tanh(u), u Gaussian: -log N(u; mean, std) + sum log(1 - a^2) (Haarnoja
    et al. 2018, eq. 26). With z = (u - mean) / std its gradients are -z / std for the mean, and
    1 - z^2 for log std, 0 where that is clipped. The output is [B, 2A]: means, then log stds."""
    width = output.shape[1] // 2
    actions = samples["actions"].astype(np.float64).clip(_NEAREST - 1, 1 - _NEAREST)
    raw = output[:, width:]
    log_std = np.clip(raw, *LOG_STD_RANGE)
    inverse = np.exp(-log_std)
    z = (np.arctanh(actions) - output[:, :width]) * inverse
    terms = 0.5 * z * z + log_std + 0.5 * math.log(2 * math.pi) + np.log1p(-actions * actions)
    gradient = np.concatenate([-z * inverse, (1 - z * z) * (raw == log_std)], axis=1)
    return {"loss": terms.sum(axis=1).astype(output.dtype)}, (gradient.astype(output.dtype),)


def squared_errors(samples: Samples, actions: np.ndarray) -> LossResult:
    """|a - mu(s)|^2 / 2; the output is mu(s), [B, A]."""
    errors = actions - samples["actions"]
    return {"loss": 0.5 * np.square(errors).sum(axis=1)}, (errors,)


# By the kind of the policy's head.
LOSSES: dict[str, Loss] = {
    "categorical": minus_log_probs,
    "factored": minus_log_probs,
    "gaussian": minus_log_probs,
    "squashed_gaussian": minus_squashed_log_probs,
    "noisy": squared_errors,
}
