"""Large minibatches by slices: bounded memory, all cores busy, the same bits on any number of them.

A library's own threads divide a sum among the cores, so that its last bits depend on their number.
With one thread in torch and in BLAS (set in device.py), each slice is computed by one thread
of the pool here, several slices at a time, and their results are added in order.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import cache, partial
from itertools import chain, pairwise
from typing import TypeVar

import numpy as np

from flame_rl.learner.training.network import Loss, Network, Samples, split
from flame_rl.system.machine import available_cores

Result = TypeVar("Result")
# Fewer slices are computed one after another: threads would wait for the GIL.
LEAST_SLICES = 16


def gradient_by_slices(
    of_slice: Callable[[Samples, np.ndarray], dict[str, float]],
    network: Network,
    samples: Samples,
    gradient: np.ndarray,
) -> dict[str, float]:
    """Write the gradient of a mean loss over all samples to `gradient`, float32 of any shape, by
    slices of as many rows as the network says; returns the numbers' means. `of_slice` writes the
    sum of a slice's gradients to an array like `gradient`, and returns sums of numbers by name."""
    slices = _slices(samples, network.slice_rows)
    if len(slices) == 1:
        totals = of_slice(samples, gradient)
    else:

        def apart(chunk: Samples) -> tuple[np.ndarray, dict[str, float]]:
            own = np.empty_like(gradient)
            return own, of_slice(chunk, own)

        # Only one slice per core at a time, because a finished slice's gradient takes memory.
        group = available_cores() if network.parallel and len(slices) >= LEAST_SLICES else 1
        gradient.fill(0)
        totals = {}
        for first in range(0, len(slices), group):
            now = [partial(apart, chunk) for chunk in slices[first : first + group]]
            for own, sums in run_parallel(now):
                gradient += own
                for name, total in sums.items():
                    totals[name] = totals.get(name, 0.0) + total
    count = len(samples["inputs"])
    gradient *= 1 / count
    return {name: total / count for name, total in totals.items()}


def mean_gradient(
    network: Network, loss: Loss, gradient: np.ndarray, samples: Samples
) -> dict[str, float]:
    """As `gradient_by_slices`, of a network's loss."""
    return gradient_by_slices(partial(network.differentiate, loss), network, samples, gradient)


def outputs(network: Network, samples: Samples) -> tuple[np.ndarray, ...]:
    """The network's outputs for all samples."""
    slices = _slices(samples, network.slice_rows)

    def of_share(chunks: list[Samples]) -> list[tuple[np.ndarray, ...]]:
        return [network.outputs(chunk) for chunk in chunks]

    # Each thread has one piece of work, not one for each slice.
    shares = min(available_cores(), len(slices)) if network.parallel else 1
    ends = [len(slices) * share // shares for share in range(shares + 1)]
    each = run_parallel([partial(of_share, slices[first:end]) for first, end in pairwise(ends)])
    columns = zip(*chain.from_iterable(each), strict=True)
    return tuple(np.concatenate(column) for column in columns)


def run_parallel(functions: Sequence[Callable[[], Result]]) -> list[Result]:
    """The functions' results, each computed on a core of its own where there are enough. Worth it
    for products of matrices of a few hundred rows and columns."""
    if len(functions) == 1 or available_cores() == 1:
        return [function() for function in functions]
    first, *others = functions
    threads = kept_threads("slices", available_cores())
    # The context has NumPy's settings for overflow.
    running = [threads.submit(copy_context().run, function) for function in others]
    try:
        return [first(), *(each.result() for each in running)]
    finally:
        # Also after an error: the caller must not undo what another thread still writes.
        wait(running)


def _slices(samples: Samples, most_rows: int) -> list[Samples]:
    """The samples in as few slices as possible, of even size."""
    count = -(-len(samples["inputs"]) // most_rows)
    return [samples] if count <= 1 else split(samples, count)


@cache
def kept_threads(name: str, count: int) -> ThreadPoolExecutor:
    """A pool of `count` threads, kept by the process because an update needs it a hundred times."""
    return ThreadPoolExecutor(count, thread_name_prefix=name)


# Threads do not survive a fork.
os.register_at_fork(after_in_child=kept_threads.cache_clear)
