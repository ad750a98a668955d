"""The learner: networks that one algorithm improves, and what it must remember to go on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.learner.algorithms.a2c import a2c
from flame_rl.learner.algorithms.ppo import ppo
from flame_rl.learner.algorithms.reinforce import reinforce
from flame_rl.learner.batch import Batch, make_batch
from flame_rl.learner.guard import refused_unless_finite, shrink_until_close
from flame_rl.learner.networks import Networks
from flame_rl.learner.normalize import RunningMoments
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import Episodes, PolicySnapshot

# Improves the networks by a batch. Also gets the configuration, a generator that follows from seed
# and iteration, and the learning rates' factor; returns metrics by name: loss, gradient_norm
# (before clipping), policy_entropy (in nats) and its own.
Algorithm = Callable[
    [Networks, Batch, TrainConfig, np.random.Generator, float],
    dict[str, float],
]

ALGORITHMS: dict[str, Algorithm] = {"reinforce": reinforce, "a2c": a2c, "ppo": ppo}


class Learner:
    """Updates a policy; everything that the next update depends on is in `state_dict`."""

    def __init__(self, config: TrainConfig, policy: nn.Module, value: nn.Module) -> None:
        """Take over networks as in model.py, and update them in place."""
        self._config = config
        self._improve = ALGORITHMS[config.algorithm]
        self._networks = Networks(policy, value)
        self._observations: RunningMoments | None = None
        if config.normalize_observations:
            self._observations = RunningMoments(len(policy.normalizer.mean))
        self._updates = 0

    def snapshot(self) -> PolicySnapshot:
        """The weights for the actors; the version is the number of updates so far."""
        return self._networks.policy.snapshot(self._updates)

    def update(self, episodes: Episodes) -> dict[str, float]:
        """Improve the policy by all steps of all episodes.

        Args:
            episodes: complete ones, collected with the latest snapshot, sorted by index.

        Returns:
            The algorithm's metrics, and `kl`, the distance from the policy that collected.

        Raises:
            RunError: something became NaN or infinite; all is as it was before.
        """
        config, networks = self._config, self._networks
        # Episodes take (iteration, index) for theirs.
        sequence = np.random.SeedSequence(config.seed, spawn_key=(self._updates,))
        decay = 1.0
        if config.learning_rate_decay:
            decay = max(0.0, 1 - self._updates / config.iterations)
        batch = make_batch(episodes, networks.log_probs)
        before = networks.policy_adam.values()
        with refused_unless_finite(self) as metrics:
            generator = np.random.default_rng(sequence)
            metrics |= self._improve(networks, batch, config, generator, decay)
            metrics["kl"] = shrink_until_close(networks, before, batch, config.max_kl)
            if self._observations is not None:
                # Only now: the batch belongs to the policy that collected it.
                self._observations.update(batch.observations.numpy())
                for network in (networks.policy, networks.value):
                    network.normalizer.set(self._observations.mean, self._observations.std)
        self._updates += 1
        return metrics

    def weights(self) -> dict[str, Tensor]:
        """Of policy and value network, by name."""
        networks = {"policy": self._networks.policy, "value": self._networks.value}
        return {
            f"{part}.{name}": tensor
            for part, network in networks.items()
            for name, tensor in network.state_dict().items()
        }

    def state_dict(self) -> dict[str, Tensor]:
        """All that the next update depends on, by name."""
        state = self._networks.state_dict()
        if self._observations is not None:
            moments = self._observations.state_dict()
            state |= {f"observations.{name}": tensor for name, tensor in moments.items()}
        return state | {"updates": torch.tensor(self._updates)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """The inverse of `state_dict`. Raises KeyError, ValueError or RuntimeError if it does not
        fit."""
        self._networks.load_state_dict(state)
        if self._observations is not None:
            names = ("count", "mean", "squares")
            self._observations.load_state_dict({n: state[f"observations.{n}"] for n in names})
        self._updates = int(state["updates"])

    def weights_digest(self) -> str:
        """SHA-256 over names, types, shapes and bytes of all weights."""
        return tensors_digest(self.weights())


def tensors_digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 in hexadecimal over names, types, shapes and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name].detach().numpy()
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
