"""Round trips, and bytes that must be refused."""

import dataclasses
import json
import pickle
import re
import struct

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from flame_rl.nets.acting import ActingPolicy
from flame_rl.nets.kinds import HEADS
from flame_rl.wire import codec, packing
from flame_rl.wire.fields import WireError
from flame_rl.wire.inputs import step_columns
from flame_rl.wire.messages import CollectFailure, Column, Environment, Episode
from tests.helpers import (
    assert_same_episodes,
    episode_of,
    random_snapshot,
    snapshot_with,
    spec_of,
    together,
)
from tests.hostile import REQUEST, Bomb, decodes_or_refuses, refused_without_memory

CATEGORICAL = random_snapshot(3, 2, continuous=False)
GAUSSIAN = random_snapshot(3, 2, continuous=True, normalizes=True)
FACTORED = random_snapshot(3, 5, continuous=False, choices=(2, 3))


def episode(index: int, steps: int, continuous: bool) -> Episode:
    rng = np.random.default_rng(index)
    return episode_of(
        index=index,
        observations=rng.standard_normal((steps + 1, 3)).astype(np.float32),
        actions=rng.standard_normal((steps, 2)).astype(np.float32)
        if continuous
        else rng.integers(0, 2, steps).astype(np.int32),
        rewards=rng.standard_normal(steps),
        terminated=index % 2 == 0,
        truncated=index % 2 == 1,
    )


@pytest.mark.parametrize(
    "snapshot",
    [CATEGORICAL, GAUSSIAN, FACTORED, *(snapshot_with(kind, 3, 2) for kind in HEADS)],
    ids=lambda snapshot: snapshot.head.kind,
)
def test_snapshot_round_trip(snapshot):
    decoded = codec.decode_snapshot(codec.encode_snapshot(snapshot))
    assert decoded.version == snapshot.version
    ours, theirs = ((*s.layers, s.head) for s in (snapshot, decoded))
    for a, b in zip(ours, theirs, strict=True):
        assert a.kind == b.kind and list(a.arrays) == list(b.arrays)
        for name, array in a.arrays.items():
            assert b.arrays[name].dtype == array.dtype
            np.testing.assert_array_equal(b.arrays[name], array)
    ActingPolicy(decoded)


def test_request_round_trip():
    columns = (
        Column("pictures", "uint8", (4, 4, 3), True),
        Column("a", "int32", (2,), False, (3, 4)),
    )
    environment = Environment("X-v0", 17, "fast", ("gain", "cost"))
    others = {"environment": environment}, {"columns": columns}
    for other in ({}, *others, {"stream": "validation"}, {"explore": False}):
        request = dataclasses.replace(REQUEST, **other)
        assert codec.decode_request(codec.encode_request(request)) == request


@pytest.mark.parametrize("continuous", [True, False])
def test_episodes_round_trip(continuous):
    episodes = [episode(4, 1, continuous), episode(9, 5, continuous)]
    request = dataclasses.replace(REQUEST, columns=step_columns(spec_of(3, 2, continuous)))
    data = b"".join(codec.encode_result(together(episodes), request))
    decoded = codec.decode_result(data, request)
    assert_same_episodes(decoded, episodes)


def test_failure_and_description_round_trip():
    failure = CollectFailure("invalid", "NaN", "CartPole-v1", 1, 4, 7, 99, "Traceback: …")
    assert codec.decode_result(codec.encode_failure(failure), REQUEST) == failure
    for spec in (spec_of(3, 2, True), dataclasses.replace(spec_of(3, 2, True), reward_shape=(4,))):
        assert codec.decode_description(codec.encode_description(spec), "X-v0") == spec


@pytest.mark.parametrize("character", ["a", "\U0001f600", "\x1b", "\ud800", "\U000e0001"])
def test_of_a_failure_of_any_length_both_ends_arrive(character):
    text = f"<{character * 200_000}>"
    failure = CollectFailure("simulator", text, "CartPole-v1", traceback=text)
    arrived = codec.decode_result(codec.encode_failure(failure), REQUEST)
    assert arrived == failure
    for arrived_text in (arrived.message, arrived.traceback):
        assert arrived_text.isprintable() and "characters …" in arrived_text
        assert arrived_text[0] + arrived_text[-1] == "<>"


@pytest.mark.parametrize(
    "other",
    [
        {"iteration": 3},
        {"run_seed": 4},
        {"policy_version": 1},
        {"environment": Environment("Other-v0")},
        {"stream": "evaluation"},
        {"explore": False},
    ],
)
def test_the_answer_to_another_question_is_refused(other):
    episodes = together([episode(4, 1, False), episode(9, 5, False)])
    data = b"".join(codec.encode_result(episodes, dataclasses.replace(REQUEST, **other)))
    with pytest.raises(WireError, match="another run, iteration or policy"):
        codec.decode_result(data, REQUEST)


COLUMN = dataclasses.asdict(Column("a", "int32", (2,), False, (2, 3))) | {"shape": [2]}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("stream", "test"), ("stream", 0), ("stream", None), ("explore", 1), ("explore", "no")),
        ("environment", None),
        ("environment", "CartPole-v1"),
        ("environment", {"env_id": "X-v0", "max_episode_steps": -1, "simulator": "auto"}),
        ("columns", []),
        ("columns", [COLUMN] * 2),
        ("columns", [None]),
        ("columns", [COLUMN | {"dtype": "object"}]),
        ("columns", [COLUMN | {"shape": [1 << 40]}]),
        ("columns", [COLUMN | {"shape": [2] * 9}]),
        ("columns", [COLUMN | {"shape": [0]}]),
        ("columns", [COLUMN | {"choices": [2, 2, 2]}]),
        ("columns", [COLUMN | {"choices": [2, 0]}]),
        ("columns", [COLUMN | {"choices": [2, 2], "dtype": "float32"}]),
    ],
)
def test_a_request_of_no_known_kind_is_refused(field, value):
    header = json.loads(json.dumps(dataclasses.asdict(REQUEST))) | {field: value}
    indices = np.array(header.pop("indices"))
    del header["starts"]
    with pytest.raises(WireError, match=f"{field}|dtype|shape|choices|name|env_id|max_ep|per_obs"):
        codec.decode_request(packing.pack("request", header, {"indices": indices}))


def altered(**changes) -> bytes:
    """Two well-formed episodes, but for one field."""
    good = [episode(4, 3, False), episode(9, 2, False)]
    arrays = {
        "index": np.array([4, 9]),
        "lengths": np.array([3, 2]),
        "terminated": np.array([True, False]),
        "truncated": np.array([False, True]),
        "observations": np.concatenate([e.observations for e in good]),
        "actions": np.concatenate([e.actions for e in good]),
        "rewards": np.concatenate([e.rewards for e in good]),
    } | changes
    arrays = {
        f"columns.{k}" if k in ("observations", "actions", "rewards") else k: v
        for k, v in arrays.items()
    }
    return packing.pack(
        "episodes", codec._question(REQUEST), {k: v for k, v in arrays.items() if v is not None}
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("index", np.array([4, 8])),  # not asked for
        ("index", np.array([4, 4])),  # one twice, one missing
        ("lengths", np.array([3, 3])),  # more steps than there are
        ("lengths", np.array([5, 0])),
        ("lengths", np.array([1 << 62, 1 << 62])),  # the sum overflows
        ("lengths", np.array([-3, 8])),
        ("terminated", np.array([2, 0], np.uint8)),
        ("terminated", np.array([False, False])),  # an episode that never ended
        ("observations", np.zeros((7, 4), np.float32)),
        ("observations", np.zeros((7, 3), np.float64)),
        ("observations", np.full((7, 3), np.nan, np.float32)),
        ("observations", None),
        ("actions", np.array([0, 1, 2, 0, 0], np.int32)),  # there are only two
        ("actions", np.array([0, 1, -1, 0, 0], np.int32)),
        ("actions", np.zeros((5, 2), np.float32)),
        ("rewards", np.array([0, 0, np.inf, 0, 0])),
        ("surprise", np.zeros(3)),
    ],
)
def test_a_wrong_field_is_refused(field, value):
    with pytest.raises(WireError, match=f"{field}|observations"):
        codec.decode_result(altered(**{field: value}), REQUEST)


def test_a_choice_of_several_is_checked_by_its_own_range():
    columns = (Column("actions", "int32", (2,), False, (2, 3)), *REQUEST.columns[::2])
    request = dataclasses.replace(REQUEST, columns=columns)
    good = np.array([[0, 2], [1, 1], [1, 0], [0, 0], [1, 2]], np.int32)
    arrived = codec.decode_result(altered(actions=good), request)
    assert arrived.actions.tobytes() == good.tobytes()
    for place, value in (((0, 0), 2), ((4, 1), 3), ((2, 1), -1)):
        wrong = good.copy()
        wrong[place] = value
        with pytest.raises(WireError, match=r"columns.actions: a choice"):
            codec.decode_result(altered(actions=wrong), request)


TANH = {"kind": "tanh", "arrays": []}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": [TANH] * 65}, "layers: a list of 0 to 64 entries, not [{'kind': 'tanh', "),
        ({"layers": 3}, "layers: a list, not 3"),
        ({"layers": [TANH, 3]}, "layers[1]: an object, not 3"),
        ({"layers": [TANH | {"arrays": 3}]}, "layers[0].arrays: a list, not 3"),
        ({"layers": [TANH | {"arrays": ["x"]}]}, "array 0.x: missing"),
        ({"layers": [TANH | {"kind": 3}]}, "layers[0].kind: a text, not 3"),
        ({"head": None}, "head: an object, not None"),
        ({"weights": 3}, "weights: there is no such field"),
    ],
)
def test_a_snapshot_of_no_known_form_is_refused(change, words):
    header = {"version": 0, "layers": [], "head": {"kind": "categorical", "arrays": []}} | change
    with pytest.raises(WireError, match=f"^{re.escape(words)}"):
        codec.decode_snapshot(packing.pack("snapshot", header, {}))


def test_weights_that_are_not_finite_are_refused():
    snapshot = random_snapshot(3, 2, continuous=False)
    snapshot.layers[2].arrays["bias"][1] = np.nan
    with pytest.raises(WireError, match=r"^array 2\.bias: not finite$"):
        codec.decode_snapshot(codec.encode_snapshot(snapshot))


HOSTILE = {
    "empty": b"",
    "pickle": pickle.dumps(Bomb()),
    "magic alone": packing.MAGIC,
    "header of gigabytes": packing.MAGIC + struct.pack("<I", 0xFFFFFFFF) + b"{}",
    "not JSON": packing.MAGIC + struct.pack("<I", 3) + b"abc",
    "a list": packing.MAGIC + struct.pack("<I", 2) + b"[]",
    "deep JSON": packing.MAGIC + struct.pack("<I", 200_000) + b"[" * 200_000,
    "safetensors header of gigabytes": packing.MAGIC
    + struct.pack("<I", 19)
    + json.dumps({"type": "episodes"}, separators=(",", ":")).encode()
    + struct.pack("<Q", 1 << 40)
    + b"{}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused_without_memory(name):
    with refused_without_memory(WireError):
        codec.decode_result(HOSTILE[name], REQUEST)


NUMBERS = (*"?bBhHiIqQefd",)


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.sampled_from(NUMBERS).flatmap(
            lambda code: arrays(code, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
        ),
        max_size=5,
    )
)
def test_arrays_are_those_of_safetensors(named):
    """What is written, its library reads; what it writes is read here."""
    data = packing.pack("x", {}, named)
    start = len(packing.MAGIC) + 4 + int.from_bytes(data[8:12], "little")
    again = packing.unpack(data[:start] + safetensors.numpy.save(named), "x")[1]
    for arrived in (safetensors.numpy.load(data[start:]), packing.unpack(data, "x")[1], again):
        assert arrived.keys() == named.keys()
        for name, array in named.items():
            assert arrived[name].dtype == array.dtype and arrived[name].shape == array.shape
            assert arrived[name].tobytes() == array.tobytes()


def test_arrays_are_sent_and_received_without_a_copy():
    values = np.arange(6.0)
    sent = packing.pack_buffers("x", {}, {"values": values})
    assert np.shares_memory(np.frombuffer(sent[-1], np.uint8), values)
    data = bytearray(b"".join(sent))
    arrived = packing.unpack(data, "x")[1]["values"]
    arrived[:] = 7
    assert (packing.unpack(data, "x")[1]["values"] == 7).all()
    # Of what is read-only, and of what lies between the words of memory, there is a copy.
    for other in (bytes(data), memoryview(bytearray(b"-" + data))[1:]):
        array = packing.unpack(other, "x")[1]["values"]
        assert array.flags.writeable and array.flags.aligned and (array == 7).all()


def entry(dtype="F32", shape=(2,), begin=0, end=8) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": (begin, end)}


@pytest.mark.parametrize(
    "entries",
    [
        {"a": entry(end=16, shape=(4,))},  # beyond the end
        {"a": entry(end=4)},
        {"a": entry(shape=(1,))},
        {"a": entry(), "b": entry()},  # twice the same bytes
        {"a": entry(begin=4, end=12)},
        {},  # eight bytes of nobody
        {"a": entry(begin=-8, end=0)},
        {"a": entry(shape=(-1, -2))},
        {"a": entry(shape=(2, 1 << 70, 0), end=0), "b": entry()},
        {"a": entry(shape=(2, *[1] * 40))},
        {"a": entry(shape=2)},
        {"a": entry(shape=(2.0,))},
        {"a": entry(shape=(True, 2))},
        {"a": entry("F31")},
        {"a": entry(["F32"])},
        {"a": entry("BOOL", (8,))},  # neither 0 nor 1
        {"a": {**entry(), "data_offsets": (0, 8, 8)}},
        {"a": [0, 8]},
        {"a": None},
        [entry()],
    ],
)
def test_arrays_that_cannot_be_are_refused(entries):
    listed = json.dumps(entries).encode()
    start = packing.pack("x", {}, {})[: -len(struct.pack("<Q", 0)) - len(b"{}      ")]
    whole = {"a": entry()}
    for described in (listed, json.dumps(whole).encode()):
        data = start + struct.pack("<Q", len(described)) + described + b"\1\2" * 4
        if described == listed:
            with pytest.raises(WireError, match="arrays"):
                packing.unpack(data, "x")
        else:
            assert packing.unpack(data, "x")[1].keys() == {"a"}


GOOD = altered()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_one_changed_byte(position, value):
    decodes_or_refuses(GOOD[:position] + bytes([value]) + GOOD[position + 1 :])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.binary(max_size=40))
def test_truncated_with_a_tail(position, tail):
    decodes_or_refuses(GOOD[:position] + tail)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            ["version", "layers", "head", "environment", "columns", "observation_space", "env_id"]
        ),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    ),
    st.sampled_from(["snapshot", "request", "failure", "describe", "description"]),
)
def test_headers_of_any_content(header, kind):
    decodes_or_refuses(packing.pack(kind, header, {}))
