"""Which inputs a network gets from an observation space."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from flame_rl.wire.inputs import observation_inputs, step_columns
from flame_rl.wire.messages import EnvironmentSpec

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
