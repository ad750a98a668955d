"""What a loss and an optimiser see of a network.

A loss is a function of a network's outputs, and knows its own derivative: it returns numbers for
each sample, and the slope of its "loss" with respect to each output. The network carries the slopes
back to its parameters, by torch's autograd (autograd.py) or by hand (by_hand.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

# Columns by name, all of B rows: "inputs", as `Network.prepare` returns them, and what else the
# network and the loss need. Inputs may be `Stacks` (learner/training/frames.py) in place of an
# array. Where rows are steps of sequences, one sequence after another, "time" counts the steps of
# each sequence from 0, and `split` keeps sequences whole.
Samples = dict[str, np.ndarray]
# Where a head is given nothing but the network's output.
NO_COLUMNS: Samples = {}
# The derivative of each sample's loss with respect to one of its outputs: an array in the output's
# shape, or one number for all.
Slope = np.ndarray | float


# Adam, an epoch, and how it descends -> the numbers of its minibatches; see
# `flame_rl.learner.training.minibatches.descend`.
EpochFunction = Callable[..., list[dict[str, float]]]


class Loss(Protocol):
    """A loss of single samples; its mean over a minibatch is what a gradient step descends."""

    def __call__(
        self, samples: Samples, *outputs: np.ndarray
    ) -> tuple[dict[str, np.ndarray], tuple[Slope, ...]]:
        """
        Args:
            samples: B samples.
            outputs: the network's outputs for them, float32 [B, ...] each.

        Returns:
            Numbers by name, float32 [B] each, and the slope of "loss" for each output.
        """
        ...


@dataclass(frozen=True)
class ElementwiseLoss:
    """A loss that sees each sample alone, and is written in NumPy's elementwise functions of
    numbers, so that it may be compiled together with its network.

    Attributes:
        function: the loss, whose outputs and columns are [B] each.
        columns: those of the samples that it uses, where they are there.
    """

    function: Loss
    columns: tuple[str, ...]

    def __call__(
        self, samples: Samples, *outputs: np.ndarray
    ) -> tuple[dict[str, np.ndarray], tuple[Slope, ...]]:
        return self.function(samples, *outputs)


class Pass(Protocol):
    """A forward pass through a network, for one backward pass.

    Attributes:
        outputs: the network's outputs, float32 [B, ...] each.
    """

    outputs: tuple[np.ndarray, ...]

    def to_parameters(
        self, slopes: tuple[Slope, ...], gradient: np.ndarray, halves: bool = False
    ) -> None:
        """Write the gradient of a loss, summed over the samples, to `gradient`.

        Args:
            slopes: the loss's slope for each output.
            gradient: float32 [P], overwritten: all parameters in order, each flat.
            halves: whether each half of the samples may be computed on a core of its own; never
                within `slices.at_once`. It decides the last bits of the sum.
        """
        ...

    def to_inputs(self, slopes: tuple[Slope, ...], rows: np.ndarray | None = None) -> np.ndarray:
        """The loss's slope for "inputs", float32 [B, ...]; with `rows`, int64 [K], `slopes` are
        those for the outputs of these samples, and the result is that for their inputs."""
        ...


class Network(Protocol):
    """A network and its derivative.

    Attributes:
        slice_rows: the number of rows that is computed at once for best speed.
        remembers: whether outputs depend on all steps before, so that samples must be sequences.
        frames: the number of observations, the latest and those before it, in one input.
        parallel: whether several cores may compute slices at the same time.
    """

    slice_rows: int
    remembers: bool
    frames: int
    parallel: bool

    @property
    def output_rows(self) -> int:
        """The most rows that one call of `outputs` gets for best speed."""
        return self.slice_rows

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        """Observations, float32 or uint8 [B, D] or `Stacks` of them, as the network takes them:
        normalised, for example. Stale once the module's buffers change."""
        ...

    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        """The network's outputs, without a gradient."""
        ...

    def forward(self, samples: Samples) -> Pass:
        """The network's outputs, for a backward pass."""
        ...

    def differentiate(self, loss: Loss, samples: Samples, gradient: np.ndarray) -> dict[str, float]:
        """Write the gradient of the loss, summed over the samples, to `gradient`; returns the sums
        of the loss's numbers. See `Pass.to_parameters`."""
        forward = self.forward(samples)
        numbers, slopes = loss(samples, *forward.outputs)
        forward.to_parameters(slopes, gradient)
        return sums_of(numbers)

    def epochs_by_itself(self, loss: Loss, columns: Samples) -> EpochFunction | None:
        """What trains the network on a loss for whole epochs, without Python, so that another
        thread may use it; None: nothing does. `columns` are those of the samples."""
        return None


def spread(slopes: tuple[Slope, ...], rows: np.ndarray, count: int) -> tuple[Slope, ...]:
    """Slopes for some rows of outputs, [K, ...], as those for all `count` rows; 0 elsewhere."""
    whole = []
    for slope in slopes:
        if isinstance(slope, np.ndarray):
            own = slope
            slope = np.zeros((count, *own.shape[1:]), own.dtype)
            slope[rows] = own
        whole.append(slope)
    return tuple(whole)


def sums_of(numbers: dict[str, np.ndarray]) -> dict[str, float]:
    """The sums over all samples, of numbers of each, [B]."""
    return {name: float(np.add.reduce(values)) for name, values in numbers.items()}


def split(samples: Samples, count: int) -> list[Samples]:
    """Divide the samples into `count` chunks of almost even size, without copying; into fewer where
    there are fewer sequences."""
    rows = rows_of(samples)
    ends = [rows * place // count for place in range(count + 1)]
    if "time" in samples:
        starts = np.append(np.flatnonzero(samples["time"] == 0), rows)
        ends = np.unique([starts[np.abs(starts - end).argmin()] for end in ends]).tolist()
    return [
        {name: column[start:stop] for name, column in samples.items()}
        for start, stop in itertools.pairwise(ends)
    ]


def rows_of(samples: Samples) -> int:
    """B."""
    return len(samples["inputs"])
