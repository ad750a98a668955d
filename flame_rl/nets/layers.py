"""The layers of a network in NumPy: a class for each kind, of which kinds.py has the list.

How a layer acts: an observation's action must not depend on which other observations share the
batch. BLAS chooses its way of summing by the size of the matrices, so every product here has
`ROW_BLOCK` rows, padded if need be. With one BLAS thread, each row then has the same bits at any
position and beside any other rows, unlike in one product of all rows. In float32, that fails on
some processors where there is a single output; so a dense layer acts in float32 only where it has
`_LARGE_WEIGHT` weights and a multiple of 16 outputs, the width of BLAS's kernels. A convolution is
a product for each observation. Activations are elementwise: float32 is enough."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from flame_rl.wire.packing import WireError

ROW_BLOCK = 8
OBSERVATION_CLIP = 10.0  # normalised observations are clipped at plus and minus this
# Up to this number of multiplications, OpenBLAS does not first copy the matrices to where it reads
# them fastest; for products of few rows or columns, copying takes longer than it gains.
SMALL_PRODUCT = 1_000_000
# A matrix of this many numbers does not fit a core's cache: float32 halves the time to read it.
_LARGE_WEIGHT = 1 << 20
_KERNEL = 16  # outputs that BLAS computes at once

# The shapes of arrays by name. A size is a number or a name, which stands for the same number
# wherever it occurs: "in" is the width of a layer's input, "out" that of its output, if it differs.
Shapes = dict[str, tuple[str | int, ...]]
# How a layer acts: x -> y, or x and state -> y and the next state; see `LayerKind.act`.
Act = Callable[..., Any]


class LayerKind:
    """A layer, whose arrays are its attributes, by name."""

    kind: ClassVar[str]  # its name in a `PolicySnapshot`
    arrays: ClassVar[Shapes] = {}  # of float32
    integers: ClassVar[Shapes] = {}  # of int32
    # The shape of what it remembers from step to step, in size names of `arrays`; None: nothing.
    state: ClassVar[tuple[str | int, ...] | None] = None
    # Whether the state is only the inputs of the last few steps, which a learner looks up instead
    # of unrolling whole episodes.
    bounded: ClassVar[bool] = False
    dtype: str | None = "float64"  # in which the layer acts; None: that of the layer before

    def __init__(self, **arrays: np.ndarray) -> None:
        vars(self).update(arrays)

    def sizes(self) -> dict[str, int]:
        """Sizes by name that follow from the arrays' values. Raises WireError for wrong ones."""
        return {}

    def act(self, x: np.ndarray) -> np.ndarray:
        """The layer's output, with all arrays of float32 in the type of `dtype`: [blocks,
        ROW_BLOCK, inputs], which may be overwritten, -> [blocks, ROW_BLOCK, outputs].

        A layer with a memory takes the state of each row's episode, [blocks, ROW_BLOCK, ...], after
        its input, and returns the next one after its output; it must neither write into the state
        nor return it. An episode begins with zeros."""
        raise NotImplementedError

    def make_act(self) -> Act:
        """The function that acts: `act`, unless a kind overrides this to compute constants once."""
        return self.act


class NormalizeLayer(LayerKind):
    """Scales numbers to mean 0 and standard deviation 1, and clips them at `OBSERVATION_CLIP`."""

    kind = "normalize"
    arrays: ClassVar[Shapes] = {"mean": ("in",), "std": ("in",)}

    def sizes(self) -> dict[str, int]:
        if not (self.std > 0).all():
            raise WireError("std: not above 0")
        return {}

    def act(self, x: np.ndarray) -> np.ndarray:
        x -= self.mean
        x /= self.std
        np.minimum(x, OBSERVATION_CLIP, out=x)  # np.clip takes twice as long on arrays this small
        np.maximum(x, -OBSERVATION_CLIP, out=x)
        return x

    def normalize(self, observations: np.ndarray) -> np.ndarray:
        """Observations as a network learns from them, float32 [..., D]."""
        x = observations - self.mean
        x /= self.std
        return np.clip(x, -OBSERVATION_CLIP, OBSERVATION_CLIP, out=x)


class ScaleLayer(LayerKind):
    """Multiplies by a number, which brings a picture's integers near 1."""

    kind = "scale"
    arrays: ClassVar[Shapes] = {"factor": (1,)}
    dtype = "float32"

    def act(self, x: np.ndarray) -> np.ndarray:
        x *= self.factor
        return x


class CenterLayer(LayerKind):
    """Subtracts the mean picture, and multiplies by a number."""

    kind = "center"
    arrays: ClassVar[Shapes] = {"mean": ("in",), "factor": (1,)}
    dtype = "float32"

    def act(self, x: np.ndarray) -> np.ndarray:
        x -= self.mean
        x *= self.factor
        return x


class FramesLayer(LayerKind):
    """The latest inputs, interleaved: the `frames` values of each number follow each other, and are
    channels of pictures. The state is the last output, [..., inputs, frames], the latest last."""

    kind = "frames"
    integers: ClassVar[Shapes] = {"size": (2,)}
    state = ("in", "frames")
    bounded = True
    dtype = "float32"

    def sizes(self) -> dict[str, int]:
        inputs, count = self.size.tolist()
        if inputs < 1 or count < 2:
            raise WireError(f"size: {count} frames of {inputs} numbers, and not at least 2 of 1")
        return {"in": inputs, "out": inputs * count, "frames": count}

    def act(self, x: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = np.empty_like(state)
        # One copy moves every number to the frame before its own; the latest frame follows.
        y.reshape(-1)[:-1] = state.reshape(-1)[1:]
        y[..., -1] = x
        return y.reshape(*x.shape[:-1], -1), y


class SelectLayer(LayerKind):
    """Some of the numbers, at these places."""

    kind = "select"
    integers: ClassVar[Shapes] = {"places": ("out",), "width": (1,)}
    dtype = None

    def sizes(self) -> dict[str, int]:
        if self.places.min() < 0 or self.places.max() >= self.width[0]:
            raise WireError(f"places: {self.places.tolist()[:20]}, not below {self.width[0]}")
        return {"in": int(self.width[0]), "out": self.places.size}

    def act(self, x: np.ndarray) -> np.ndarray:
        # In C order, unlike x[..., places].
        return x.take(self.places, axis=-1)


class InputsLayer(LayerKind):
    """Divides an observation into inputs, by their widths. Each of the layers after it may act on
    one of them (`Layer.input`); the first that does not acts on all, side by side."""

    kind = "inputs"
    integers: ClassVar[Shapes] = {"widths": ("count",)}
    dtype = "float32"

    def sizes(self) -> dict[str, int]:
        if self.widths.min() < 1:
            raise WireError(f"widths: {self.widths.tolist()[:20]}, not all at least 1")
        return {"in": int(self.widths.sum(dtype=np.int64))}

    def act(self, x: np.ndarray) -> list[np.ndarray]:
        """Each input of the observations, in C order."""
        ends = np.cumsum(self.widths)[:-1]
        return [np.ascontiguousarray(part) for part in np.split(x, ends, axis=-1)]


class DenseLayer(LayerKind):
    """A fully connected layer, y = x W + b."""

    kind = "dense"
    arrays: ClassVar[Shapes] = {"weight": ("in", "out"), "bias": ("out",)}

    @property
    def dtype(self) -> str:
        large = self.weight.size >= _LARGE_WEIGHT and self.bias.size % _KERNEL == 0
        return "float32" if large else "float64"

    def weight_blocks(self) -> list[np.ndarray]:
        """The weights in blocks of columns, so that each product is small for BLAS."""
        inputs, outputs = self.weight.shape
        width = SMALL_PRODUCT // (ROW_BLOCK * inputs) // _KERNEL * _KERNEL or outputs
        firsts = range(0, outputs, width)
        return [np.ascontiguousarray(self.weight[:, first : first + width]) for first in firsts]

    def make_act(self) -> Act:
        blocks, bias = self.weight_blocks(), self.bias

        def act(x: np.ndarray) -> np.ndarray:
            # NumPy calls BLAS for each block of the stack.
            products = [x @ weight for weight in blocks]
            x = products[0] if len(products) == 1 else np.concatenate(products, axis=-1)
            x += bias
            return x

        return act


class LayerNormLayer(LayerKind):
    """y = w (x - mean) / sqrt(variance + epsilon) + b, with mean and variance of each row (Ba et
    al. 2016, "Layer Normalization", eq. 4)."""

    kind = "layer_norm"
    arrays: ClassVar[Shapes] = {"weight": ("in",), "bias": ("in",), "epsilon": (1,)}

    def act(self, x: np.ndarray) -> np.ndarray:
        x -= x.mean(axis=-1, keepdims=True)
        variance = np.square(x).mean(axis=-1, keepdims=True)
        x /= np.sqrt(variance + self.epsilon)
        x *= self.weight
        x += self.bias
        return x


class TanhLayer(LayerKind):
    kind = "tanh"
    dtype = None

    def act(self, x: np.ndarray) -> np.ndarray:
        return float32_tanh(x)


class ReluLayer(LayerKind):
    kind = "relu"
    dtype = None

    def act(self, x: np.ndarray) -> np.ndarray:
        return np.maximum(x, 0.0, out=x)


class SiluLayer(LayerKind):
    """x sigmoid(x)."""

    kind = "silu"
    dtype = None

    def act(self, x: np.ndarray) -> np.ndarray:
        # tanh form: no overflow for large negative x, unlike 1 / (1 + exp(-x)).
        return 0.5 * x * (1.0 + float32_tanh(0.5 * x))


def float32_tanh(x: np.ndarray) -> np.ndarray:
    """tanh as actors compute it, in place."""
    # float32 is as precise as the learner's tanh, and four times as fast as float64. In place,
    # NumPy casts a piece at a time and needs no second array. An input beyond float32 becomes
    # infinite, and its tanh is still right: the caller silences NumPy's warning.
    return np.tanh(x, out=x, dtype=np.float32, casting="same_kind")
