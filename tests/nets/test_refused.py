"""Layers and heads that do not fit each other, or whose arrays are no such layer's, are refused by
name."""

from collections.abc import Iterator

import numpy as np
import pytest

from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.kinds import HEADS, LAYERS
from flame_rl.wire import codec
from flame_rl.wire.messages import MAX_LAYERS, Layer, PolicySnapshot
from flame_rl.wire.packing import WireError
from tests.helpers import head_of
from tests.nets.test_company import layer_of

CATEGORICAL = Layer("categorical", {})


def snapshot_of(*layers: Layer, head: Layer = CATEGORICAL) -> PolicySnapshot:
    return PolicySnapshot(0, layers, head)


def dense(inputs: int, outputs: int) -> Layer:
    ones = np.ones((inputs, outputs), np.float32)
    return Layer("dense", {"weight": ones, "bias": ones[0]})


def refuse(snapshot: PolicySnapshot, words: str) -> None:
    with pytest.raises(WireError, match=words):
        ActingPolicy(snapshot)


def wrong_arrays(layer: Layer) -> Iterator[tuple[Layer, str]]:
    """The layer with one thing wrong about its arrays, and what is said of it."""
    arrays = layer.arrays
    yield Layer(layer.kind, arrays | {"more": np.ones(1)}), r"arrays \[.*'more'.*\] and not \["
    for name, array in arrays.items():
        others = {key: value for key, value in arrays.items() if key != name}
        yield Layer(layer.kind, others), r"arrays \[.*\] and not \["
        for other in (array.astype(np.float64), array[..., None]):
            yield Layer(layer.kind, arrays | {name: other}), f"{name}: "


@pytest.mark.parametrize("kind", LAYERS)
def test_arrays_of_every_kind_of_layer(kind):
    layer, _ = layer_of(kind, 64, np.random.default_rng(0))
    ActingPolicy(snapshot_of(dense(3, 64), layer))
    for wrong, words in wrong_arrays(layer):
        refuse(snapshot_of(dense(3, 64), wrong), rf"layer 1 \({kind}\): {words}")


@pytest.mark.parametrize("kind", HEADS)
def test_arrays_of_every_kind_of_head(kind):
    head, width = head_of(kind, 4)
    ActingPolicy(snapshot_of(dense(3, width), head=head))
    for wrong, words in wrong_arrays(head):
        refuse(snapshot_of(dense(3, width), head=wrong), rf"head \({kind}\): {words}")
    # What is not finite does not even arrive.
    for name, array in head.arrays.items():
        if array.dtype == np.float32:
            wrong = Layer(kind, head.arrays | {name: np.full_like(array, np.nan)})
            data = codec.encode_snapshot(snapshot_of(dense(3, width), head=wrong))
            with pytest.raises(WireError, match=f"{name}: not finite"):
                codec.decode_snapshot(data)


def numbers(kind: str, **changed) -> Layer:
    """A sound layer or head, whose arrays have other values."""
    if kind in HEADS:
        layer, _ = head_of(kind, 4)
    else:
        layer, _ = layer_of(kind, 64, np.random.default_rng(0))
    arrays = {name: np.array(v, layer.arrays[name].dtype) for name, v in changed.items()}
    return Layer(kind, layer.arrays | arrays)


WIDTHS = numbers("inputs", widths=[2, 3])
FITS = dense(2, 64)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([dense(3, 4), dense(5, 2)], r"layer 1 \(dense\): weight: shape \(5, 2\).*4"),
        ([dense(3, 4), Layer("mish", {})], r"layer 1 \(mish\): none of normalize, scale"),
        ([Layer("tanh", {})], "without a layer that says how wide"),
        ([], "without a layer"),
        ([dense(2, 2)] * (MAX_LAYERS + 1), "65 layers.*at most 64"),
        ([FITS, numbers("normalize", std=np.zeros(64))], "std: not above 0"),
        ([FITS, numbers("convolution", stride=[0])], "stride: 0, not at least 1"),
        ([FITS, numbers("convolution", size=[2, 5])], "size: pictures of 2 x 5, filters of 3 x 2"),
        ([dense(3, 7), numbers("convolution")], r"64 numbers, not the 7 of the layer"),
        ([FITS, numbers("frames", size=[5, 1])], "size: .*1 frames of 5 numbers"),
        ([FITS, numbers("frames", size=[0, 3])], "size: .*3 frames of 0 numbers"),
        ([FITS, numbers("select", places=[-1])], "places: .* not below 64"),
        ([FITS, numbers("select", places=[0, 64])], "places: .* not below 64"),
        ([Layer("dense", dense(5, 4).arrays, input=0)], r"layer 0 \(dense\): input: 0 of 0 inputs"),
        ([WIDTHS, Layer("tanh", {}, input=2)], r"layer 1 \(tanh\): input: 2 of 2 inputs"),
        ([WIDTHS, Layer("tanh", {}), Layer("tanh", {}, input=0)], "input: 0 of 0 inputs"),
        ([WIDTHS, Layer("inputs", WIDTHS.arrays, input=0)], "input: 0 of 2 inputs"),
        ([numbers("inputs", widths=[0, 5])], "widths: .* not all at least"),
        ([WIDTHS, numbers("inputs", widths=[4, 3])], "7 numbers, not the 5"),
    ],
)
def test_layers_that_do_not_fit(layers, words):
    refuse(snapshot_of(*layers), words)


@pytest.mark.parametrize(
    ("width", "head", "words"),
    [
        (4, Layer("beta", {}), r"head \(beta\): none of factored"),
        (5, numbers("gaussian"), r"log_std: shape \(4,\), and not \(5,\)"),
        (4, numbers("factored", choices=[2, 3]), r"choices: \[2, 3\].*sum is 4"),
        (4, numbers("factored", choices=[5, -1]), "choices"),
        (4, numbers("epsilon_greedy", epsilon=[1.001]), "epsilon: .* not from 0 to 1"),
        (4, numbers("epsilon_greedy", repeat=[-1e-6]), "repeat: .* not from 0 to 1"),
        (4, numbers("epsilon_greedy_distribution"), "support: 51 atoms do not divide .* 4,"),
        (4, numbers("noisy", std=[1, 0, -1, 1]), "std: not finite, or below 0"),
        (4, numbers("noisy", theta=[2]), "theta: .* not from 0 to 1"),
        (5, numbers("squashed_gaussian"), "an output of width 5"),
    ],
)
def test_heads_that_do_not_fit(width, head, words):
    refuse(snapshot_of(dense(3, width), head=head), words)


def test_as_many_layers_as_there_may_be():
    ActingPolicy(snapshot_of(*[dense(2, 2)] * MAX_LAYERS))
