"""Normalised observations for learners from replay."""

from __future__ import annotations

from dataclasses import replace

import gymnasium
import numpy as np
from torch import nn

from flame_rl.learner.state import Part
from flame_rl.learner.training.frames import SideBySide
from flame_rl.learner.training.network import Samples
from flame_rl.learner.training.normalize import RunningMoments
from flame_rl.modules.layers import layers_of, side_by_side
from flame_rl.modules.observations import ObservationNormalizer, normalizers_of
from flame_rl.nets.layers import NormalizeLayer
from flame_rl.wire.inputs import observation_inputs
from flame_rl.wire.messages import PolicySnapshot

_OBSERVATIONS = ("observations", "next_observations", "between")


class NormalizedObservations:
    """Brings observations to mean 0 and standard deviation 1, by the statistics of all that were
    collected (Lee et al. 2025, "SimBa": running statistics normalisation).

    The replay memory stores raw observations, because the statistics change: samples are
    normalised when they are drawn, and actors normalise with a layer before the policy's own.
    """

    def __init__(self, space: gymnasium.Space) -> None:
        """`space` is that of observations; of several inputs, bytes are not normalised."""
        inputs = observation_inputs(space)
        normalizers = [
            [ObservationNormalizer(each.width)] if each.space is None else [] for each in inputs
        ]
        (self._module,) = side_by_side([each.width for each in inputs], normalizers)
        self._normalizers = normalizers_of(self._module)
        self._moments = RunningMoments(inputs[-1].stop)

    @property
    def parts(self) -> dict[str, Part | nn.Module]:
        """Everything with state, by name."""
        return {"normalizer": self._module, "observations": self._moments}

    def follow(self, observations: np.ndarray | SideBySide) -> None:
        """Add the observations of an iteration, [N, D], to the statistics."""
        self._moments.update(observations)
        for numbers, normalizer in self._normalizers:
            normalizer.set(self._moments.mean[numbers], self._moments.std[numbers])

    def normalize_samples(self, samples: Samples) -> Samples:
        """The samples with normalised observations."""
        normalized = {name: samples[name].copy() for name in samples.keys() & _OBSERVATIONS}
        for numbers, normalizer in self._normalizers:
            layer = NormalizeLayer(**normalizer.views())
            for array in normalized.values():
                array[..., numbers] = layer.normalize(array[..., numbers])
        return samples | normalized

    def add_layer(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """The policy with the normalisation as its first layer."""
        return replace(snapshot, layers=(*layers_of(self._module), *snapshot.layers))
