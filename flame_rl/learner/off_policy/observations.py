"""Normalised observations for learners from replay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import nn

from flame_rl.learner.state import Part
from flame_rl.learner.training.normalize import RunningMoments
from flame_rl.modules.observations import ObservationNormalizer
from flame_rl.nets.layers import NormalizeLayer
from flame_rl.nets.network import Samples
from flame_rl.wire.messages import PolicySnapshot

_OBSERVATIONS = ("observations", "next_observations", "between")


class NormalizedObservations:
    """Brings observations to mean 0 and standard deviation 1, by the statistics of all that were
    collected (Lee et al. 2025, "SimBa": running statistics normalisation).

    The replay memory stores raw observations, because the statistics change: samples are
    normalised when they are drawn, and actors normalise with a layer before the policy's own.
    """

    def __init__(self, normalizer: ObservationNormalizer) -> None:
        self._normalizer = normalizer
        self._moments = RunningMoments(normalizer.observation_dim)

    @property
    def parts(self) -> dict[str, Part | nn.Module]:
        """Everything with state, by name."""
        return {"normalizer": self._normalizer, "observations": self._moments}

    def follow(self, observations: np.ndarray) -> None:
        """Add the observations of an iteration, [N, D], to the statistics."""
        self._moments.update(observations)
        self._normalizer.set(self._moments.mean, self._moments.std)

    def normalize_samples(self, samples: Samples) -> Samples:
        """The samples with normalised observations."""
        layer = NormalizeLayer(**self._normalizer.views())
        names = samples.keys() & _OBSERVATIONS
        return samples | {name: layer.normalize(samples[name]) for name in names}

    def add_layer(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """The policy with the normalisation as its first layer."""
        return replace(snapshot, layers=(self._normalizer.layer(), *snapshot.layers))
