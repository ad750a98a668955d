"""A loss's gradient, slice by slice: bounded memory, all cores, and the same bits on any number.

torch's own threads divide a sum among the cores, so that its last bits depend on how many those
are. With them set to one (run/trainer.py does), one thread computes a slice here, several slices at
a time, and the slices are added in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

from flame_rl.system.cores import available_cores

# Rows in a slice, at most. Few enough to fit in a cache, and for a large minibatch to be several
# slices; enough that Python costs little.
SLICE_STEPS = 2048


def accumulate_gradients(
    parameters: Sequence[torch.nn.Parameter],
    index: Tensor,
    loss: Callable[[Tensor], dict[str, Tensor]],
) -> dict[str, float]:
    """Add the gradient of the loss over all steps of `index` to every parameter's `.grad`.

    Args:
        parameters: to differentiate by; each must take part in the loss.
        index: int64 [B], the steps.
        loss: numbers by name for a part of `index`; "loss" is differentiated. Each is a share
            that is added to those of the other parts, so a mean is already divided by B.

    Returns:
        The sums of the shares by name.
    """

    def differentiate(part: Tensor) -> tuple[tuple[Tensor, ...], dict[str, float]]:
        shares = loss(part)
        numbers = {name: share.item() for name, share in shares.items()}
        return torch.autograd.grad(shares["loss"], parameters), numbers

    def add(gradients: tuple[Tensor, ...]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad.add_(gradient)

    parts = even_slices(index)
    if len(parts) == 1:
        gradients, totals = differentiate(index)
        add(gradients)
        return totals
    cores = available_cores()
    totals: dict[str, float] = {}
    # As many at a time as there are cores: a finished slice's gradient takes memory, too.
    for first in range(0, len(parts), cores):
        for gradients, more in threads(cores).map(differentiate, parts[first : first + cores]):
            add(gradients)
            totals = {name: totals.get(name, 0.0) + value for name, value in more.items()}
    return totals


@cache
def threads(count: int) -> ThreadPoolExecutor:
    """`count` threads, kept: an update needs them a hundred times."""
    return ThreadPoolExecutor(count)


def even_slices(rows: Tensor) -> tuple[Tensor, ...]:
    """The rows in as few slices of at most `SLICE_STEPS` as possible, of even size."""
    return rows.tensor_split(max(1, -(-len(rows) // SLICE_STEPS)))


def without_gradient(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """The function of all rows, slice by slice, several at a time.

    Args:
        function: of some rows, [B, ...] -> float32 [B], each row by itself.
        rows: [N, ...].
    """

    @torch.no_grad()
    def evaluate(part: Tensor) -> Tensor:
        return function(part)

    parts = even_slices(rows)
    if len(parts) == 1:
        return evaluate(rows)
    return torch.cat(list(threads(available_cores()).map(evaluate, parts)))
