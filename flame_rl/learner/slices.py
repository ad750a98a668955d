"""A batch's gradient, slice by slice: bounded memory, all cores, and the same bits on any number.

torch's own threads divide a sum among the cores, so that its last bits depend on how many those
are. With them set to one (main.py does), every slice is computed by one thread here, several slices
at a time, and the slices are added in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from flame_rl.machine import available_cores

# Small enough to fit in a cache a few times over, large enough that Python costs nothing.
SLICE_STEPS = 4096


def accumulate_gradients(
    parameters: Sequence[torch.nn.Parameter],
    steps: int,
    loss_of: Callable[[slice], tuple[Tensor, ...]],
) -> list[float]:
    """Set every parameter's `.grad` to that of the whole batch's loss.

    Args:
        parameters: to differentiate by; each must take part in the loss.
        steps: the size of the batch.
        loss_of: of a slice of the batch, its share of the loss, then any shares of metrics. Shares
            are added up, so a mean must already be divided by `steps`.

    Returns:
        The sums: the loss, then the metrics.
    """

    def differentiate(start: int) -> tuple[tuple[Tensor, ...], list[float]]:
        shares = loss_of(slice(start, start + SLICE_STEPS))
        return torch.autograd.grad(shares[0], parameters), [share.item() for share in shares]

    cores = available_cores()
    starts = range(0, steps, SLICE_STEPS)
    gradients = [torch.zeros_like(parameter) for parameter in parameters]
    totals: list[float] = []
    with ThreadPoolExecutor(cores) as threads:
        # As many at a time as there are cores: a finished slice's gradient takes memory, too.
        for first in range(0, len(starts), cores):
            for part, more in threads.map(differentiate, starts[first : first + cores]):
                for total, share in zip(gradients, part, strict=True):
                    total.add_(share)
                totals = [a + b for a, b in zip(totals or [0.0] * len(more), more, strict=True)]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return totals
