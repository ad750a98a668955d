"""A convolution in NumPy, as a layer that acts; see layers.py."""

import math
from typing import ClassVar

import numpy as np

from flame_rl.nets.layers import SMALL_PRODUCT, LayerKind, Shapes
from flame_rl.wire.packing import WireError

_WINDOW_BYTES = 1 << 20  # windows of several pictures are copied at once while they fit in a cache


class ConvolutionLayer(LayerKind):
    """The cross-correlation of pictures with filters, without padding, plus a bias, as torch's
    Conv2d. Pictures have channels last, and are flat before and after: [..., rows * columns *
    channels] -> [..., places down * places across * filters].

    It is one float32 product for each picture: a matrix of the picture's windows, a row for each
    place of the filters, times the weights, a column for each filter. Large products are cut by
    rows, in the same way whichever pictures share the batch, so that the bits are the same.

    `size` is the rows and columns of a picture, and `stride` the step of the filters."""

    kind = "convolution"
    arrays: ClassVar[Shapes] = {
        "weight": ("height", "width", "channels", "filters"),
        "bias": ("filters",),
    }
    integers: ClassVar[Shapes] = {"size": (2,), "stride": (1,)}
    dtype = "float32"

    def sizes(self) -> dict[str, int]:
        height, width, channels, filters = self.weight.shape
        rows, columns = self.size.tolist()
        (step,) = self.stride.tolist()
        if step < 1:
            raise WireError(f"stride: {step}, not at least 1")
        if rows < height or columns < width:
            raise WireError(f"size: pictures of {rows} x {columns}, filters of {height} x {width}")
        down, across = self._places()
        return {"in": rows * columns * channels, "out": down * across * filters}

    def act(self, x: np.ndarray) -> np.ndarray:
        height, width, channels, filters = self.weight.shape
        pictures = x.reshape(-1, *self.size.tolist(), channels)
        step, (down, across) = int(self.stride[0]), self._places()
        shape = len(pictures), down, across, height, width, channels
        picture, row, column, channel = pictures.strides
        strides = picture, step * row, step * column, row, column, channel
        windows = np.lib.stride_tricks.as_strided(pictures, shape, strides, writeable=False)
        matrix = self.weight.reshape(-1, filters)
        places = down * across
        y = np.empty((len(pictures), places, filters), x.dtype)
        at_once = max(1, _WINDOW_BYTES // (places * len(matrix) * x.itemsize))
        copied = np.empty((min(at_once, len(pictures)), *shape[1:]), x.dtype)
        products = math.ceil(places * matrix.size / SMALL_PRODUCT)
        height_of_product = math.ceil(places / products)
        for first in range(0, len(pictures), at_once):
            some = windows[first : first + at_once]
            copied[: len(some)] = some
            of_some = copied[: len(some)].reshape(len(some), places, -1)
            for top in range(0, places, height_of_product):
                bottom = top + height_of_product
                # NumPy calls BLAS for each picture.
                product = y[first : first + at_once, top:bottom]
                np.matmul(of_some[:, top:bottom], matrix, out=product)
        y += self.bias
        return y.reshape(*x.shape[:2], -1)

    def _places(self) -> tuple[int, int]:
        """The number of places of a filter, down and across."""
        step = int(self.stride[0])
        down, across = (
            (side - of_filter) // step + 1
            for side, of_filter in zip(self.size.tolist(), self.weight.shape[:2], strict=True)
        )
        return down, across
