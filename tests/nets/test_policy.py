"""The NumPy forward pass against torch, and the law that neighbours do not matter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from threadpoolctl import threadpool_limits

import model
from flame_rl.modules.layers import Activation, LayerNorm
from flame_rl.modules.recurrent import GRU, LSTM, MEMORIES
from flame_rl.nets.acting import ActingPolicy, check_snapshot
from flame_rl.nets.kinds import HEADS, LAYERS
from flame_rl.nets.layers import ROW_BLOCK
from flame_rl.settings.config import TrainConfig
from flame_rl.wire.messages import MAX_LAYERS, EnvironmentSpec, Layer, PolicySnapshot
from flame_rl.wire.packing import WireError
from tests.helpers import ROOT, head_of, random_snapshot, spec_of

ACTIVATIONS = ["tanh", "relu", "silu"]


def policy_of(
    continuous: bool, activation: str, hidden=(32, 16), normalizes: bool = False, action_space=None
) -> torch.nn.Module:
    spec = spec_of(5, 3, continuous)
    if action_space is not None:
        spec = EnvironmentSpec("X-v0", spec.observation_space, action_space)
    config = TrainConfig(
        activation=activation, hidden_sizes=hidden, normalize_observations=normalizes
    )
    policy = model.policy(spec, config)
    if normalizes:
        policy.normalizer.set(np.array([0, 1, -2, 5, 0.5]), np.array([1, 0.1, 3, 9, 1e-4]))
    with torch.no_grad():  # away from the small first outputs
        for parameter in policy.parameters():
            parameter += 0.3 * torch.randn(parameter.shape)
    return policy


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("normalizes", [True, False])
def test_numpy_equals_torch(activation, continuous, normalizes):
    torch.manual_seed(1)
    policy = policy_of(continuous, activation, normalizes=normalizes).double()
    observations = np.random.default_rng(0).standard_normal((24, 5)).astype(np.float32)
    observations[0] *= 1000
    with torch.no_grad():
        rows = torch.from_numpy(observations).double()
        if normalizes:
            rows = ((rows - policy.normalizer.mean) / policy.normalizer.std).clip(-10, 10)
        expected = policy.network(rows).numpy()
    acting = ActingPolicy(policy.float().snapshot())
    np.testing.assert_allclose(acting.forward(observations), expected, rtol=1e-4, atol=1e-5)


def test_a_layer_norm_acts_as_torchs():
    torch.manual_seed(1)
    policy = policy_of(True, "tanh")
    policy.network.insert(1, LayerNorm(32))
    with torch.no_grad():
        for parameter in policy.network[1].parameters():
            parameter += torch.randn(parameter.shape)
    observations = np.random.default_rng(0).standard_normal((24, 5)).astype(np.float32)
    with torch.no_grad():
        expected = policy(torch.from_numpy(observations)).numpy()
    acting = ActingPolicy(policy.snapshot())
    np.testing.assert_allclose(acting.forward(observations), expected, rtol=1e-4, atol=1e-5)


@np.errstate(over="ignore")
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_activation_sees_one_number_at_a_time(name, dtype):
    activation, torchs = LAYERS[name]().act, Activation(name)
    x = (np.random.default_rng(5).standard_normal(10_000) * 4).astype(dtype)
    x[:6] = 0, 1e-30, -1e-30, np.finfo(dtype).max, np.finfo(dtype).min, 88
    expected = activation(x.copy())
    np.testing.assert_allclose(expected, torchs(torch.from_numpy(x)), rtol=1e-6, atol=1e-6)
    for first in range(40):
        for count in (1, 3, 8, 21):
            part = activation(x[first : first + count].copy())
            assert part.tobytes() == expected[first : first + count].tobytes()
    table = activation(np.concatenate([x, x]).reshape(-1, 8, 10))
    assert table.tobytes() == 2 * expected.tobytes()


def test_observations_of_one_byte_are_scaled_as_torch_scales_them():
    space = spaces.Box(0, 200, (5,), np.uint8)
    spec = EnvironmentSpec("X-v0", space, spaces.Discrete(3))
    policy = model.policy(spec, TrainConfig(algorithm="ppo", hidden_sizes=()))
    observations = np.random.default_rng(0).integers(0, 201, (16, 5)).astype(np.uint8)
    weight, bias = (p.detach().numpy() for p in policy.network.parameters())
    expected = observations / 200 @ weight.T + bias
    forward = ActingPolicy(policy.snapshot()).forward
    np.testing.assert_allclose(forward(observations), expected, rtol=1e-5, atol=1e-7)
    with torch.no_grad():
        np.testing.assert_allclose(
            policy(torch.from_numpy(observations)).softmax(-1),
            np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True),
            rtol=1e-5,
        )
    assert_same_in_any_company(forward, np.repeat(observations, 4, axis=0))


def test_no_hidden_layer_is_a_linear_policy():
    policy = policy_of(False, "tanh", hidden=())
    observations = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    weight, bias = (p.detach().numpy() for p in policy.network.parameters())
    acting = ActingPolicy(policy.snapshot())
    np.testing.assert_allclose(
        acting.forward(observations), observations @ weight.T + bias, rtol=1e-4, atol=1e-6
    )


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
def test_a_large_layer_is_a_plain_product(inputs, outputs, dtype, count):
    snapshot = random_snapshot(inputs, outputs, True, ())
    arrays = snapshot.layers[0].arrays
    layer = LAYERS["dense"](**arrays)
    assert layer.dtype == dtype and len(layer.columns()) == count
    rows = np.random.default_rng(1).standard_normal((16, inputs)).astype(np.float32)
    expected = np.einsum("bi,io->bo", rows, arrays["weight"], dtype=np.float64) + arrays["bias"]
    found = ActingPolicy(snapshot).forward(rows)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("inputs", "outputs", "dtype", "count"), LARGE)
def test_a_large_layer_gives_the_same_bits_in_any_company(inputs, outputs, dtype, count):
    acting = ActingPolicy(random_snapshot(inputs, outputs, True, ()))
    rows = np.random.default_rng(1).standard_normal((16, inputs)).astype(np.float32)
    assert_same_in_any_company(acting.forward, rows)


@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_large_layer_gives_the_same_bits_on_other_processors(processor):
    """With OpenBLAS's products for processors whose instructions this one has, too."""
    features = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if PROCESSORS[processor] not in features:
        pytest.skip(f"this processor has no {PROCESSORS[processor]}")
    code = """
from threadpoolctl import threadpool_info
from tests.nets.test_policy import *
print(*(each.get("architecture") for each in threadpool_info()))
for large in LARGE:
    test_a_large_layer_gives_the_same_bits_in_any_company(*large)
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


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("width", PICTURES)
def test_every_kind_of_layer_gives_the_same_bits_in_any_company(kind, width):
    rng = np.random.default_rng(width)
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
    output = LAYERS[kind](**arrays).sizes().get("out", output)
    weight = rng.standard_normal((width, width)).astype(np.float32)
    first = Layer("dense", {"weight": weight, "bias": np.ones(width, np.float32)})
    head = Layer("gaussian", {"log_std": np.zeros(output, np.float32)})
    acting = ActingPolicy(PolicySnapshot(0, (first, Layer(kind, arrays)), head))
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


@pytest.mark.parametrize("kind", MEMORIES)
def test_numpy_equals_torch_step_by_step(kind):
    """Over 40 steps of 8 episodes: one product at a time here, whole sequences there."""
    torch.manual_seed(4)
    memory = MEMORIES[kind](5, 7)
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter += 0.4 * torch.randn(parameter.shape)
    head = Layer("gaussian", {"log_std": np.zeros(7, np.float32)})
    acting = ActingPolicy(PolicySnapshot(0, (memory.layer(),), head))
    observations = np.random.default_rng(0).standard_normal((40, 8, 5)).astype(np.float32) * 2
    with torch.no_grad():
        expected = memory.double()(torch.from_numpy(observations).double()).numpy()
    states = acting.states(8)
    for observation, output in zip(observations, expected, strict=True):
        got = acting.forward(observation, states)
        np.testing.assert_allclose(got, output, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kind", MEMORIES)
def test_a_new_memory_keeps_three_quarters_of_its_state(kind):
    memory = MEMORIES[kind](3, 16)
    with torch.no_grad():  # nothing else comes in, and the gates have their biases alone
        memory.weight_hh_l0.zero_()
    head = Layer("gaussian", {"log_std": np.zeros(16, np.float32)})
    acting = ActingPolicy(PolicySnapshot(0, (memory.layer(),), head))
    states = acting.states(8)
    # Cells of an LSTM, the output of a GRU.
    kept = states.arrays[0].reshape(8, -1, 16)[:, -1]
    kept[:] = 1e-3
    acting.forward(np.zeros((8, 3), np.float32), states)
    np.testing.assert_allclose(kept, 1e-3 / (1 + np.exp(-1.0)), rtol=1e-5)


def snapshot_of(*layers: Layer, head: Layer | None = None) -> PolicySnapshot:
    return PolicySnapshot(0, layers, head or Layer("categorical", {}))


def dense(inputs: int, outputs: int) -> Layer:
    ones = np.ones((inputs, outputs), np.float32)
    return Layer("dense", {"weight": ones, "bias": ones[0]})


FLOATS = np.ones(3, np.float32)


def memory_of(kind: str, **wrong: tuple[int, ...]) -> Layer:
    """A layer with 3 inputs and 4 outputs, some of whose arrays have a wrong shape."""
    arrays = LSTM(3, 4).layer().arrays if kind == "lstm" else GRU(3, 4).layer().arrays
    return Layer(kind, arrays | {name: np.ones(shape, np.float32) for name, shape in wrong.items()})


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        (snapshot_of(dense(3, 4), dense(5, 2)), r"layer 1 \(dense\): weight: shape \(5, 2\).*4"),
        (
            snapshot_of(Layer("dense", dense(3, 4).arrays | {"bias": FLOATS})),
            r"layer 0 \(dense\): bias: shape \(3,\) where \(4,\)",
        ),
        (snapshot_of(Layer("dense", {})), r"layer 0 \(dense\): arrays \[\]"),
        (snapshot_of(dense(3, 0)), "layer 0.*weight: shape"),
        (
            snapshot_of(Layer("normalize", {"mean": FLOATS, "std": FLOATS}), dense(4, 2)),
            "layer 1.*weight",
        ),
        (snapshot_of(Layer("normalize", {"mean": FLOATS, "std": 0 * FLOATS})), "std: not above 0"),
        (
            snapshot_of(Layer("normalize", {"mean": FLOATS.astype(float), "std": FLOATS})),
            "mean: float64",
        ),
        (
            snapshot_of(dense(3, 4), Layer("mish", {})),
            r"layer 1 \(mish\): none of normalize, scale",
        ),
        (
            snapshot_of(dense(3, 2), memory_of("gru")),
            r"layer 1 \(gru\): input_weight: shape \(3, 3, 4\) where \(2, 3\)",
        ),
        (
            snapshot_of(memory_of("gru", state_weight=(4, 3, 5))),
            r"layer 0 \(gru\): state_weight: shape \(4, 3, 5\) where \(4, 3, 4\)",
        ),
        (snapshot_of(memory_of("gru", input_bias=(4, 4))), r"input_bias: shape \(4, 4\) where \(3"),
        (snapshot_of(memory_of("gru", state_bias=(12,))), "state_bias: .* of 2 dimensions"),
        (snapshot_of(memory_of("lstm", input_weight=(3, 3, 4))), r"\(lstm\): input_weight: shape"),
        (snapshot_of(memory_of("lstm", bias=(4, 3))), r"bias: shape \(4, 3\) where \(4, 4\)"),
        (snapshot_of(memory_of("lstm"), dense(5, 2)), r"layer 1 \(dense\): weight: shape \(5, 2\)"),
        (snapshot_of(Layer("tanh", {})), "without a layer that says how wide"),
        (snapshot_of(), "without a layer"),
        (snapshot_of(dense(3, 4), head=Layer("beta", {})), r"head \(beta\): none of factored"),
        (
            snapshot_of(dense(3, 4), head=Layer("gaussian", {"log_std": FLOATS})),
            r"head \(gaussian\): log_std: shape \(3,\) where \(4,\)",
        ),
        (
            snapshot_of(
                dense(3, 4), head=Layer("factored", {"choices": np.array([2, 3], np.int32)})
            ),
            r"head \(factored\): choices: \[2, 3\].*sum is 4",
        ),
        (
            snapshot_of(
                dense(3, 4), head=Layer("factored", {"choices": np.array([5, -1], np.int32)})
            ),
            "choices",
        ),
        (snapshot_of(*[dense(2, 2)] * (MAX_LAYERS + 1)), "65 layers.*at most 64"),
    ],
)
def test_layers_that_do_not_fit_are_refused_by_name(snapshot, words):
    for check in (check_snapshot, ActingPolicy):
        with pytest.raises(WireError, match=words):
            check(snapshot)


def test_as_many_layers_as_there_may_be():
    check_snapshot(snapshot_of(*[dense(2, 2)] * MAX_LAYERS))


def test_a_module_without_a_counterpart_is_refused():
    policy = policy_of(False, "tanh")
    policy.network.append(torch.nn.Dropout())
    with pytest.raises(TypeError, match="Dropout is no `LayerModule`"):
        policy.snapshot()


FACTORED = {
    "MultiDiscrete": spaces.MultiDiscrete([2, 4, 1, 3]),
    "shaped": spaces.MultiDiscrete([[2, 4], [3, 2]], start=[[1, 0], [5, -3]]),
    "MultiBinary": spaces.MultiBinary(5),
}


@pytest.mark.parametrize("name", FACTORED)
def test_torch_and_numpy_agree_on_several_choices(name):
    """Log-probabilities against torch.distributions, frequencies against probabilities."""
    torch.manual_seed(2)
    space = FACTORED[name]
    policy = policy_of(False, "relu", action_space=space)
    counts = np.ravel(space.nvec) if name != "MultiBinary" else np.full(5, 2)
    observation = np.random.default_rng(4).standard_normal((1, 5)).astype(np.float32)
    rows = np.repeat(observation, 8000, axis=0)
    acting = ActingPolicy(policy.snapshot())
    assert acting.output_dim == counts.sum()
    noise = acting.draw_noise(np.random.default_rng(0), len(rows))
    actions = acting.act(rows, noise)
    assert actions.shape == (8000, len(counts)) and actions.dtype == np.int32

    logits = torch.from_numpy(acting.forward(rows[:8])[0])
    parts, end = [], 0
    for count in counts:
        parts.append(torch.distributions.Categorical(logits=logits[end : end + count]))
        end += count
    for factor, part in enumerate(parts):
        frequencies = np.bincount(actions[:, factor], minlength=counts[factor]) / len(actions)
        np.testing.assert_allclose(frequencies, part.probs, atol=0.02)
    chosen = torch.from_numpy(actions).long()
    expected = sum(part.log_prob(chosen[:, i]) for i, part in enumerate(parts))
    with torch.no_grad():
        samples = {"inputs": torch.from_numpy(rows), "actions": chosen}
        log_prob, entropy = policy.outputs(samples)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(entropy, sum(part.entropy() for part in parts), rtol=1e-4)
    greedy = acting.act(rows[:8], None)
    assert greedy[0].tolist() == [int(part.probs.argmax()) for part in parts]


def test_rows_that_are_no_multiple_are_refused():
    with pytest.raises(ValueError, match="multiple"):
        ActingPolicy(random_snapshot(3, 2, False)).forward(np.zeros((7, 3), np.float32))


def test_categorical_sampling_by_definition():
    """The action is the first whose cumulated probability exceeds the uniform number."""
    rng = np.random.default_rng(2)
    observations = rng.standard_normal((64, 3)).astype(np.float32) * 3
    for choices in ((4,), (2, 4, 1, 3)):
        factored = choices if len(choices) > 1 else ()
        acting = ActingPolicy(random_snapshot(3, sum(choices), False, choices=factored))
        uniform = rng.random((64, len(choices)))
        actions = acting.act(observations, uniform)
        assert actions.dtype == np.int32
        logits = torch.from_numpy(acting.forward(observations)).split(choices, dim=1)
        for factor, part in enumerate(logits):
            probabilities = torch.softmax(part, dim=1).numpy()
            for row in range(64):
                total, expected = 0.0, 0
                for expected, p in enumerate(probabilities[row]):  # noqa: B007
                    total += p
                    if uniform[row, factor] < total:
                        break
                assert actions.reshape(64, -1)[row, factor] == expected


def test_categorical_frequencies():
    acting = ActingPolicy(random_snapshot(3, 4, False))
    observation = np.tile(np.array([0.3, -1, 2], np.float32), (8000, 1))
    actions = acting.act(observation, np.random.default_rng(0).random((8000, 1)))
    expected = torch.softmax(torch.from_numpy(acting.forward(observation[:8])), dim=1)[0].numpy()
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / 8000, expected, atol=0.02)


def test_gaussian_sampling_by_definition():
    snapshot = random_snapshot(3, 2, True)
    acting = ActingPolicy(snapshot)
    noise = np.random.default_rng(0).standard_normal((8, 2))
    observations = np.ones((8, 3), np.float32)
    expected = (
        acting.forward(observations) + np.exp(np.float64(snapshot.head.arrays["log_std"])) * noise
    )
    np.testing.assert_allclose(acting.act(observations, noise), expected, rtol=1e-6)


@pytest.mark.parametrize("continuous", [True, False])
def test_without_noise_the_likeliest_action_or_the_mean(continuous):
    torch.manual_seed(3)
    policy = policy_of(continuous, "tanh")
    observations = np.random.default_rng(4).standard_normal((64, 5)).astype(np.float32)
    with torch.no_grad():
        output = policy(torch.from_numpy(observations))
    actions = ActingPolicy(policy.snapshot()).act(observations, None)
    if continuous:
        assert actions.dtype == np.float32
        np.testing.assert_allclose(actions, output, rtol=1e-4, atol=1e-5)
    else:
        assert actions.dtype == np.int32
        np.testing.assert_array_equal(actions, output.argmax(dim=1))


def test_extreme_logits_do_not_overflow():
    snapshot = random_snapshot(3, 2, False, hidden=())
    acting = ActingPolicy(snapshot)
    actions = acting.act(np.full((8, 3), 1e30, np.float32), np.full((8, 1), 0.999999))
    assert set(actions) <= {0, 1}
