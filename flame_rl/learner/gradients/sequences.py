"""Torch modules with a memory, unrolled over whole sequences from their first step; torch
differentiates them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.actor.policy.layers import LAYERS
from flame_rl.learner.gradients.autograd import (
    Apply,
    AutogradPass,
    frames_of,
    known,
    slice_rows,
    tensors_of,
    tracked,
)
from flame_rl.learner.gradients.network import Samples

# A slice takes as long as its longest sequence has steps, nearly regardless of how many sequences
# there are: as few slices as memory allows.
_SLICE_ROWS = 16_384


def remembers(module: nn.Module) -> bool:
    """Whether a layer of the module remembers the whole episode where it acts."""
    kinds = [LAYERS[layer.kind] for layer in known(module)]
    return any(kind.state is not None and not kind.bounded for kind in kinds)


class SequenceNetwork:
    """See `Network`. Samples are sequences, with "time" among their columns.

    The module takes time steps by sequences, [T, S, ...], of which shorter sequences are padded
    at their ends; its outputs are [T, S, ...], too.
    """

    remembers = True

    def __init__(self, module: nn.Module, apply: Apply) -> None:
        self._module = module
        self._apply = apply
        self._parameters = list(module.parameters())
        self.slice_rows = slice_rows(module, _SLICE_ROWS)
        self.frames = frames_of(module)

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        return observations

    @torch.no_grad()
    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        return tuple(output.numpy() for output in self._unrolled(tensors_of(samples)))

    def forward(self, samples: Samples) -> AutogradPass:
        tensors = tensors_of(samples)
        inputs = tensors["inputs"] = tracked(tensors["inputs"])
        return AutogradPass(inputs, self._unrolled(tensors), self._parameters)

    def _unrolled(self, samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The outputs, [B, ...] each."""
        time = samples.pop("time")
        starts = torch.cat([torch.nonzero(time == 0)[:, 0], torch.tensor([len(time)])])
        lengths = starts.diff()
        steps, count = int(lengths.max()), len(lengths)
        # Of each row, in time steps by sequences made flat.
        place = time * count + torch.arange(count).repeat_interleave(lengths)
        padded = {name: _padded(column, place, steps, count) for name, column in samples.items()}
        outputs = self._apply(self._module, padded)
        return tuple(output.flatten(0, 1)[place] for output in outputs)


def _padded(column: Tensor, place: Tensor, steps: int, count: int) -> Tensor:
    """[B, ...] -> [steps, count, ...], with zeros where no row is."""
    padded = column.new_zeros((steps * count, *column.shape[1:]))
    return padded.index_copy(0, place, column).unflatten(0, (steps, count))
