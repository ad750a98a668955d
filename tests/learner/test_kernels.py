"""Machine code beside slow formulas in float64. Whole networks are in test_gradients.py, Adam in
test_adam.py, epochs in test_epochs.py."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from flame_rl.learner.kernels import engine
from flame_rl.learner.kernels.elementwise import ACTIVATIONS, log, log1p
from flame_rl.learner.kernels.emit import LANES, Function, padded
from flame_rl.learner.kernels.learning.network import CompiledNetwork
from flame_rl.learner.kernels.library import library
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir

from flame_rl.nets.heads import RawOutput
from flame_rl.nets.layers import OBSERVATION_CLIP, NormalizeLayer
from tests.learner.test_epochs import trained_network

NAMES = itertools.count()
SIZES = st.integers(1, 70)


def compiled(write, **kinds: str):
    """A function of its own; `write` writes its statements, given the function."""
    library()
    name = f"test{next(NAMES)}"
    f = Function(ir.Module(), name, **kinds)
    write(f)
    f.end(for_python=True)
    engine.load(f.module)
    return engine.function(name, [*kinds.values()])


def of_library(name: str, arrays: int, integers: int):
    """A function of the library, for Python."""
    kinds = {f"a{number}": "array" for number in range(arrays)}
    kinds |= {f"i{number}": "integer" for number in range(integers)}
    return compiled(lambda f: f.call(name, *f.arguments), **kinds)


PRODUCT = of_library("product", 4, 8)
TRANSPOSE = of_library("transpose", 2, 3)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@settings(max_examples=150, deadline=None)
@given(m=SIZES, k=SIZES, n=st.integers(1, 200), gap=st.booleans(), transposed=st.booleans())
def test_products(m, k, n, gap, transposed):
    a, b, start = random(m, k), random(k, n + 3, seed=1), random(n, seed=2)
    left = np.ascontiguousarray(a.T) if transposed else a
    c_row = padded(n) if gap else n
    # What lies behind the result must stay.
    c = np.full(m * c_row + LANES, 7, np.float32)
    strides = (1, m) if transposed else (k, 1)
    PRODUCT(c, left, b, start, c_row, *strides, n + 3, 1, m, k, n)
    assert (c[m * c_row :] == 7).all()
    rows = c[: m * c_row].reshape(m, c_row)
    expected = a.astype(float) @ b[:, :n].astype(float) + start
    np.testing.assert_allclose(rows[:, :n], expected, atol=3e-5)
    assert (rows[:, n:] == 0).all()


@settings(max_examples=100, deadline=None)
@given(m=SIZES, n=SIZES, gap=st.sampled_from([0, LANES]))
def test_transposes(m, n, gap):
    row = padded(m) + gap
    a, t = random(m, n), np.full((n + 1) * row, 7, np.float32)
    TRANSPOSE(t, a, row, m, n)
    assert (t[n * row :] == 7).all()
    rows = t[: n * row].reshape(n, -1)
    assert (rows[:, :m] == a.T).all()
    assert (rows[:, padded(m) :] == 7).all()


def lanes_of(function) -> np.ndarray:
    """A function of vectors, over special numbers and a wide range, beside its arguments."""
    special = [0, -0.0, 1e-30, -1e-30, 1e-8, 0.5, -0.5, 87, -87, 3e38, -3e38]
    special += [np.inf, -np.inf, np.nan]
    x = np.concatenate([special, np.linspace(-40, 40, 3000), np.linspace(-1, 1, 570)])
    x = x.astype(np.float32)
    assert len(x) % LANES == 0

    def write(f):
        y, x, count = f.arguments
        with f.loop(count, step=LANES) as i:
            (y + i).store(function((x + i).load()))

    y = np.empty_like(x)
    compiled(write, y="array", x="array", count="integer")(y, x, len(x))
    return x.astype(float), y


def log_of_square(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float32)
    y = np.log((x * x + 1).astype(float))
    return np.where(np.isfinite(y), y, np.nan)


@pytest.mark.parametrize(
    ("ours", "exact"),
    [
        (np.exp, np.exp),
        (np.expm1, np.expm1),
        (ACTIVATIONS["tanh"].value, np.tanh),
        (ACTIVATIONS["relu"].value, lambda x: np.where(x < 0, 0, x)),
        (ACTIVATIONS["silu"].value, lambda x: x / (1 + np.exp(-x))),
        (lambda x: np.minimum(x, 0.25), lambda x: np.minimum(x, np.float32(0.25))),
        (lambda x: np.maximum(x, 0.25), lambda x: np.maximum(x, np.float32(0.25))),
        (lambda x: np.where(x <= 0.25, -x, x / 2), lambda x: np.where(x <= 0.25, -x, x / 2)),
        (lambda x: 2 + 3 / (x * x + 1), lambda x: 2 + 3 / (x * x + 1)),
        (lambda x: log1p(x.within(0, 1)), lambda x: np.log1p(x.clip(0, 1))),
        (lambda x: log(x * x + 1), log_of_square),
    ],
)
def test_functions_of_a_number(ours, exact):
    x, y = lanes_of(ours)
    with np.errstate(all="ignore"):
        expected = exact(x)
        narrow = expected.astype(np.float32)
    assert (np.isnan(y) == np.isnan(expected)).all()
    finite = np.isfinite(narrow) & (np.abs(x) < 87.5)
    # e^x ends at e^88; all else is infinite where it should be.
    infinite = np.isinf(narrow)
    assert (y[infinite] == narrow[infinite]).all()
    error = np.abs(y[finite] - expected[finite])
    assert (error <= 4e-7 * np.abs(expected[finite]) + 1e-37).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slopes_are_those_of_finite_differences(name):
    activation = ACTIVATIONS[name]

    def slope(x):
        kept = x if activation.keeps_input else activation.value(x)
        return activation.slope(x * 0 + 3.0, kept)

    x, ours = lanes_of(slope)
    exact = {
        "tanh": lambda x: 1 / np.cosh(x) ** 2,
        "relu": lambda x: (x > 0) * 1.0,
        "silu": lambda x: (np.tanh(x / 2) + 1) / 2 * (1 + x * (1 - np.tanh(x / 2)) / 2),
    }[name]
    near = np.abs(x) < 20
    np.testing.assert_allclose(ours[near], 3 * exact(x[near]), atol=3e-6)
    assert np.isnan(ours[np.isnan(x)]).all()


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 400))
def test_squared_norm(count):
    x, result = random(count + 5), np.empty(LANES, np.float32)
    x[count:] = np.nan
    library()["squared_norm"](result, x, count)
    assert result.sum() == pytest.approx((x[:count].astype(float) ** 2).sum(), rel=1e-5)


def test_several_threads_may_compile():
    """As the slices of a first minibatch do."""
    made, errors = [], []
    barrier = threading.Barrier(4)

    @engine.compiled_once
    def twice(number: int):
        made.append(number)
        return compiled(
            lambda f: f.arguments[0].store(f.arguments[0].load() * float(number)), x="array"
        )

    def call() -> None:
        barrier.wait()
        for number in range(2, 6):
            x = np.ones(LANES, np.float32)
            twice(number)(x)
            if not (x == number).all():
                errors.append(number)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [2, 3, 4, 5]
    assert not errors


def test_what_does_not_fit_is_refused():
    """Machine code would read on."""
    layers = trained_network().network.layers
    x = random(8, layers.stages[0].inputs)
    output, kept = layers.forward(x)
    for wrong in (x[:, 1:], x[:, :, None][:, :2]):
        with pytest.raises(ValueError, match="reshape"):
            layers.forward(wrong)
    with pytest.raises(ValueError, match="reshape"):
        layers.to_parameters(kept, output[1:], np.empty(0, np.float32))
    normalizer = NormalizeLayer(mean=random(3), std=np.ones(3, np.float32))
    network = CompiledNetwork(layers, RawOutput(), normalizer=normalizer)
    with pytest.raises(ValueError, match="reshape"):
        network.prepare(random(8, 4))
    with pytest.raises(ValueError, match="reshape"):
        layers.to_inputs(kept, output[1:])


@pytest.mark.parametrize("width", [1, LANES, 2 * LANES + 3])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_observations_are_normalised_to_the_same_bits(width, dtype):
    layer = NormalizeLayer(mean=random(width), std=np.abs(random(width, seed=1)) + 0.01)
    x = (100 * random(7, width, seed=2)).astype(dtype)
    if dtype is np.float32:
        x[3, -1], x[4, 0] = np.nan, np.inf
    network = CompiledNetwork(trained_network().network.layers, RawOutput(), normalizer=layer)
    ours = network.prepare(x)
    assert ours.dtype == np.float32 and np.abs(ours[5]).max() <= OBSERVATION_CLIP
    np.testing.assert_array_equal(ours, layer.normalize(x))
