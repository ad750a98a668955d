"""A loss's gradient, slice by slice: bounded memory, all cores busy, the same bits on any number of
cores.

torch's own threads divide a sum among the cores, so that its last bits depend on their number. With
one torch thread (set in run/trainer.py), each slice is computed by one thread of the pool here,
several slices at a time, and their gradients are added in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

from flame_rl.system.cores import available_cores

# Most rows in a slice: few enough to fit in a cache and to divide a large minibatch among cores,
# many enough that Python costs little.
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
        loss: numbers by name for a slice of `index`; "loss" is differentiated. The numbers of all
            slices are summed, so a mean over the steps must be divided by B in each.

    Returns:
        The numbers by name, summed over the slices.
    """

    def differentiate(slice_: Tensor) -> tuple[tuple[Tensor, ...], dict[str, float]]:
        shares = loss(slice_)
        numbers = {name: share.item() for name, share in shares.items()}
        return torch.autograd.grad(shares["loss"], parameters), numbers

    def add(gradients: tuple[Tensor, ...]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad.add_(gradient)

    slices = even_slices(index)
    if len(slices) == 1:
        gradients, totals = differentiate(index)
        add(gradients)
        return totals
    cores = available_cores()
    totals: dict[str, float] = {}
    # Only one slice per core at a time, because a finished slice's gradient takes memory.
    for first in range(0, len(slices), cores):
        for gradients, more in threads(cores).map(differentiate, slices[first : first + cores]):
            add(gradients)
            totals = {name: totals.get(name, 0.0) + value for name, value in more.items()}
    return totals


@cache
def threads(count: int) -> ThreadPoolExecutor:
    """A pool of `count` threads, kept because an update needs it a hundred times."""
    return ThreadPoolExecutor(count)


def even_slices(rows: Tensor) -> tuple[Tensor, ...]:
    """Split the rows into as few slices of at most `SLICE_STEPS` as possible, of even size."""
    return rows.tensor_split(max(1, -(-len(rows) // SLICE_STEPS)))


def without_gradient(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Evaluate the function on all rows, slice by slice, several slices at a time.

    Args:
        function: maps rows [B, ...] to float32 [B], each row independently of the others.
        rows: [N, ...].
    """

    @torch.no_grad()
    def evaluate(slice_: Tensor) -> Tensor:
        return function(slice_)

    slices = even_slices(rows)
    if len(slices) == 1:
        return evaluate(rows)
    return torch.cat(list(threads(available_cores()).map(evaluate, slices)))
