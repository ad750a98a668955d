"""A convolution in NumPy, as a layer of a policy; see layers.py.

It is one float32 product for each picture: of the picture's windows, a row for each place, with the
weights, a column for each filter. The product's sizes are the same whichever pictures share the
batch, and so are its bits.
"""

from __future__ import annotations

import math

import numpy as np

from flame_rl.wire.packing import WireError

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
    y = np.empty((len(pictures), down * across, filters), x.dtype)
    count = max(1, _WINDOW_BYTES // (math.prod(shape[1:]) * x.itemsize))
    copied = np.empty((min(count, len(pictures)), *shape[1:]), x.dtype)
    for first in range(0, len(pictures), count):
        part = windows[first : first + count]
        here = copied[: len(part)]
        here[...] = part
        # NumPy calls BLAS for each picture.
        np.matmul(here.reshape(len(part), down * across, -1), matrix, out=y[first : first + count])
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
