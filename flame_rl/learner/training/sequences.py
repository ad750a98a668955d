"""Torch modules with a memory, unrolled over whole sequences from their first step; torch
differentiates them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.learner.training.autograd import (
    Apply,
    AutogradPass,
    changes_nothing,
    frames_of,
    known,
    slice_rows,
    tensors_of,
    tracked,
)
from flame_rl.learner.training.placed import Placed, fetched
from flame_rl.nets.kinds import LAYERS
from flame_rl.nets.network import Samples

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

    def __init__(self, module: nn.Module, apply: Apply, device: torch.device | None = None) -> None:
        """`device` is as for `Placed`."""
        self._placed = Placed(module, device)
        self._apply = apply
        self._parameters = list(self._placed.module.parameters())
        self.slice_rows = slice_rows(module, _SLICE_ROWS, device)
        self.frames = frames_of(module)
        self.parallel = device is None and changes_nothing(module)

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        return observations

    @torch.no_grad()
    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        time, tensors = self._divided(samples)
        return tuple(map(fetched, self._unrolled(time, tensors)))

    def forward(self, samples: Samples) -> AutogradPass:
        time, tensors = self._divided(samples)
        inputs = tensors["inputs"] = tracked(tensors["inputs"])
        return AutogradPass(inputs, self._unrolled(time, tensors), self._parameters)

    def _divided(self, samples: Samples) -> tuple[np.ndarray, dict[str, Tensor]]:
        """The column "time", and the others on the device."""
        others = {name: column for name, column in samples.items() if name != "time"}
        return samples["time"], tensors_of(others, self._placed.device)

    def _unrolled(self, time: np.ndarray, samples: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The outputs, [B, ...] each."""
        self._placed.follow()
        lengths = np.diff(np.flatnonzero(time == 0), append=len(time))
        steps, count = int(lengths.max()), len(lengths)
        # Of each row, in time steps by sequences made flat.
        places = time.astype(np.int64) * count + np.arange(count).repeat(lengths)
        place = torch.from_numpy(places).to(self._placed.device)
        padded = {name: _padded(column, place, steps, count) for name, column in samples.items()}
        outputs = self._apply(self._placed.module, padded)
        return tuple(output.flatten(0, 1)[place] for output in outputs)


def _padded(column: Tensor, place: Tensor, steps: int, count: int) -> Tensor:
    """[B, ...] -> [steps, count, ...], with zeros where no row is."""
    padded = column.new_zeros((steps * count, *column.shape[1:]))
    return padded.index_copy(0, place, column).unflatten(0, (steps, count))
