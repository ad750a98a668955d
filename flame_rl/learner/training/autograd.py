"""Any torch module; torch differentiates it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.learner.training.frames import gathered
from flame_rl.learner.training.placed import Placed, fetched
from flame_rl.nets.kinds import LAYERS
from flame_rl.nets.network import Samples, Slope
from flame_rl.wire.messages import Layer

# Computes a module's outputs, [B, ...] each, from the samples as tensors.
Apply = Callable[[nn.Module, dict[str, Tensor]], tuple[Tensor, ...]]
# Few enough rows to fit in a cache and to divide a large minibatch among cores, many enough that
# Python costs little.
_SLICE_ROWS = 2048
# Convolutions have so many numbers in a row that fewer rows are fast; the bytes of all of them.
_SLICE_BYTES = 1 << 25
# Another device computes a slice with all that it has, and bounded memory is all that slices are
# for. Their size decides the bytes, so that it must not depend on the device's own memory.
_SLICE_ROWS_ELSEWHERE = 1 << 16
_SLICE_BYTES_ELSEWHERE = 1 << 30
# Buffers of model.py's modules, which the learner sets between updates.
_CONSTANTS = ("mean", "std", "factor", "scale")


class AutogradNetwork:
    """See `Network`. Observations reach the module as they are."""

    remembers = False

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
        placed = self._placed
        placed.follow()
        outputs = self._apply(placed.module, tensors_of(samples, placed.device))
        return tuple(map(fetched, outputs))

    def forward(self, samples: Samples) -> AutogradPass:
        placed = self._placed
        placed.follow()
        tensors = tensors_of(samples, placed.device)
        inputs = tensors["inputs"] = tracked(tensors["inputs"])
        return AutogradPass(inputs, self._apply(placed.module, tensors), self._parameters)


class AutogradPass:
    """See `Pass`."""

    def __init__(
        self, inputs: Tensor, outputs: tuple[Tensor, ...], parameters: list[nn.Parameter]
    ) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._parameters = parameters
        self.outputs = tuple(map(fetched, outputs))

    def to_parameters(self, slopes: tuple[Slope, ...], gradient: np.ndarray) -> None:
        gradient[...] = _flat(self._back(slopes, self._parameters))

    def to_parameters_of_each(
        self, slopes: Sequence[dict[int, Slope]], gradients: np.ndarray
    ) -> None:
        """Write the gradients of K losses, each summed over the samples, to the rows of
        `gradients`, float32 [K, P].

        Args:
            slopes: for each loss its slopes, by the places of the outputs that it is a loss of.
            gradients: overwritten; a row is as in `Pass.to_parameters`.
        """
        for place, (own, gradient) in enumerate(zip(slopes, gradients, strict=True)):
            every = tuple(own.get(output) for output in range(len(self._outputs)))
            shares = self._back(every, self._parameters, again=place + 1 < len(slopes))
            gradient[...] = _flat(shares)

    def to_inputs(self, slopes: tuple[Slope, ...]) -> np.ndarray:
        (slope,) = self._back(slopes, [self._inputs])
        return fetched(slope)

    def _back(
        self, slopes: tuple[Slope | None, ...], targets: list[Tensor], again: bool = False
    ) -> tuple[Tensor, ...]:
        # A scalar with these slopes: given the slopes, torch imports sympy to check their shapes,
        # which takes half a second.
        wanted = [target for target in targets if target.requires_grad]
        total = sum(
            (output * torch.as_tensor(slope, dtype=output.dtype, device=output.device)).sum()
            for output, slope in zip(self._outputs, slopes, strict=True)
            # Not the entropy of a fixed distribution.
            if slope is not None and output.requires_grad
        )
        if not wanted or not isinstance(total, Tensor):
            return tuple(map(torch.zeros_like, targets))
        found = iter(torch.autograd.grad(total, wanted, retain_graph=again, materialize_grads=True))
        # A parameter that somebody has frozen stays as it is.
        return tuple(next(found) if t.requires_grad else torch.zeros_like(t) for t in targets)


def _flat(shares: Sequence[Tensor]) -> np.ndarray:
    # As one array, because each that comes from another device is waited for.
    return fetched(torch.cat([share.reshape(-1) for share in shares]))


def tracked(inputs: Tensor) -> Tensor:
    """The inputs so that the loss's slope for them can be asked for, unless they are integers."""
    # A tensor of its own, because a gradient flag would stay with the caller's.
    return inputs.detach().requires_grad_(inputs.is_floating_point())


def slice_rows(module: nn.Module, most: int, device: torch.device | None) -> int:
    """How many rows are computed at once: `most`, on another device more, or fewer where
    convolutions have so many numbers that these would take much memory."""
    limit = _SLICE_BYTES
    if device is not None:
        most, limit = _SLICE_ROWS_ELSEWHERE, _SLICE_BYTES_ELSEWHERE
    layers = [LAYERS[layer.kind](**layer.arrays) for layer in known(module)]
    numbers = sum(sum(layer.sizes().values()) for layer in layers)
    return min(most, max(1, limit // (4 * numbers))) if numbers else most


def changes_nothing(module: nn.Module) -> bool:
    """Whether forward passes are sure to leave the module as it is: it has no buffers but those of
    model.py. Batch normalisation, for example, counts in buffers, whose bits depend on the order of
    the passes."""
    return all(name.rpartition(".")[2] in _CONSTANTS for name, _ in module.named_buffers())


def frames_of(module: nn.Module) -> int:
    """How many observations are one input; see `Network`."""
    sizes = [layer.arrays["size"] for layer in known(module) if layer.kind == "frames"]
    return max((int(count) for _, count in sizes), default=1)


def known(module: nn.Module) -> list[Layer]:
    """The layers of the module that actors know."""
    # Of the class: a user's module may have a submodule of that name.
    layers = [part.layer() for part in module.modules() if hasattr(type(part), "layer")]
    return [layer for layer in layers if layer.kind in LAYERS]


def tensors_of(samples: Samples, device: torch.device) -> dict[str, Tensor]:
    """The columns as tensors on the device; integers are int64, but for uint8, the numbers of
    pictures."""
    # In a new thread, products would run on OpenMP's own number of threads until torch is asked for
    # its number.
    torch.get_num_threads()
    tensors = {n: torch.from_numpy(gathered(column)).to(device) for n, column in samples.items()}
    return {
        n: t if t.is_floating_point() or t.dtype == torch.uint8 else t.long()
        for n, t in tensors.items()
    }
