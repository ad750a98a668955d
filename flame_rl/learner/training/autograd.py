"""Any torch module, differentiated by torch, on the CPU or on another device.

Parameters, Adam, checkpoints and snapshots stay on the CPU. On another device a copy of the module,
its twin, computes: it gets the module's parameters and buffers before each pass, and its results
come back as arrays, so that only a network knows the device.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.learner.training.frames import Stacks, as_array
from flame_rl.learner.training.network import Gradient, Network, Samples
from flame_rl.modules.layers import LayerModule
from flame_rl.modules.recurrent import burning_in
from flame_rl.nets.kinds import LAYERS
from flame_rl.nets.layers import LayerKind

# Computes a module's outputs, [B, ...] each, from the samples as tensors.
Apply = Callable[[nn.Module, dict[str, Tensor]], tuple[Tensor, ...]]
# The most bytes of a slice: rows of convolutions are wide, and slices of fewer rows are faster.
_SLICE_BYTES = 1 << 25
# On another device, slices only bound the memory. Their size changes the bits of results, so it
# must not depend on how much memory the device has.
_SLICE_ROWS_ELSEWHERE = 1 << 16
_SLICE_BYTES_ELSEWHERE = 1 << 30
# Buffers of flame_rl/modules/, which the learner sets between updates.
_CONSTANTS = ("mean", "std", "factor", "scale")


class AutogradNetwork(Network):
    """See `Network`. The module itself normalises observations."""

    remembers = False
    # Few enough rows to fit in a cache and to divide a large minibatch among cores, many enough
    # that Python costs little.
    most_rows = 2048

    def __init__(
        self, module: nn.Module, apply: Apply | None = None, device: torch.device | None = None
    ) -> None:
        """
        Args:
            module: any.
            apply: computes its outputs; None: its method `outputs` does.
            device: that of a twin; None: the module itself computes, on the CPU.
        """
        self._trained = module
        self._module = module if device is None else copy.deepcopy(module).to(device)
        self._device = torch.device("cpu") if device is None else device
        self._apply = apply or (lambda twin, samples: twin.outputs(samples))
        self._parameters = list(self._module.parameters())
        layers = layers_in(module)
        self.slice_rows = _slice_rows(layers, self.most_rows, device)
        self.frames = max((layer.sizes().get("frames", 1) for layer in layers), default=1)
        self.parallel = device is None and changes_nothing(module)

    def prepare(self, observations: np.ndarray) -> np.ndarray:
        return observations

    @torch.no_grad()
    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        self._follow()
        outputs = self._compute(samples, tensors_of(samples, self._device))
        return tuple(map(to_array, outputs))

    def forward(self, samples: Samples) -> AutogradPass:
        self._follow()
        tensors = tensors_of(samples, self._device)
        # For `backward_inputs`, unless inputs are integers. A new tensor, because the caller's must
        # not keep the gradient flag.
        inputs = tensors["inputs"].detach()
        tensors["inputs"] = inputs.requires_grad_(inputs.is_floating_point())
        return AutogradPass(inputs, self._compute(samples, tensors), self._parameters)

    def _compute(self, samples: Samples, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The outputs, [B, ...] each, given the samples as arrays and as tensors."""
        return self._apply(self._module, tensors)

    @torch.no_grad()
    def _follow(self) -> None:
        """Give the twin the parameters and buffers that the module has now."""
        if self._module is self._trained:
            return
        given = self._trained.state_dict()
        for name, own in self._module.state_dict().items():
            # By `data`, because an earlier pass may still be without its backward pass, which
            # autograd refuses where it has seen a tensor change.
            own.data.copy_(given[name])


class SequenceNetwork(AutogradNetwork):
    """See `Network`. A module with a memory, unrolled over whole sequences from their first step;
    samples have "time" among their columns, and perhaps "burnt_in", bool [B], see `burning_in`.

    The module's inputs and outputs are [T, S, ...], T time steps of S sequences; shorter sequences
    are padded at their ends.
    """

    remembers = True
    # The time of a slice depends on its longest sequence, hardly on the number of sequences: few
    # slices, as large as memory allows.
    most_rows = 16_384

    def _compute(self, samples: Samples, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
        time = samples["time"]
        lengths = np.diff(np.flatnonzero(time == 0), append=len(time))
        steps, count = int(lengths.max()), len(lengths)
        # The place of each row in [T, S], flattened.
        places = time.astype(np.int64) * count + np.arange(count).repeat(lengths)
        place = torch.from_numpy(places).to(self._device)
        padded = {name: _pad(column, place, steps, count) for name, column in tensors.items()}
        with burning_in(self._module, padded.pop("burnt_in", None)):
            outputs = super()._compute(samples, padded)
        return tuple(output.flatten(0, 1)[place] for output in outputs)


class AutogradPass:
    """See `Pass`."""

    def __init__(
        self, inputs: Tensor, outputs: tuple[Tensor, ...], parameters: list[nn.Parameter]
    ) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._parameters = parameters
        self.outputs = tuple(map(to_array, outputs))

    def backward(self, gradients: tuple[Gradient, ...], gradient: np.ndarray) -> None:
        gradient[...] = _flat(self._back(gradients, self._parameters))

    def backward_one(
        self, gradients: dict[int, Gradient], gradient: np.ndarray, last: bool
    ) -> None:
        """Write the gradient of one loss of several, summed over the samples.

        Args:
            gradients: by the place of each output that the loss takes, the gradient for it.
            gradient: float32 [P], overwritten, as in `Pass.backward`.
            last: whether no other follows.
        """
        every = tuple(gradients.get(output) for output in range(len(self._outputs)))
        gradient[...] = _flat(self._back(every, self._parameters, again=not last))

    def backward_inputs(self, gradients: tuple[Gradient, ...]) -> np.ndarray:
        (result,) = self._back(gradients, [self._inputs])
        return to_array(result)

    def _back(
        self, gradients: tuple[Gradient | None, ...], targets: list[Tensor], again: bool = False
    ) -> tuple[Tensor, ...]:
        # The gradient of a scalar with these gradients: given them, torch imports sympy to check
        # their shapes, which takes half a second.
        wanted = [target for target in targets if target.requires_grad]
        total = sum(
            (output * torch.as_tensor(each, dtype=output.dtype, device=output.device)).sum()
            for output, each in zip(self._outputs, gradients, strict=True)
            # The entropy of a fixed distribution requires no gradient.
            if each is not None and output.requires_grad
        )
        if not wanted or not isinstance(total, Tensor):
            return tuple(map(torch.zeros_like, targets))
        found = iter(torch.autograd.grad(total, wanted, retain_graph=again, materialize_grads=True))
        # A frozen parameter stays as it is.
        return tuple(next(found) if t.requires_grad else torch.zeros_like(t) for t in targets)


def to_array(tensor: Tensor) -> np.ndarray:
    """A tensor of any device as an array."""
    return tensor.detach().cpu().numpy()


def layers_in(module: nn.Module) -> list[LayerKind]:
    """The layers in the module, of those kinds that actors know."""
    layers = [each.layer() for each in module.modules() if isinstance(each, LayerModule)]
    return [LAYERS[layer.kind](**layer.arrays) for layer in layers if layer.kind in LAYERS]


def changes_nothing(module: nn.Module) -> bool:
    """Whether forward passes are sure to leave the module as it is: it has no buffers but those of
    flame_rl/modules/. Batch normalisation, for example, counts in buffers, whose bits depend on the
    order of the passes."""
    return all(name.rpartition(".")[2] in _CONSTANTS for name, _ in module.named_buffers())


def tensors_of(samples: Samples, device: torch.device) -> dict[str, Tensor]:
    """The columns as tensors on the device; integers are int64, but for uint8, the numbers of
    pictures. With "inputs" that are `Stacks` comes "missing", which of their frames precede the
    episode."""
    # In a new thread, products would run on OpenMP's own number of threads until torch is asked for
    # its number.
    torch.get_num_threads()
    if isinstance(samples.get("inputs"), Stacks):
        samples = samples | {"missing": samples["inputs"].missing()}
    tensors = {n: torch.from_numpy(as_array(c)).to(device) for n, c in samples.items()}
    return {
        n: t if t.is_floating_point() or t.dtype in (torch.uint8, torch.bool) else t.long()
        for n, t in tensors.items()
    }


def _slice_rows(layers: Sequence[LayerKind], most: int, device: torch.device | None) -> int:
    """The number of rows in a slice: `most`, more on another device, or fewer where convolutions
    would take much memory."""
    limit = _SLICE_BYTES
    if device is not None:
        most, limit = _SLICE_ROWS_ELSEWHERE, _SLICE_BYTES_ELSEWHERE
    numbers = sum(sum(layer.sizes().values()) for layer in layers)
    return min(most, max(1, limit // (4 * numbers))) if numbers else most


def _flat(shares: Sequence[Tensor]) -> np.ndarray:
    # As one array, because every copy from another device waits for it.
    return to_array(torch.cat([share.reshape(-1) for share in shares]))


def _pad(column: Tensor, place: Tensor, steps: int, count: int) -> Tensor:
    """[B, ...] -> [steps, count, ...], with zeros where no row is."""
    padded = column.new_zeros((steps * count, *column.shape[1:]))
    return padded.index_copy(0, place, column).unflatten(0, (steps, count))
