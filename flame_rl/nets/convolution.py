"""A convolution in NumPy, as a layer of a policy; see layers.py.

It is one float32 product for each picture: a matrix of the picture's windows, a row for each place
of the filters, times the weights, a column for each filter. Large products are cut into parts by
rows. The parts have the same sizes whichever pictures share the batch, and so the same bits.
"""

from __future__ import annotations

import math

import numpy as np

from flame_rl.wire.packing import WireError

# Up to this number of multiplications, OpenBLAS does not first copy the matrices to where it reads
# them fastest; for products of few rows or columns, copying takes longer than it gains.
SMALL_PRODUCT = 1_000_000
# Windows of several pictures are copied at once while they fit in a cache.
_WINDOW_BYTES = 1 << 20


def convolution(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, size: np.ndarray, stride: np.ndarray
) -> np.ndarray:
    """The cross-correlation of pictures with filters, without padding, plus a bias, as torch's
    Conv2d. Pictures have channels last, and are flat before and after.

    Args:
        x: float32 [blocks, ROW_BLOCK, rows * columns * channels].
        weight: float32 [height, width, channels, filters].
        bias: float32 [filters].
        size: rows and columns of a picture, integers [2].
        stride: how far the filters move each time, down or to the right, integer [1].

    Returns:
        float32 [blocks, ROW_BLOCK, places down * places across * filters].
    """
    height, width, channels, filters = weight.shape
    rows, columns = size.tolist()
    (step,) = stride.tolist()
    pictures = x.reshape(-1, rows, columns, channels)
    down, across = _places(rows, height, step), _places(columns, width, step)
    shape = len(pictures), down, across, height, width, channels
    picture, row, column, channel = pictures.strides
    strides = picture, step * row, step * column, row, column, channel
    windows = np.lib.stride_tricks.as_strided(pictures, shape, strides, writeable=False)
    matrix = weight.reshape(-1, filters)
    places = down * across
    y = np.empty((len(pictures), places, filters), x.dtype)
    at_once = max(1, _WINDOW_BYTES // (places * len(matrix) * x.itemsize))
    copied = np.empty((min(at_once, len(pictures)), *shape[1:]), x.dtype)
    products = math.ceil(places * matrix.size / SMALL_PRODUCT)
    part = math.ceil(places / products)
    for first in range(0, len(pictures), at_once):
        some = windows[first : first + at_once]
        copied[: len(some)] = some
        of_some = copied[: len(some)].reshape(len(some), places, -1)
        for top in range(0, places, part):
            # NumPy calls BLAS for each picture.
            product = y[first : first + at_once, top : top + part]
            np.matmul(of_some[:, top : top + part], matrix, out=product)
    y += bias
    return y.reshape(*x.shape[:2], -1)


def convolution_sizes(
    weight: np.ndarray, bias: np.ndarray, size: np.ndarray, stride: np.ndarray
) -> dict[str, int]:
    """Widths of input and output, "in" and "out". Raises WireError for a stride below 1, and for
    pictures that are smaller than the filters."""
    height, width, channels, filters = weight.shape
    rows, columns = size.tolist()
    (step,) = stride.tolist()
    if step < 1:
        raise WireError(f"stride: {step}, not at least 1")
    if rows < height or columns < width:
        raise WireError(
            f"size: pictures of {rows} x {columns}, smaller than the filters, {height} x {width}"
        )
    places = _places(rows, height, step) * _places(columns, width, step)
    return {"in": rows * columns * channels, "out": places * filters}


def _places(size: int, of_filter: int, step: int) -> int:
    """The number of places of a filter along a side of a picture."""
    return (size - of_filter) // step + 1
