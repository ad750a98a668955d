"""Any torch module, differentiated by torch, on the CPU or on another device, where a copy of it
gets the parameters and buffers before each pass; and losses written in torch. Results are arrays on
the CPU, so that only a network knows the device.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from flame_rl.learner.training.frames import Stacks
from flame_rl.learner.training.network import Gradient, Loss, LossResult, Network, Samples
from flame_rl.modules.layers import LayerModule, burning_in
from flame_rl.nets.kinds import LAYERS
from flame_rl.system.errors import UsageError

# Computes a module's outputs, [B, ...] each, from the samples as tensors.
Apply = Callable[[nn.Module, dict[str, Tensor]], tuple[Tensor, ...]]
# The most rows of a slice: few enough to fit in a cache and to divide a large minibatch among
# cores, many enough that Python costs little. The time of sequences depends on the longest one,
# hardly on their number: few slices, as large as memory allows.
_ROWS, _ROWS_OF_SEQUENCES = 2048, 16_384
# The most bytes of a slice: rows of convolutions are wide, and slices of fewer rows are faster.
_BYTES = 1 << 25
# On another device, slices only bound the memory. Their size changes the bits of results, so it
# must not depend on how much memory the device has.
_ROWS_ON_DEVICE, _BYTES_ON_DEVICE = 1 << 16, 1 << 30
# Buffers of flame_rl/modules/, which the learner sets between updates.
_CONSTANTS = ("mean", "std", "factor", "scale")


class AutogradNetwork(Network):
    """See `Network`. The module itself normalises observations.

    A module with a memory is unrolled over whole sequences from their first step; its samples have
    "time" among their columns, and perhaps "burnt_in", bool [B], see `burning_in`. Its inputs and
    outputs are [T, S, ...], T time steps of S sequences; shorter ones are padded at their ends.
    """

    def __init__(
        self, module: nn.Module, apply: Apply | None = None, device: torch.device | None = None
    ) -> None:
        """`apply` computes the outputs, or else the module's method `outputs`; on the `device` a
        copy of the module does, without one the module itself, on the CPU."""
        self._trained = module
        self._module = module if device is None else copy.deepcopy(module).to(device)
        self._device = torch.device("cpu") if device is None else device
        self._apply = apply or (lambda own, samples: own.outputs(samples))
        self._parameters = list(self._module.parameters())
        exported = [each.layer() for each in module.modules() if isinstance(each, LayerModule)]
        layers = [LAYERS[each.kind](**each.arrays) for each in exported if each.kind in LAYERS]
        self.remembers = any(layer.state and not layer.bounded for layer in layers)
        self.frames = max((layer.sizes().get("frames", 1) for layer in layers), default=1)
        rows, size = _ROWS_OF_SEQUENCES if self.remembers else _ROWS, _BYTES
        if device is not None:
            rows, size = _ROWS_ON_DEVICE, _BYTES_ON_DEVICE
        bytes_per_row = 4 * sum(sum(layer.sizes().values()) for layer in layers)
        self.slice_rows = max(1, min(rows, size // max(1, bytes_per_row)))
        # Other buffers may change in forward passes, as the counts of batch normalisation: their
        # bits depend on the order of the passes.
        buffers = {name.rpartition(".")[2] for name, _ in module.named_buffers()}
        self.parallel = device is None and buffers.issubset(_CONSTANTS)

    @torch.no_grad()
    def outputs(self, samples: Samples) -> tuple[np.ndarray, ...]:
        self._synchronize()
        outputs = self._compute(samples, tensors_of(samples, self._device))
        return tuple(map(to_array, outputs))

    def forward(self, samples: Samples) -> AutogradPass:
        self._synchronize()
        tensors = tensors_of(samples, self._device)
        # For `backward_inputs`, unless inputs are integers. A new tensor, because the caller's must
        # not keep the gradient flag.
        inputs = tensors["inputs"].detach()
        tensors["inputs"] = inputs.requires_grad_(inputs.is_floating_point())
        return AutogradPass(inputs, self._compute(samples, tensors), self._parameters)

    def _compute(self, samples: Samples, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The outputs, [B, ...] each, given the samples as arrays and as tensors."""
        if not self.remembers:
            return self._applied(tensors)
        time = samples["time"]
        lengths = np.diff(np.flatnonzero(time == 0), append=len(time))
        steps, count = int(lengths.max()), len(lengths)
        # The place of each row in [T, S], flattened.
        places = time.astype(np.int64) * count + np.arange(count).repeat(lengths)
        place = torch.from_numpy(places).to(self._device)
        padded = {name: _pad(column, place, steps, count) for name, column in tensors.items()}
        with burning_in(self._module, padded.pop("burnt_in", None)):
            outputs = self._applied(padded)
        return tuple(output.flatten(0, 1)[place] for output in outputs)

    def _applied(self, tensors: dict[str, Tensor]) -> Sequence[Tensor]:
        """The outputs that the module gives. Raises UsageError for something else."""
        outputs = self._apply(self._module, tensors)
        rows = tensors["inputs"].shape[: 1 + self.remembers]
        given = outputs if isinstance(outputs, tuple | list) else [outputs]
        fit = (isinstance(each, Tensor) and each.shape[: len(rows)] == rows for each in given)
        if given is outputs and all(fit):
            return outputs
        what = ", ".join(
            f"{type(each).__name__} {list(getattr(each, 'shape', []))}" for each in given
        )
        raise UsageError(
            f"model.py: {name_of(self._trained.outputs)} returned {what} for inputs of shape "
            f"{list(tensors['inputs'].shape)}, in place of a tuple of tensors with as many rows"
        )

    @torch.no_grad()
    def _synchronize(self) -> None:
        """Give the copy on another device the parameters and buffers that the module has now."""
        if self._module is self._trained:
            return
        trained = self._trained.state_dict()
        for name, own in self._module.state_dict().items():
            # By `data`, because an earlier pass may still be without its backward pass, which
            # autograd refuses where it has seen a tensor change.
            own.data.copy_(trained[name])


class AutogradPass:
    """See `Pass`."""

    def __init__(
        self, inputs: Tensor, outputs: tuple[Tensor, ...], parameters: list[nn.Parameter]
    ) -> None:
        self._inputs, self._outputs, self._parameters = inputs, outputs, parameters
        self.outputs = tuple(map(to_array, outputs))

    def backward(
        self, gradients: Sequence[Gradient | None], gradient: np.ndarray, again: bool = False
    ) -> None:
        """See `Pass.backward`. The gradient for an output may be None, which is 0; `again` says
        that another backward pass follows."""
        of_parameters = self._back(gradients, self._parameters, again)
        # As one array, because every copy from another device waits for it.
        gradient[...] = to_array(torch.cat([each.reshape(-1) for each in of_parameters]))

    def backward_inputs(self, gradients: Sequence[Gradient]) -> np.ndarray:
        (result,) = self._back(gradients, [self._inputs])
        return to_array(result)

    def _back(
        self, gradients: Sequence[Gradient | None], targets: list[Tensor], again: bool = False
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


def torch_loss(function: Callable[..., Tensor | dict[str, Tensor]]) -> Loss:
    """A `Loss` of a function in torch; also as a decorator.

        @torch_loss
        def squared_errors(samples, values):
            return (values - samples["targets"]) ** 2

    The function is called with samples and outputs as `Loss` is, but as tensors on the CPU, with
    integers as int64. It returns the loss of each sample, [B], or numbers by name, [B] each, with
    "loss" among them; another shape raises ValueError. Importance "weights" it neither gets nor
    needs: where samples have them, the loss and its gradients are multiplied by them. Torch
    differentiates the function alone, and not the network.
    """

    @wraps(function)
    def loss(samples: Samples, *outputs: np.ndarray) -> LossResult:
        tensors = tensors_of(samples, torch.device("cpu"))
        weights = tensors.pop("weights", None)
        leaves = [torch.from_numpy(output).requires_grad_() for output in outputs]
        with torch.enable_grad():
            result = function(tensors, *leaves)
            numbers = dict(result) if isinstance(result, dict) else {"loss": result}
            if numbers["loss"].shape != (len(outputs[0]),):
                raise ValueError(
                    f"{loss.__name__}: a loss of shape {tuple(numbers['loss'].shape)} for "
                    f"{len(outputs[0])} samples; return one number for each, without their mean"
                )
            if weights is not None:
                numbers["loss"] = weights * numbers["loss"]
            total = numbers["loss"].sum()
        gradients = [torch.zeros_like(leaf) for leaf in leaves]
        if total.requires_grad:
            gradients = torch.autograd.grad(total, leaves, materialize_grads=True)
        return (
            {name: number.detach().numpy() for name, number in numbers.items()},
            tuple(each.numpy() for each in gradients),
        )

    return loss


def name_of(function: Callable[..., object]) -> str:
    """The name of a user's function or method, with its file and line."""
    name = getattr(function, "__name__", repr(function))
    if (owner := getattr(function, "__self__", None)) is not None:
        name = f"{type(owner).__name__}.{name}"
    if (code := getattr(function, "__code__", None)) is not None:
        name += f" ({Path(code.co_filename).name}, line {code.co_firstlineno})"
    return name


def to_array(tensor: Tensor) -> np.ndarray:
    """A tensor of any device as an array."""
    return tensor.detach().cpu().numpy()


def tensors_of(samples: Samples, device: torch.device) -> dict[str, Tensor]:
    """The columns as tensors on the device; integers are int64, but for uint8, the numbers of
    pictures. With "inputs" that are `Stacks` comes "missing", which frames precede the episode."""
    # In a new thread, products would run on OpenMP's own number of threads until torch is asked.
    torch.get_num_threads()
    if isinstance(samples.get("inputs"), Stacks):
        samples = samples | {"missing": samples["inputs"].stacked()[1]}
    tensors = {n: torch.from_numpy(np.asarray(c)).to(device) for n, c in samples.items()}
    return {
        n: t if t.is_floating_point() or t.dtype in (torch.uint8, torch.bool) else t.long()
        for n, t in tensors.items()
    }


def _pad(column: Tensor, place: Tensor, steps: int, count: int) -> Tensor:
    """[B, ...] -> [steps, count, ...], with zeros where no row is."""
    padded = column.new_zeros((steps * count, *column.shape[1:]))
    return padded.index_copy(0, place, column).unflatten(0, (steps, count))
