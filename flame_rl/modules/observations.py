"""Preprocessing of observations: modules that normalise and stack them before the layers."""

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from flame_rl.modules.layers import Branches, LayerModule
from flame_rl.nets.layers import OBSERVATION_CLIP

# The least sides of a large picture, for the three convolutions of the usual Atari network.
_LEAST_OF_LARGE = 36


class FrameStack(LayerModule):
    """The last observations, interleaved: [..., count, D] -> [..., D * count], where the `count`
    values of each number follow each other. In pictures, they become further channels. The actors'
    layer gets one observation at a time, and keeps those before it."""

    kind = "frames"

    def __init__(self, observation_dim: int, count: int) -> None:
        super().__init__()
        self.size = observation_dim, count

    def forward(self, observations: Tensor) -> Tensor:
        return observations.transpose(-1, -2).flatten(-2)

    def arrays(self) -> dict[str, Tensor]:
        return {"size": torch.tensor(self.size, device="cpu")}


class ObservationNormalizer(LayerModule):
    """Brings observations to mean 0 and standard deviation 1, clipped at `OBSERVATION_CLIP`. It
    belongs to the network, so that a policy always acts with the statistics of its training. The
    learner sets these from all observations that it has seen. `observation_dim`: D."""

    kind = "normalize"

    def __init__(self, observation_dim: int) -> None:
        super().__init__()
        self.observation_dim = observation_dim
        self.register_buffer("mean", torch.zeros(observation_dim))
        self.register_buffer("std", torch.ones(observation_dim))

    def set(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Set the statistics of observations, both float64 [D]."""
        self.mean.copy_(torch.from_numpy(mean))
        self.std.copy_(torch.from_numpy(std))

    def forward(self, observation: Tensor) -> Tensor:
        """float32 [..., D] -> [..., D]."""
        normalized = (observation - self.mean) / self.std
        return normalized.clamp(-OBSERVATION_CLIP, OBSERVATION_CLIP)

    def arrays(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "std": self.std}


class Scaling(LayerModule):
    """Scales observations of one byte by their greatest number: uint8 [B, D] -> float32, 0 to 1."""

    kind = "scale"

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.register_buffer("factor", torch.full((1,), 1 / _greatest(space)), persistent=False)

    def forward(self, observation: Tensor) -> Tensor:
        return observation * self.factor

    def arrays(self) -> dict[str, Tensor]:
        return {"factor": self.factor}


class Centering(LayerModule):
    """Subtracts the mean picture, and divides all numbers by the same standard deviation: most of a
    picture is a background that would drown what moves. The learner sets both from all pictures.
    `observation_dim`: D."""

    kind = "center"

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.observation_dim = math.prod(space.shape)
        # So that numbers are 100 at most, however little changes from picture to picture.
        self._least_std = _greatest(space) / 100
        self.register_buffer("mean", torch.zeros(self.observation_dim))
        self.register_buffer("factor", torch.full((1,), 1 / _greatest(space)))

    def set(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Set the statistics of each number of the pictures, both float64 [D]."""
        self.mean.copy_(torch.from_numpy(mean))
        self.factor.fill_(1 / max(self._least_std, np.sqrt(np.mean(std * std))))

    def forward(self, observation: Tensor) -> Tensor:
        """uint8 [..., D] -> float32 [..., D]."""
        return (observation - self.mean) * self.factor

    def arrays(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "factor": self.factor}


def normalizers_of(
    *modules: nn.Module, start: int = 0
) -> list[tuple[slice, ObservationNormalizer | Centering]]:
    """The modules inside these whose statistics the learner sets, and the numbers of an observation
    that each of them gets; `start` is the first that the modules get."""
    found: list[tuple[slice, ObservationNormalizer | Centering]] = []
    for module in modules:
        if isinstance(module, ObservationNormalizer | Centering):
            found.append((slice(start, start + module.observation_dim), module))
        elif isinstance(module, Branches):
            firsts = np.cumsum((start, *module.widths)).tolist()
            for first, branch in zip(firsts, module.branches, strict=False):
                found += normalizers_of(branch, start=first)
        else:
            found += normalizers_of(*module.children(), start=start)
    return found


def is_large(size: tuple[int, int, int] | None) -> bool:
    """Whether a picture of that `picture_size` is larger than those of games on small boards."""
    return size is not None and min(size[:2]) >= _LEAST_OF_LARGE


def _greatest(space: spaces.Box) -> int:
    """The greatest of the numbers that observations of one byte may have; 1 if that is 0."""
    return max(1, int(space.high.max()))
