"""Behaviour cloning (Pomerleau 1991, "Efficient Training of Artificial Neural Networks for
Autonomous Navigation"): supervised learning of what was demonstrated.

    minimise  mean_t [ -log pi(a_t | s_t) ]              a policy with probabilities
    minimise  mean_t [ |a_t - mu(s_t)|^2 / 2 ]           a deterministic policy mu

An update makes several epochs over all demonstrations. In a run of bc every update does; with
reinforce, a2c and ppo the first one, see demonstrations/cloning.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces
from numpy.random import Generator
from torch import nn

from flame_rl.learner.learner import Algorithm
from flame_rl.learner.on_policy.actor_critic import PolicyTraining, policy_epoch
from flame_rl.learner.on_policy.batch import Batch, make_batch
from flame_rl.learner.own_model import model_of
from flame_rl.learner.state import Metrics, Stateful, learning_rate_factor
from flame_rl.learner.training.choose import in_training
from flame_rl.learner.training.epoch import StepConfig
from flame_rl.learner.training.network import Loss, LossResult, Samples
from flame_rl.learner.training.normalize import RunningMoments
from flame_rl.modules.networks import PolicyNetwork
from flame_rl.modules.observations import normalizers_of
from flame_rl.nets.heads import LOG_STD_RANGE
from flame_rl.settings.algorithms import Cloning
from flame_rl.settings.config import TrainConfig
from flame_rl.system.errors import UsageError
from flame_rl.wire.messages import EnvironmentSpec, Episodes, PolicySnapshot

if TYPE_CHECKING:
    from flame_rl.learner.demonstrations.files import Demonstrations

# Actions nearer to a bound than this count as so near: at the bound, tanh has no inverse.
_NEAREST = 1e-6


class Imitation(Algorithm):
    """Behaviour cloning alone: the iteration's episodes only say how good the policy was before."""

    metrics = ("loss", "gradient_norm", "policy_steps")

    def __init__(
        self, config: TrainConfig, spec: EnvironmentSpec, demonstrations: Demonstrations | None
    ) -> None:
        """Make a new policy. Raises UsageError without demonstrations, and as `make_policy`."""
        if demonstrations is None:
            raise UsageError(
                f"--demonstrations: {config.algorithm_name} learns from nothing else; name an .npz "
                "file (main.py evaluate RUN --record FILE.npz), a run with replay, or a Minari "
                "dataset"
            )
        trained = in_training(make_policy(config, spec))
        self.config, self._training = config, PolicyTraining(trained, trained.adam)
        self.demonstrations = demonstrations

    @property
    def parts(self) -> dict[str, Stateful | nn.Module]:
        return self._training.parts

    def snapshot(self) -> PolicySnapshot:
        return self._training.policy.module.snapshot()

    def update(self, episodes: Episodes, generator: Generator, progress: float) -> Metrics:
        """Learn from the demonstrations; see `Algorithm.update`."""
        training = self._training
        batch = make_batch(self.demonstrations.episodes, training.remembers, training.frames)
        # Where observations are normalised, by the statistics of the demonstrations.
        if normalizers := normalizers_of(training.policy.module):
            moments = RunningMoments(np.asarray(batch.observations[:1]).shape[1])
            moments.update(batch.observations, outliers=False)
            moments.set_in(normalizers)
        decay = learning_rate_factor(self.config.algorithm.learning_rate_decay, progress)
        return bc(training, training.prepare(batch), self.config, decay, generator)


def make_policy(config: TrainConfig, spec: EnvironmentSpec) -> PolicyNetwork:
    """A new policy of the kind that --policy names; for choices there is only one. Raises
    UsageError where actions have none of that kind."""
    settings, model = config.algorithm, model_of(config)
    kinds = {"squashed": model.squashed_policy, "deterministic": model.deterministic_policy}
    if settings.policy not in kinds:
        return model.policy(spec, config)
    if not isinstance(spec.action_space, spaces.Box):
        raise UsageError(
            f"--policy: {settings.policy} is for real-valued actions, a Box, and {spec.env_id} has "
            f"{spec.action_space}; leave the flag out"
        )
    policy = kinds[settings.policy](spec, config)
    # Those of sac, ddpg and td3 are normalised elsewhere.
    policy.normalizer, _ = model.preprocessing(spec, config, settings.normalize_observations)
    return policy


def bc(
    networks: PolicyTraining, batch: Batch, config: TrainConfig, decay: float, generator: Generator
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
        epoch = policy_epoch(batch, columns, count, generator)
        steps += networks.fit_policy(epoch, loss, step)
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
