"""A loss's gradient, slice by slice: bounded memory, all cores, and the same bits on any number.

torch's own threads divide a sum among the cores, so that its last bits depend on how many those
are. With them set to one (trainer.py does), every slice is computed by one thread here, several
slices at a time, and the slices are added in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from flame_rl.system.cores import available_cores

First = TypeVar("First")
Second = TypeVar("Second")

# At most. Small enough to fit in a cache, and for a minibatch of a large batch to be several of
# them; large enough that Python costs little.
SLICE_STEPS = 2048


def accumulate_gradients(
    parameters: Sequence[torch.nn.Parameter],
    index: Tensor,
    loss_of: Callable[[Tensor], tuple[Tensor, ...]],
) -> list[float]:
    """Add to every parameter's `.grad` that of the loss over all steps of `index`.

    Args:
        parameters: to differentiate by; each must take part in the loss.
        index: int64 [B], which steps.
        loss_of: of a part of `index`, its share of the loss, then any shares of metrics. Shares
            are added up, so a mean must already be divided by B.

    Returns:
        The sums: the loss, then the metrics.
    """

    def differentiate(part: Tensor) -> tuple[tuple[Tensor, ...], list[float]]:
        shares = loss_of(part)
        return torch.autograd.grad(shares[0], parameters), [share.item() for share in shares]

    def add(gradients: tuple[Tensor, ...]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad.add_(gradient)

    parts = even_slices(index)
    if len(parts) == 1:
        gradients, totals = differentiate(index)
        add(gradients)
        return totals
    cores = available_cores()
    totals = []
    # As many at a time as there are cores: a finished slice's gradient takes memory, too.
    for first in range(0, len(parts), cores):
        for gradients, more in threads(cores).map(differentiate, parts[first : first + cores]):
            add(gradients)
            totals = [a + b for a, b in zip(totals or [0.0] * len(more), more, strict=True)]
    return totals


def side_by_side(here: Callable[[], First], there: Callable[[], Second]) -> tuple[First, Second]:
    """What both return; the second runs on a thread of its own meanwhile, and has ended when this
    does. Neither may change what the other one reads."""
    # Not one of those below: in those, slices of both wait for a place.
    with ThreadPoolExecutor(1) as thread:
        second = thread.submit(there)
        return here(), second.result()


@cache
def threads(count: int) -> ThreadPoolExecutor:
    """So many, kept: an update needs them a hundred times."""
    return ThreadPoolExecutor(count)


def even_slices(rows: Tensor) -> tuple[Tensor, ...]:
    """As few of at most `SLICE_STEPS` rows as there can be."""
    return rows.tensor_split(max(1, -(-len(rows) // SLICE_STEPS)))


def without_gradient(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """The function of all rows, slice by slice, several at a time.

    Args:
        function: of some rows, [B, ...] -> float32 [B], each row by itself.
        rows: [N, ...].
    """

    @torch.no_grad()
    def of(part: Tensor) -> Tensor:
        return function(part)

    parts = even_slices(rows)
    if len(parts) == 1:
        return of(rows)
    return torch.cat(list(threads(available_cores()).map(of, parts)))
