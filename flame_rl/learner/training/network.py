"""What a loss and an optimiser see of a network.

A loss is a function of a network's outputs, and knows its own derivative: it returns numbers for
each sample, and the gradient of its "loss" for each output. The network carries these back to its
parameters, by torch's autograd (autograd.py) or by compiled code (learner/compiled/).
"""

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
# The derivative of each sample's loss with respect to one of its outputs: an array in the output's
# shape, or one number for all.
Gradient = np.ndarray | float
# Numbers of each sample by name.
Numbers = dict[str, np.ndarray]
# What a loss returns: numbers, float32 [B] each, and the gradient of "loss" for each output.
LossResult = tuple[Numbers, tuple[Gradient, ...]]
# A loss of single samples; its mean over a minibatch is what a gradient step descends. It is called
# with B samples and each of the network's outputs for them, float32 [B, ...], as arrays, and is
# traced by nothing; `torch_loss` makes one of a function in torch, which finds its gradient.
Loss = Callable[..., LossResult]


@dataclass(frozen=True)
class CompiledLoss:
    """A loss with two bodies: the function, wherever torch has the network, and one in
    learner/compiled/core.c, which compiled networks run. tests/learner/test_compiled.py holds both
    together: whoever changes one changes the other.

    Attributes:
        kind: what the library calls it: policy_gradient, clipped or squared_error.
        numbers: names of the loss's numbers, in the library's order.
    """

    function: Loss
    kind: str
    numbers: tuple[str, ...]
    clip_range: float = 0.0
    entropy_coefficient: float = 0.0

    def __call__(self, samples: Samples, *outputs: np.ndarray) -> LossResult:
        return self.function(samples, *outputs)


class Pass(Protocol):
    """A forward pass through a network, for one backward pass. `outputs`: the network's outputs,
    float32 [B, ...] each."""

    outputs: tuple[np.ndarray, ...]

    def backward(self, gradients: tuple[Gradient, ...], gradient: np.ndarray) -> None:
        """Write the gradient of a loss for the parameters, summed over the samples, to `gradient`,
        float32 [P]: all parameters in order, each flat. `gradients` are those for each output."""

    def backward_inputs(self, gradients: tuple[Gradient, ...]) -> np.ndarray:
        """The gradient of a loss for "inputs", float32 [B, ...], given those for each output."""


class Network(Protocol):
    """Computes a torch module and its derivative, by torch or by compiled code, which inherit it.

    Attributes:
        slice_rows: the number of rows that is computed at once for best speed.
        remembers: whether outputs depend on all steps before, so that samples must be sequences.
        frames: the number of observations, the latest and those before it, in one input.
        parallel: whether several cores may compute slices at the same time.
        compiled: whether it has `run_epoch`, one call of compiled code for a `CompiledLoss`.
    """

    slice_rows: int
    remembers: bool = False
    frames: int = 1
    parallel: bool = True
    compiled: bool = False

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        """Observations, float32 or uint8 [B, D] or `Stacks` of them, as the network takes them:
        normalised, for example. Stale once the module's buffers change."""
        return observations

    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        """The network's outputs, without a gradient."""
        return self.forward(samples).outputs

    def forward(self, samples: Samples) -> Pass:
        """The network's outputs, for a backward pass."""

    def differentiate(self, loss: Loss, samples: Samples, gradient: np.ndarray) -> dict[str, float]:
        """Write the gradient of the loss, summed over the samples, to `gradient`; returns the sums
        of the loss's numbers. See `Pass.backward`."""
        forward = self.forward(samples)
        numbers, gradients = loss(samples, *forward.outputs)
        forward.backward(gradients, gradient)
        return sums_of(numbers)


def sums_of(numbers: dict[str, np.ndarray]) -> dict[str, float]:
    """The sums over all samples, of numbers of each, [B]."""
    return {name: float(np.add.reduce(values)) for name, values in numbers.items()}


def split(samples: Samples, count: int) -> list[Samples]:
    """Divide the samples into `count` chunks of almost even size, without copying; into fewer where
    there are fewer sequences."""
    rows = len(samples["inputs"])
    ends = [rows * place // count for place in range(count + 1)]
    if "time" in samples:
        starts = np.append(np.flatnonzero(samples["time"] == 0), rows)
        ends = np.unique([starts[np.abs(starts - end).argmin()] for end in ends]).tolist()
    return [
        {name: column[start:stop] for name, column in samples.items()}
        for start, stop in itertools.pairwise(ends)
    ]
