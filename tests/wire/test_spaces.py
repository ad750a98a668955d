"""Spaces of every kind: flattened, as data, acted in, and trained in."""

import contextlib
import inspect
import json

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from flame_rl.actor.environments.converting import action_converter, write_observation
from flame_rl.nets.acting import ActingPolicy
from flame_rl.wire import codec
from flame_rl.wire.inputs import observation_inputs, observation_parts, step_columns
from flame_rl.wire.messages import EnvironmentSpec
from flame_rl.wire.packing import WireError
from flame_rl.wire.spaces import MAX_NESTING, space_from_data, space_to_data
from tests.helpers import snapshot_for

SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
SMALL = st.integers(-5, 5)
# Gymnasium has them from 1.2.2 on.
OTHER_INTEGERS = "dtype" in inspect.signature(spaces.Discrete).parameters


@st.composite
def boxes(draw) -> spaces.Box:
    shape, dtype = draw(SHAPES), draw(st.sampled_from(["f4", "f8", "f2", "u1", "i8"]))
    size = int(np.prod(shape))
    if dtype[0] == "f":
        low = draw(st.lists(st.sampled_from([-np.inf, -1.5, 0]), min_size=size, max_size=size))
        high = draw(st.lists(st.sampled_from([np.inf, 1 / 3, 7]), min_size=size, max_size=size))
    else:
        low = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
        high = draw(st.lists(st.integers(9, 255), min_size=size, max_size=size))
    bounds = (np.array(bound, dtype).reshape(shape) for bound in (low, high))
    return spaces.Box(*bounds, dtype=np.dtype(dtype).type)


@st.composite
def multi_discretes(draw) -> spaces.MultiDiscrete:
    shape = draw(SHAPES.filter(len))
    size = int(np.prod(shape))
    nvec = draw(st.lists(st.integers(1, 5), min_size=size, max_size=size))
    start = draw(st.lists(SMALL, min_size=size, max_size=size))
    return spaces.MultiDiscrete(np.reshape(nvec, shape), start=np.reshape(start, shape))


LEAVES = st.one_of(
    boxes(),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 6), SMALL),
    multi_discretes(),
    st.builds(spaces.MultiBinary, st.integers(1, 4) | SHAPES.filter(len).map(list)),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.text(max_size=3), inner, min_size=1, max_size=3).map(
            lambda named: spaces.Dict(list(named.items()))
        ),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=6,
)


@given(SPACES, st.integers(0, 1 << 30))
def test_observations_are_flattened_as_gymnasium_does(space, seed):
    space.seed(seed)
    parts = observation_parts(space)
    assert parts[-1].stop == spaces.flatdim(space)
    row = np.full(parts[-1].stop, np.nan, np.float32)
    for _ in range(2):  # nothing is left of what was there before
        observation = space.sample()
        write_observation(parts, observation, row)
        expected = np.asarray(spaces.flatten(space, observation)).astype(np.float32)
        assert row.tobytes() == expected.tobytes()
    for part in parts:
        leaf = observation
        for key in part.path:
            leaf = leaf[key]
        expected = np.asarray(spaces.flatten(part.space, leaf)).astype(np.float32)
        assert row[part.start : part.stop].tobytes() == expected.tobytes()
        assert eval("observation" + part.name) is leaf


@given(SPACES)
def test_a_space_travels_as_data(space):
    data = json.loads(json.dumps(space_to_data(space), allow_nan=False))
    arrived = space_from_data(data, "space")
    assert arrived == space and repr(arrived) == repr(space)
    assert spaces.flatdim(arrived) == spaces.flatdim(space)


def test_bounds_are_exact_and_compact():
    space = spaces.Box(np.float32(-1 / 3), np.float32(np.pi), (400, 400), np.float32)
    data = space_to_data(space)
    assert len(json.dumps(data)) < 200
    arrived = space_from_data(data, "space")
    assert arrived.low.tobytes() == space.low.tobytes()
    assert arrived.high.tobytes() == space.high.tobytes()
    spec = EnvironmentSpec("X-v0", space, spaces.Discrete(2))
    assert codec.decode_description(codec.encode_description(spec), "X-v0") == spec
    random = np.random.default_rng(0).random((400, 400))
    wide = EnvironmentSpec("X-v0", spaces.Box(random, 2.0, dtype=np.float64), spaces.Discrete(2))
    with pytest.raises(WireError, match="bytes to describe"):
        codec.encode_description(wide)


BOX = space_to_data(spaces.Box(-1, 1, (2,), np.float32))
DISCRETE = space_to_data(spaces.Discrete(3))
MULTI = space_to_data(spaces.MultiDiscrete([2, 3]))


def nested(levels: int) -> dict:
    data = DISCRETE
    for _ in range(levels):
        data = {"type": "tuple", "spaces": [data]}
    return data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, r"space: .*not a space"),
        ([], "not a space"),
        ({}, "no known kind"),
        ({"type": "text"}, "no known kind"),
        (nested(MAX_NESTING + 1), "levels"),
        ({"type": "tuple", "spaces": [DISCRETE] * 2000}, "parts"),
        ({"type": "tuple", "spaces": 3}, "a list"),
        ({"type": "dict", "spaces": {"a": DISCRETE}}, "a list"),
        ({"type": "dict", "spaces": [["a"]]}, "expected 2"),
        ({"type": "dict", "spaces": [[3, DISCRETE]]}, "a text"),
        ({"type": "dict", "spaces": [["a", DISCRETE]] * 2}, "twice"),
        ({"type": "dict", "spaces": [["a", {"type": "?"}]]}, r"space\['a'\]"),
        (DISCRETE | {"n": 0}, "positive"),
        (DISCRETE | {"n": -1}, "positive"),
        (DISCRETE | {"n": 1 << 40}, "numbers"),
        (DISCRETE | {"n": True}, "not a number"),
        (DISCRETE | {"n": "3"}, "KeyError"),
        (DISCRETE | {"n": 2.5}, "int64 does not hold"),
        (DISCRETE | {"shape": [2]}, "Error"),
        (DISCRETE | {"dtype": "float32"}, "dtype"),
        (DISCRETE | {"dtype": ["int64"]}, "unhashable"),
        ({"type": "discrete", "dtype": "int64", "n": 3}, "start"),
        (BOX | {"shape": [1 << 30, 1 << 30]}, "numbers"),
        (BOX | {"shape": [-1]}, "shape"),
        (BOX | {"shape": [1] * 9}, "shape"),
        (BOX | {"shape": 2}, "a list"),
        (BOX | {"shape": [2.0]}, "integer"),
        (BOX | {"low": [[0, 3]]}, "3 numbers where 2"),
        (BOX | {"low": [[0, -1], [0, 3]]}, "space.low: an integer from 0"),
        (BOX | {"low": [0, 0]}, "TypeError"),
        (BOX | {"low": "much"}, "KeyError"),
        (BOX | {"low": None}, "not a number"),
        (BOX | {"low": float("nan")}, "not a number"),
        (BOX | {"low": 0.1}, "float32 does not hold"),
        (BOX | {"low": 2.0}, "space"),
        (BOX | {"dtype": "object"}, "dtype"),
        (MULTI | {"nvec": 0}, "space"),
        (MULTI | {"nvec": 1 << 40}, "numbers"),
        (MULTI | {"nvec": "inf"}, "space"),
        ({"type": "multibinary", "n": 1 << 50}, "numbers"),
        ({"type": "multibinary", "n": 0}, "space"),
        ({"type": "multibinary", "n": "3"}, "a list"),
    ],
)
def test_data_that_is_no_space_is_refused(data, words):
    with pytest.raises(WireError, match=words):
        space_from_data(data, "space")


def test_a_space_that_is_no_data_is_refused():
    with pytest.raises(WireError, match="Text"):
        space_to_data(spaces.Dict({"said": spaces.Text(4)}))


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda x: st.lists(x)))
def test_data_of_any_content_is_refused(content):
    for kind in ("box", "discrete", "multidiscrete", "multibinary", "dict", "tuple"):
        for name in ("shape", "n", "low", "nvec", "start", "spaces", "dtype"):
            data = {"type": kind, "dtype": "int64", "shape": [2], "low": 0, "high": 3, "n": 2}
            data |= {"nvec": 2, "start": 0, "spaces": []} | {name: content}
            with contextlib.suppress(WireError):
                space_from_data(data, "space")


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        *([spaces.Discrete(3, start=-4, dtype=np.int32)] if OTHER_INTEGERS else []),
        spaces.MultiDiscrete([[2, 3], [4, 1]], start=[[1, 2], [-3, 0]]),
        spaces.MultiDiscrete([2, 3], dtype=np.int32),
        spaces.MultiBinary(4),
        spaces.MultiBinary([2, 3]),
        spaces.Box(-1, np.array([[0.5, 2], [3, 4]], np.float32), (2, 2)),
        spaces.Box(-1, 1, (), np.float64),
    ],
)
def test_every_action_that_a_policy_takes_is_one_of_its_space(space):
    spec = EnvironmentSpec("X-v0", spaces.Box(-1, 1, (3,)), space)
    acting = ActingPolicy(snapshot_for(spec))
    rows = np.random.default_rng(0).standard_normal((200, 3)).astype(np.float32)
    noise = acting.draw_noise(np.random.default_rng(1), 200)
    actions = acting.act(rows, noise)
    taken = action_converter(space)(actions)
    assert len(taken) == 200 and all(space.contains(action) for action in taken)
    sample = space.sample()
    for action in taken:  # as random actions are, of which environments use `.item()` and `.shape`
        assert type(action) is type(sample)
        assert (action.dtype, action.shape) == (sample.dtype, sample.shape)
    if not spec.continuous:  # every choice comes, and counts from the first one
        flat = np.reshape(taken, (200, -1)).astype(int)
        start = getattr(space, "start", 0)
        np.testing.assert_array_equal(flat - np.ravel(start), actions.reshape(200, -1))
        assert [len(set(column)) for column in flat.T.tolist()] == list(spec.choices)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-1.0, 1.0, [-1, -0.5, 0, 0.25, 1]),
        (5.0, 10.0, [5, 6.25, 7.5, 8.125, 10]),
        (-1000.0, 1000.0, [-1000, -500, 0, 250, 1000]),
        # No bounds, or none that mean anything: the policy's own numbers.
        (-np.inf, np.inf, [-3, -0.5, 0, 0.25, 2]),
        (0.0, np.inf, [0, 0, 0, 0.25, 2]),
        (-3e38, 3e38, [-3, -0.5, 0, 0.25, 2]),
        (2.0, 2.0, [2, 2, 2, 2, 2]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_continuous_actions_reach_from_bound_to_bound(low, high, expected, dtype):
    space = spaces.Box(low, high, (1,), dtype)
    actions = np.array([[-3.0], [-0.5], [0.0], [0.25], [2.0]], np.float32)
    taken = action_converter(space)(actions)
    assert taken.dtype == dtype
    np.testing.assert_array_equal(taken[:, 0], expected)


PICTURE = spaces.Box(0, 255, (7, 6, 3), np.uint8)
FIRST = spaces.Box(0, 255, (3, 8, 9), np.uint8)
BYTES = spaces.Box(0, 255, (4,), np.uint8)
NUMBERS = spaces.Box(-1, 1, (2,), np.float64)
CHOICE = spaces.Discrete(3)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (PICTURE, [("observations", "uint8", 126, (7, 6, 3))]),
        (BYTES, [("observations", "uint8", 4, None)]),
        (NUMBERS, [("observations", "float32", 2, None)]),
        # No picture: all are numbers, as ever.
        (spaces.Dict(a=BYTES, b=CHOICE), [("observations", "float32", 7, None)]),
        (spaces.Dict(a=PICTURE), [("observations", "uint8", 126, (7, 6, 3))]),
        (
            spaces.Dict(a=NUMBERS, b=CHOICE, eye=PICTURE, x=CHOICE),
            [
                ("observations['a'] to ['b']", "float32", 5, None),
                ("observations['eye']", "uint8", 126, (7, 6, 3)),
                ("observations['x']", "float32", 3, None),
            ],
        ),
        (
            spaces.Tuple([FIRST, spaces.Dict(eye=PICTURE, ram=BYTES), NUMBERS, CHOICE, CHOICE]),
            [
                ("observations[0]", "uint8", 216, (8, 9, 3)),
                ("observations[1]['eye']", "uint8", 126, (7, 6, 3)),
                ("observations[1]['ram']", "uint8", 4, None),
                ("observations[2] to [4]", "float32", 8, None),
            ],
        ),
    ],
)
def test_pictures_are_apart_and_neighbouring_numbers_together(space, expected):
    inputs = observation_inputs(space)
    assert [(each.name, each.dtype, each.width, each.picture) for each in inputs] == expected
    assert inputs[0].start == 0 and inputs[-1].stop == spaces.flatdim(space)
    assert [each.stop for each in inputs[:-1]] == [each.start for each in inputs[1:]]
    columns = step_columns(EnvironmentSpec("X-v0", space, CHOICE))
    assert [column.name for column in columns[-2:]] == ["actions", "rewards"]
    found = [(column.name, column.dtype, *column.shape) for column in columns[:-2]]
    assert found == [row[:3] for row in expected]
    assert all(column.per_observation for column in columns[:-2])


def test_there_may_be_as_many_inputs_as_parts():
    parts = [part for _ in range(100) for part in (PICTURE, CHOICE)]
    assert len(observation_inputs(spaces.Tuple(parts))) == 200
