"""The layers of a policy in NumPy: one entry of `LAYERS` for each kind.

Law of this file: an observation's action must not depend on which other observations share the
batch. BLAS chooses its way of summing by the size of the matrices, so every product here has
`ROW_BLOCK` rows, padded if need be. With one BLAS thread, each row then has the same bits at any
position and beside any other rows, as it would not have in one product of all rows. In float32,
that fails on some processors where there is a single output; so only dense layers whose outputs are
a multiple of 16, the width of BLAS's kernels, compute in float32. A convolution is a product for
each observation. Activations are elementwise, so that they may have float32's precision.

A layer takes a stack of blocks, [blocks, ROW_BLOCK, inputs], which it may overwrite, and its arrays
in the same type, and returns [blocks, ROW_BLOCK, outputs]. The type is float64, or what the layer's
kind says. A layer with a memory takes the state of each row's episode, [blocks, ROW_BLOCK, ...],
after its input, and returns the next one after its output; it must neither write into the state nor
return it. An episode begins with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flame_rl.nets.convolution import SMALL_PRODUCT, convolution, convolution_sizes
from flame_rl.wire.packing import WireError

ROW_BLOCK = 8
# Normalised observations are clipped at plus and minus this.
OBSERVATION_CLIP = 10.0
# A matrix of this many numbers does not fit a core's cache, so that reading it takes most of the
# time; in float32 it has half the bytes.
_LARGE_WEIGHT = 1 << 20
# Outputs that BLAS computes at once.
_KERNEL = 16


def normalize(x: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Scale numbers to mean 0 and standard deviation 1, clip at `OBSERVATION_CLIP`."""
    x -= mean
    x /= std
    # np.clip takes twice as long on arrays this small.
    np.minimum(x, OBSERVATION_CLIP, out=x)
    np.maximum(x, -OBSERVATION_CLIP, out=x)
    return x


def scale(x: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Multiply by a number, which brings a picture's integers near 1."""
    x *= factor
    return x


def center(x: np.ndarray, mean: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Subtract the mean picture, and multiply by a number."""
    x -= mean
    x *= factor
    return x


def dense(x: np.ndarray, parts: list[np.ndarray], bias: np.ndarray) -> np.ndarray:
    """A fully connected layer; `parts` are columns of its weights, [inputs, columns] each."""
    # NumPy calls BLAS for each block of the stack.
    products = [x @ weight for weight in parts]
    x = products[0] if len(products) == 1 else np.concatenate(products, axis=-1)
    x += bias
    return x


def _dense_prepared(weight: np.ndarray, bias: np.ndarray) -> dict[str, Any]:
    columns = SMALL_PRODUCT // (ROW_BLOCK * len(weight)) // _KERNEL * _KERNEL or weight.shape[1]
    firsts = range(0, weight.shape[1], columns)
    parts = [np.ascontiguousarray(weight[:, first : first + columns]) for first in firsts]
    return {"parts": parts, "bias": bias}


def _dense_dtype(weight: np.ndarray, bias: np.ndarray) -> str:
    large = weight.size >= _LARGE_WEIGHT and bias.size % _KERNEL == 0
    return "float32" if large else "float64"


def tanh(x: np.ndarray) -> np.ndarray:
    # float32 is as precise as the learner's tanh, and four times as fast as float64. In place,
    # NumPy casts a piece at a time and needs no second array. An input beyond float32 becomes
    # infinite, and its tanh is still right: the caller silences NumPy's warning.
    return np.tanh(x, out=x, dtype=np.float32, casting="same_kind")


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0, out=x)


def silu(x: np.ndarray) -> np.ndarray:
    # tanh form: no overflow for large negative x, unlike 1 / (1 + exp(-x)).
    return 0.5 * x * (1.0 + tanh(0.5 * x))


def frames(x: np.ndarray, state: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The latest inputs, interleaved: the `frames` values of each number follow each other. Of
    pictures, they become further channels. The state is the last output, [..., inputs, frames], the
    latest input last."""
    y = np.empty_like(state)
    # One copy moves every number to the frame before its own; the latest frame is written over what
    # came from the next number.
    y.reshape(-1)[:-1] = state.reshape(-1)[1:]
    y[..., -1] = x
    return y.reshape(*x.shape[:-1], -1), y


def _frames_sizes(size: np.ndarray) -> dict[str, int]:
    inputs, count = size.tolist()
    if inputs < 1 or count < 2:
        raise WireError(f"size: {count} frames of {inputs} numbers; at least 2 of 1 are a stack")
    return {"in": inputs, "out": inputs * count, "frames": count}


def sigmoid(x: np.ndarray) -> np.ndarray:
    x *= 0.5
    x = tanh(x)
    x += 1.0
    x *= 0.5
    return x


def gru(
    x: np.ndarray,
    state: np.ndarray,
    input_weight: np.ndarray,
    input_bias: np.ndarray,
    state_weight: np.ndarray,
    state_bias: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """A gated recurrent unit (Cho et al. 2014, "Learning Phrase Representations using RNN
    Encoder-Decoder", eq. 5 to 8), whose reset gate acts after the product, as torch's. Its output
    is its next state. The gates' weights are in torch's order: reset, update, candidate."""
    inputs, _, width = input_weight.shape
    given = x @ input_weight.reshape(inputs, -1)
    given += input_bias.reshape(-1)
    kept = state @ state_weight.reshape(width, -1)
    kept += state_bias.reshape(-1)
    gates = sigmoid(given[..., : 2 * width] + kept[..., : 2 * width])
    reset, update = gates[..., :width], gates[..., width:]
    candidate = tanh(given[..., 2 * width :] + reset * kept[..., 2 * width :])
    y = candidate + update * (state - candidate)
    return y, y


def lstm(
    x: np.ndarray,
    state: np.ndarray,
    input_weight: np.ndarray,
    state_weight: np.ndarray,
    bias: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al.
    2000). Its state is its last output and its cells. The gates' weights are in torch's order:
    input, forget, candidate, output."""
    inputs, _, width = input_weight.shape
    gates = x @ input_weight.reshape(inputs, -1)
    # Without gaps: how BLAS sums could depend on them.
    gates += np.ascontiguousarray(state[..., 0, :]) @ state_weight.reshape(width, -1)
    gates += bias.reshape(-1)
    opened = sigmoid(gates[..., : 2 * width].copy())
    entering, kept = opened[..., :width], opened[..., width:]
    candidate = tanh(gates[..., 2 * width : 3 * width].copy())
    shown = sigmoid(gates[..., 3 * width :].copy())
    cells = kept * state[..., 1, :] + entering * candidate
    y = shown * tanh(cells.copy())
    return y, np.stack([y, cells], axis=-2)


def _float32(**arrays: np.ndarray) -> str:
    return "float32"


def _dtype_of_input(**arrays: np.ndarray) -> None:
    return None


def _check_normalize(mean: np.ndarray, std: np.ndarray) -> None:
    if not (std > 0).all():
        raise WireError("std: not above 0")


@dataclass(frozen=True)
class LayerKind:
    """One kind of layer.

    Attributes:
        forward: the function of the layer's input, of its state if it has one, and, by name, of its
            arrays, as `prepared` makes them.
        arrays: the shape of each array, float32. A size is a number or a name: "in" is the width of
            the input, and "out" that of the output if it differs.
        integers: the same of arrays of int32.
        check: raises WireError for values that the arrays must not have.
        sizes: sizes by name that follow from what is in the arrays, "in" and "out" among them;
            raises WireError where there are none.
        state: the shape of what the layer remembers of an episode from step to step, in sizes of
            its arrays; None: nothing.
        bounded: whether the state is only what entered in the last few steps: a learner looks that
            up, and need not unroll whole episodes.
        dtype: the type in which it computes, a function of the arrays by name; None: that of the
            layer before.
        prepared: what `forward` takes, made once of the arrays in that type.
    """

    forward: Callable[..., np.ndarray | tuple[np.ndarray, np.ndarray]]
    arrays: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    integers: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    check: Callable[..., None] = lambda **arrays: None
    sizes: Callable[..., dict[str, int]] = lambda **arrays: {}
    state: tuple[str | int, ...] | None = None
    bounded: bool = False
    dtype: Callable[..., str | None] = lambda **arrays: "float64"
    prepared: Callable[..., dict[str, Any]] = dict


LAYERS: dict[str, LayerKind] = {
    "normalize": LayerKind(normalize, {"mean": ("in",), "std": ("in",)}, check=_check_normalize),
    "dense": LayerKind(
        dense,
        {"weight": ("in", "out"), "bias": ("out",)},
        dtype=_dense_dtype,
        prepared=_dense_prepared,
    ),
    "scale": LayerKind(scale, {"factor": (1,)}, dtype=_float32),
    "center": LayerKind(center, {"mean": ("in",), "factor": (1,)}, dtype=_float32),
    "convolution": LayerKind(
        convolution,
        {"weight": ("height", "width", "channels", "filters"), "bias": ("filters",)},
        {"size": (2,), "stride": (1,)},
        sizes=convolution_sizes,
        dtype=_float32,
    ),
    "frames": LayerKind(
        frames,
        integers={"size": (2,)},
        sizes=_frames_sizes,
        state=("in", "frames"),
        bounded=True,
        dtype=_float32,
    ),
    "tanh": LayerKind(tanh, dtype=_dtype_of_input),
    "relu": LayerKind(relu, dtype=_dtype_of_input),
    "silu": LayerKind(silu, dtype=_dtype_of_input),
    "gru": LayerKind(
        gru,
        {
            "input_weight": ("in", 3, "out"),
            "input_bias": (3, "out"),
            "state_weight": ("out", 3, "out"),
            "state_bias": (3, "out"),
        },
        state=("out",),
    ),
    "lstm": LayerKind(
        lstm,
        {
            "input_weight": ("in", 4, "out"),
            "state_weight": ("out", 4, "out"),
            "bias": (4, "out"),
        },
        state=(2, "out"),
    ),
}
