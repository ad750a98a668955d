"""The law that neighbours do not matter: a row has the same bits in any company, by every kind of
layer and head. This file needs no torch, so that Python starts quickly for other processors."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.kinds import HEADS, LAYERS
from flame_rl.nets.layers import ROW_BLOCK
from flame_rl.wire.messages import Layer, PolicySnapshot
from tests.helpers import ROOT, head_of, random_snapshot


def assert_same_in_any_company(function, rows: np.ndarray) -> None:
    """A function of rows, [B, ...] -> [B, ...], has the same bits in other batches, in another
    order, at another place, and where the other rows are zero."""
    rng = np.random.default_rng(1)
    count = len(rows)
    with threadpool_limits(1, user_api="blas"):
        expected = function(rows)
        for block in (8, 16, 32):
            parts = [function(rows[i : i + block]) for i in range(0, count, block)]
            assert np.concatenate(parts).tobytes() == expected.tobytes()
        order = rng.permutation(count)
        assert function(rows[order]).tobytes() == expected[order].tobytes()
        shifted = np.concatenate([rows[:1], rows])[1:]  # begins elsewhere in memory
        assert function(shifted).tobytes() == expected.tobytes()
        for i in range(10):
            alone = np.zeros((ROW_BLOCK, *rows.shape[1:]), rows.dtype)
            alone[i % ROW_BLOCK] = rows[i]
            assert function(alone)[i % ROW_BLOCK].tobytes() == expected[i].tobytes()


@pytest.mark.parametrize("hidden", [(64, 64), (400, 300), (7,), (512, 512), ()])
@pytest.mark.parametrize("width", [4, 105, 11])
def test_a_row_has_the_same_bits_in_any_company(hidden, width):
    acting = ActingPolicy(random_snapshot(width, 3, True, hidden))
    rows = np.random.default_rng(1).standard_normal((64, width)).astype(np.float32)
    assert_same_in_any_company(acting.forward, rows)


# Large layers: inputs, outputs, the type in which they compute, and the parts of their weights.
LARGE = [
    (512, 512, "float64", 3),
    (1100, 133, "float64", 2),
    (512, 481, "float64", 3),
    (1100, 1001, "float64", 9),
    (8192, 16, "float64", 1),
    (3136, 512, "float32", 16),
]


# Processors that OpenBLAS has products for, and what it needs to run them.
PROCESSORS = {"Haswell": "avx2", "Sandybridge": "avx"}


@pytest.mark.parametrize(("inputs", "outputs", "dtype", "count"), LARGE)
def test_a_large_layer_is_a_plain_product_in_any_company(inputs, outputs, dtype, count):
    snapshot = random_snapshot(inputs, outputs, True, ())
    arrays = snapshot.layers[0].arrays
    layer = LAYERS["dense"](**arrays)
    assert layer.dtype == dtype and len(layer.weight_blocks()) == count
    rows = np.random.default_rng(1).standard_normal((16, inputs)).astype(np.float32)
    expected = np.einsum("bi,io->bo", rows, arrays["weight"], dtype=np.float64) + arrays["bias"]
    acting = ActingPolicy(snapshot)
    np.testing.assert_allclose(acting.forward(rows), expected, rtol=1e-5, atol=1e-5)
    assert_same_in_any_company(acting.forward, rows)


@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_large_layer_gives_the_same_bits_on_other_processors(processor):
    """With OpenBLAS's products for processors whose instructions this one has, too."""
    features = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if PROCESSORS[processor] not in features:
        pytest.skip(f"this processor has no {PROCESSORS[processor]}")
    code = """
from threadpoolctl import threadpool_info
from tests.nets.test_company import *
print(*(each.get("architecture") for each in threadpool_info()))
for large in LARGE:
    test_a_large_layer_is_a_plain_product_in_any_company(*large)
"""
    environment = os.environ | {"OPENBLAS_CORETYPE": processor}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    if processor not in done.stdout:
        pytest.skip("NumPy computes without an OpenBLAS that chooses by processor")


def picture(rows: int, columns: int, channels: int, height: int, width: int) -> dict[str, int]:
    """Sizes of pictures, and of filters for them."""
    filters = {"height": height, "width": width, "channels": channels, "filters": 5}
    return {"rows": rows, "columns": columns} | filters


# By width: what the numbers of an observation may show.
PICTURES = {
    1: picture(1, 1, 1, 1, 1),
    7: picture(1, 7, 1, 1, 3),
    64: picture(8, 4, 2, 3, 2),
    300: picture(10, 10, 3, 4, 4),
}


def layer_of(kind: str, width: int, rng: np.random.Generator) -> tuple[Layer, int]:
    """A random layer of any kind for so many numbers, one of `PICTURES`, and the width of its
    output."""
    sizes = {"in": width, "out": 37} | PICTURES[width]
    arrays = {
        # Above 0, as a standard deviation is.
        name: rng.uniform(0.1, 1, [sizes.get(size, size) for size in shape]).astype(np.float32)
        for name, shape in LAYERS[kind].arrays.items()
    }
    if LAYERS[kind].state is not None:
        # Of both signs, because the gates of a sum of many would all be 1.
        arrays = {name: (array - 0.55) / np.sqrt(width) for name, array in arrays.items()}
        arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    size = [width, 3] if kind == "frames" else [sizes["rows"], sizes["columns"]]
    integers = {"size": size, "stride": [2], "widths": [width]}
    integers |= {"places": range(0, width, 3), "width": [width]}
    arrays |= {name: np.array(integers[name], np.int32) for name in LAYERS[kind].integers}
    output = sizes["out"] if any("out" in s for s in LAYERS[kind].arrays.values()) else width
    return Layer(kind, arrays), LAYERS[kind](**arrays).sizes().get("out", output)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("width", PICTURES)
def test_every_kind_of_layer_gives_the_same_bits_in_any_company(kind, width):
    rng = np.random.default_rng(width)
    layer, output = layer_of(kind, width, rng)
    weight = rng.standard_normal((width, width)).astype(np.float32)
    first = Layer("dense", {"weight": weight, "bias": np.ones(width, np.float32)})
    head = Layer("gaussian", {"log_std": np.zeros(output, np.float32)})
    acting = ActingPolicy(PolicySnapshot(0, (first, layer), head))
    rows = rng.standard_normal((64, width)).astype(np.float32)
    if LAYERS[kind].state is None:
        assert_same_in_any_company(acting.forward, rows)
        return

    def step(rows: np.ndarray) -> np.ndarray:
        """Observations and states side by side, to outputs and the next states."""
        states = acting.states(len(rows))
        (array,) = states.arrays
        array[:] = rows[:, width:].reshape(array.shape)
        output = acting.forward(rows[:, :width], states)
        return np.concatenate([output, array.reshape(len(rows), -1)], axis=1)

    numbers = acting.states(1).arrays[0].size
    state = rng.standard_normal((64, numbers)).astype(np.float32)
    assert_same_in_any_company(step, np.concatenate([rows, state], axis=1))


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("actions", [1, 2, 6, 11])
def test_every_kind_of_head_gives_the_same_bits_in_any_company(kind, actions):
    layer, width = head_of(kind, actions)
    rng = np.random.default_rng(actions)
    head = HEADS[kind](width, **layer.arrays)
    output = rng.standard_normal((64, width)) * 3
    uniform = rng.random((64, head.noise_width))
    noise = uniform if head.noise == "uniform" else rng.standard_normal(uniform.shape)
    both = np.concatenate([output, noise], axis=1)
    functions = [
        (head.greedy, output),
        (lambda rows: head.sample(rows[:, :width], rows[:, width:]), both),
    ]
    if kind == "epsilon_greedy_distribution":
        # Actions hide in which order the atoms are added.
        functions.append((head.values, output))
    for function, rows in functions:
        assert_same_in_any_company(function, rows)
        expected = function(rows)
        for size in (*range(1, 8), 13, 27):
            parts = [function(rows[i : i + size]) for i in range(0, 64, size)]
            assert np.concatenate(parts).tobytes() == expected.tobytes()
        assert function(np.asfortranarray(rows)).tobytes() == expected.tobytes()
    sampled, greedy = head.sample(output, noise), head.greedy(output)
    assert sampled.shape == greedy.shape == (64, *head.shape)
    assert sampled.dtype == greedy.dtype == head.dtype
